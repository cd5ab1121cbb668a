"""The event log: durable, append-only, and readable whatever happened to it."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pilotfish.agent import events as log
from pilotfish.agent.events import (
    EVENTS,
    Answered,
    CallData,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    EventLog,
    Intended,
    LogError,
    Networked,
    RunEnded,
    RunStarted,
    Told,
    read_run,
)
from pilotfish.agent.run_folder import new_run_folder


def started(folder: Path) -> RunStarted:
    return RunStarted(run=folder.name, pilotfish="0", command="run", model="scripted")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    call = CallData(
        id="1", name="shell", arguments={"command": "echo '\ud800 \u2028 \x00'", "n": [1, 2.5, None]}
    )
    heard: list[Event] = []
    with EventLog(tmp_path / "a" / "b", on_event=heard.append) as log:
        log.append(started(log.folder))
        log.append(Intended(step=1, call=call))
        assert read_run(log.folder).events == heard, "it can be read while it is being written"
    run = read_run(tmp_path / "a" / "b")
    assert [event.n for event in run.events] == [1, 2]
    assert run.events == heard
    assert isinstance(heard[1], Intended)
    assert heard[1].call == call
    assert not run.warnings
    assert run.ended is None


def test_ordinals_go_on_after_a_torn_line(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.append(started(tmp_path))
        log.append(Told(step=1, text="one"))
    path = tmp_path / EVENTS
    path.write_bytes(path.read_bytes() + b'{"v": 1, "n": 3, "type": "tol')
    torn = read_run(tmp_path)
    assert [event.n for event in torn.events] == [1, 2]
    assert len(torn.warnings) == 1
    assert "torn" in torn.warnings[0]
    with EventLog(tmp_path) as log:
        log.append(RunEnded(status="finished"))
    run = read_run(tmp_path)
    assert [event.n for event in run.events] == [1, 2, 4], "the torn line may have held number 3"
    assert run.ended is not None
    assert len(run.warnings) == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"v": 1, "n": 9, "type": "dreamt"}', "'dreamt'"),
        ('{"v": 99, "n": 9, "type": "told", "step": 1, "text": ""}', "version is 99"),
        ('{"v": 1, "n": 9, "type": "told", "step": "soon", "text": ""}', "step"),
        ('{"v": 1, "n": 9, "type": ["told"]}', "type"),
        ("[1, 2]", "JSON object"),
        ("[" * 100_000, "JSON object"),
        ("\x00\x01", "JSON object"),
    ],
)
def test_what_is_not_known_is_skipped_with_a_warning(tmp_path: Path, line: str, why: str) -> None:
    with EventLog(tmp_path) as log:
        log.append(started(tmp_path))
    with (tmp_path / EVENTS).open("a") as file:
        file.write(line + "\n")
    with EventLog(tmp_path) as log:
        log.append(RunEnded(status="failed"))
    run = read_run(tmp_path)
    assert [event.type for event in run.events] == ["run_started", "run_ended"]
    assert len(run.warnings) == 1
    assert why in run.warnings[0]
    assert "Line 2" in run.warnings[0]


def test_a_field_of_the_future_is_no_obstacle(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.append(Told(step=1, text="hello"))
    record = read_run(tmp_path).events[0]
    path = tmp_path / EVENTS
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mood": "calm"}) + "\n")
    assert read_run(tmp_path).events == [record]


def test_a_log_of_before_usage_was_counted_whole_is_read(tmp_path: Path) -> None:
    old = (
        '{"v": 1, "n": 1, "t": 1.0, "type": "answered", "step": 1, "text": "", "calls": [{"id": "a", "name": '
        '"shell", "arguments": {}}], "end": "end", "usage": {"input_tokens": 9, "cached_tokens": 4, '
        '"output_tokens": 2, "vision_s": 0.0, "prefill_s": 0.5, "decode_s": 0.1, "retries": 0}, "kept": true}'
    )
    (tmp_path / EVENTS).write_text(old + "\n")
    run = read_run(tmp_path)
    (event,) = run.events
    assert not run.warnings
    assert isinstance(event, Answered)
    usage = event.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.prefill_s) == (9, 4, 2, 0.5)
    assert (usage.queue_s, usage.cache_bytes, usage.device, usage.sequences) == (None,) * 4


def test_one_writer(tmp_path: Path) -> None:
    with EventLog(tmp_path), pytest.raises(LogError, match="another process"):
        EventLog(tmp_path)
    with EventLog(tmp_path):
        pass


def test_equal_frames_are_stored_once(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    frames = random.integers(0, 256, (3, 20, 30, 3), np.uint8)
    with EventLog(tmp_path) as log:
        names = [log.frames.put(frame) for frame in [*frames, frames[0], frames[0].copy()]]
    assert len(set(names)) == len(list((tmp_path / "frames").iterdir())) == 3
    assert names[0] == names[3] == names[4]
    for name, frame in zip(names, frames, strict=False):
        assert np.array_equal(read_run(tmp_path).frames.get(name), frame)
    flat, tall = frames[0].reshape(10, 60, 3), frames[0].reshape(60, 10, 3)
    assert log.frames.put(flat) != log.frames.put(tall), "the same bytes in another shape are another frame"


def test_a_missing_or_damaged_frame_is_told(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        name = log.frames.put(np.zeros((4, 4, 3), np.uint8))
    store = read_run(tmp_path).frames
    store.path(name).write_bytes(b"\x89PNG torn")
    with pytest.raises(LogError, match="damaged"):
        store.get(name)
    with pytest.raises(LogError, match="missing"):
        store.get("0" * 32)
    with pytest.raises(LogError, match="changed by hand"):
        store.get("../../etc/passwd")


def test_the_episodes_of_a_run(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.append(started(tmp_path))
        for episode in range(2):
            log.append(EpisodeStarted(episode=episode, task="t", instruction="i"))
            log.append(Answered(step=1, text="hi"))
            if episode == 0:
                log.append(EpisodeEnded(episode=0, end="done"))
                log.append(Told(step=1, text="between"))
                log.append(Networked(note="told a moment after the end"))
    episodes = read_run(tmp_path).episodes()
    assert [[event.type for event in episode] for episode in episodes] == [
        ["episode_started", "answered", "episode_ended", "networked"],
        ["episode_started", "answered"],
    ]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LogError, match=r"^Cannot write .*; choose"):
        EventLog(tmp_path / "file" / "run")
    with pytest.raises(LogError, match=r"^Cannot read .*; check the path\.$"):
        read_run(tmp_path / "nowhere")


FILL = """
import sys, resource
from pathlib import Path
from pilotfish.agent.events import EventLog, LogError, Told
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
written = 0
with EventLog(Path(sys.argv[1])) as log:
    try:
        while True:
            log.append(Told(step=written, text="x" * 300))
            written += 1
    except LogError as error:
        print(error)
    try:
        import numpy as np
        log.frames.put(np.random.default_rng(1).integers(0, 256, (100, 100, 3), np.uint8))
    except LogError as error:
        print(error)
print(written)
"""


def test_a_full_disk_keeps_the_earlier_records(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    log_error, frame_error, written = done.stdout.splitlines()
    assert log_error.startswith("Cannot write")
    assert frame_error.startswith("Cannot write")
    run = read_run(tmp_path)
    assert len(run.events) == int(written) > 5
    assert not run.warnings, "the record that did not fit left nothing behind"
    assert list((tmp_path / "frames").iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from pilotfish.agent.events import EventLog, Told
with EventLog(Path(sys.argv[1])) as log:
    for n in range(100000):
        log.append(Told(step=n, text="x" * 200))
        print(n, flush=True)
"""


def test_a_log_that_is_removed_is_written_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    with EventLog(folder) as events:
        events.append(started(folder))
        (tmp_path / "runs").rename(tmp_path / "moved")
        events.append(Told(step=1, text="moved"))
        shutil.rmtree(tmp_path / "moved")
        with pytest.raises(LogError, match=r"events\.jsonl was removed while the run was played; start"):
            events.append(Told(step=2, text="removed"))
    assert not folder.exists()


def test_a_killed_writer_loses_nothing_it_reported(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(50)]
    process.kill()
    reported = int((lines + process.stdout.readlines())[-1].split()[0])
    process.wait()
    steps = [event.step for event in read_run(tmp_path).events if isinstance(event, Told)]
    assert steps == list(range(len(steps)))
    assert len(steps) > reported
    with EventLog(tmp_path) as log:
        log.append(Told(step=0, text="after"))
    assert read_run(tmp_path).events[-1].n == len(steps) + 1


def test_run_folders_do_not_collide(tmp_path: Path) -> None:
    assert len({new_run_folder(tmp_path) for _ in range(50)}) == 50
    assert not any(tmp_path.iterdir())


def test_text_that_utf8_cannot_take_is_spelt_out(tmp_path: Path) -> None:
    broken = "a\udcff\ud83d"
    call = log.CallData(id=broken, name=broken, arguments={broken: [broken, {"x": broken}]})
    with log.EventLog(tmp_path) as writer:
        writer.append(log.Answered(step=1, text=broken, reasoning=broken, calls=[call]))
        writer.append(log.Resulted(step=1, call_id=broken, ok=False, text=broken))
        writer.append(log.EpisodeEnded(episode=0, end="done", answer=broken, reason=broken))
    run = log.read_run(tmp_path)
    assert list(run.warnings) == []
    whole = r"a\xff\ud83d"
    first, second, last = run.events
    assert isinstance(first, log.Answered)
    assert first.calls[0].arguments == {whole: [whole, {"x": whole}]}
    assert isinstance(second, log.Resulted)
    assert (first.text, first.reasoning, second.text) == (whole, whole, whole)
    assert isinstance(last, log.EpisodeEnded)
    assert (last.answer, last.reason) == (whole, whole)


def test_a_conversation_holds_only_text_that_utf8_can_take() -> None:
    from pilotfish.agent.conversation import Conversation
    from pilotfish.model.protocol import Message, ToolCall

    broken, whole = "a\udcff\ud83d", r"a\xff\ud83d"
    here = Conversation()
    here.append(
        Message("assistant", (broken,), broken, (ToolCall("1", "edit", {"edits": [{"old": broken}]}),))
    )
    here.append(Message("tool", (broken,)))
    said, told = here.messages
    assert (said.parts, said.reasoning, told.parts) == ((whole,), whole, (whole,))
    assert said.tool_calls[0].arguments == {"edits": [{"old": whole}]}
