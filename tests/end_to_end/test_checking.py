"""`pilotfish replay --check`: a run's calls executed again, and what comes of them compared."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pilotfish.agent import events as log
from pilotfish.agent.check import Checked, check, scene_of
from pilotfish.agent.check_report import report_lines, step_line
from pilotfish.agent.code import CodeTarget, run_code
from pilotfish.agent.reenact import compare_frames, first_difference, recorded_calls
from pilotfish.agent.run import Target
from pilotfish.agent.settings import Settings
from pilotfish.model.scripted import ScriptedModel
from pilotfish.tasks.format import Task

from ..sandbox.repositories import fingerprint, make
from .conftest import Command, call, shell, turn, without_words
from .test_going_back import PILOTFISH, play


def checked(command: Command, run: Path, *words: str) -> dict[str, Any]:
    said = command("replay", str(run), "--check", "--json", *words)
    found: dict[str, Any] = json.loads(said.out)
    return found | {"status": said.status}


async def again(run: log.RunLog) -> Checked:
    return await check(run, scene_of(run, None), asyncio.Event(), lambda compared: None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text("one\ntwo\n")
    return folder


async def test_files_are_those_of_before_the_first_call(project: Path, tmp_path: Path) -> None:
    script = [
        turn(call("edit", command="view", path="a.py")),
        turn(call("edit", command="replace", path="a.py", old_text="two", new_text="2")),
        shell("cat a.py; export X=5"),
        shell("echo $X; exit 3"),
        turn(text="Finished."),
    ]
    target = Target(instruction="Work.", workspace=str(project))
    run = await play(target, tmp_path / "runs" / "r", script)
    (project / "a.py").write_text("something else by now\n")
    found = await again(run)
    assert ([one.step for one in found.compared], found.differences) == ([0, 1, 2, 3, 4], [])
    assert (project / "a.py").read_text() == "something else by now\n"


async def test_a_text_that_differs_is_told(project: Path, tmp_path: Path) -> None:
    target = Target(instruction="Work.", workspace=str(project))
    script = [shell("echo same; cat /proc/sys/kernel/random/uuid"), shell("echo x"), turn(text="Finished.")]
    run = await play(target, tmp_path / "runs" / "r", script)
    differs = (await again(run)).differences
    assert [one.step for one in differs] == [1]
    recorded = next(event for event in run.events if isinstance(event, log.Resulted)).text
    assert differs[0].text is not None
    assert differs[0].text[0] == recorded.splitlines()[1]
    assert differs[0].text[1] != differs[0].text[0]
    said = recorded.splitlines()[1][:29]
    assert f"not '{said}…'" in step_line(differs[0])


async def test_files_of_a_run_that_wrote_none_are_those_of_today(project: Path, tmp_path: Path) -> None:
    target = Target(instruction="Look.", workspace=str(project))
    script = [turn(call("edit", command="view", path="a.py")), turn(text="Seen.")]
    run = await play(target, tmp_path / "runs" / "r", script)
    found = await again(run)
    assert (len(found.compared), found.differences) == (2, [])
    assert f"the files were those that {project} has now" in found.notes[0]


async def test_work_on_a_repository_is_done_again_on_the_copy(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", {"calc.py": "def add(a, b):\n    return a - b\n"})
    script = [
        turn(call("edit", command="replace", path="calc.py", old_text="a - b", new_text="a + b")),
        shell("git diff | tail -2; git log --format=%s"),
        turn(text="Mended."),
    ]
    settings = Settings(record_dir=tmp_path / "runs")
    result = await run_code(CodeTarget(str(repo), "Mend it."), settings, model=ScriptedModel(script))
    before = fingerprint(repo)
    found = await again(log.read_run(Path(result["folder"])))
    assert [step_line(one) for one in found.differences] == []
    assert len(found.compared) == 3
    assert fingerprint(repo) == before


def test_a_screen_is_compared_pixel_by_pixel(web_task: Task, tmp_path: Path, command_here: Command) -> None:
    without_words(web_task)
    path = web_task.folder / "task.yaml"
    said = command_here("run", str(path), "--model", "solution", "--json")
    folder = Path(json.loads(said.out)["folder"])
    said = command_here("replay", str(folder), "--check")
    lines = said.out.splitlines()
    assert (said.status, lines[0], lines[3]) == (
        0,
        "   0  equal    the screen",
        "all of 3 comparisons are equal",
    )

    run = log.read_run(folder)
    clip = next(event for event in run.events if isinstance(event, log.Resulted)).clip
    assert clip is not None
    frame = run.frames.get(clip.frames[3]).copy()
    frame[300:380, 20:120] = (0, 0, 250)
    Image.fromarray(frame).save(run.frames.path(clip.frames[3]))
    found = checked(command_here, folder)
    assert (found["status"], found["differing"]) == (1, 2), "what follows shows the same frame"
    differs = found["steps"][1]["frame"]
    assert (differs["pixels"], differs["box"]) == (8000, [20, 300, 100, 80])
    red = np.asarray(Image.open(differs["pictures"]["difference"]))
    assert tuple(red[310, 30]) == (255, 0, 0)
    assert tuple(red[200, 30]) != (255, 0, 0)
    assert np.array_equal(np.asarray(Image.open(differs["pictures"]["recorded"])), frame)
    lines = report_lines(found)
    assert lines[0].split()[:2] == ["step", "call"]
    assert "8,000 pixels (5.67%) in 100x80 at 20, 300" in lines[1]
    assert lines[3:5] == [f"pictures  {folder / 'check'}", "2 of 3 comparisons differ"]


@pytest.mark.parametrize(
    ("change", "says"),
    [({"sandbox_level": 0}, "had no sandbox"), ({"host_desktop": "YOURS"}, "worked on your own desktop")],
)
def test_what_was_not_in_a_sandbox_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    started = log.RunStarted(run="r", pilotfish="1", command="run", model="m")
    with log.EventLog(tmp_path) as events:
        events.append(started.model_copy(update=change))
        events.append(log.EpisodeStarted(episode=0, task="t", instruction="x"))
    with pytest.raises(log.LogError, match=says):
        scene_of(log.read_run(tmp_path), None)


def test_which_episode_is_checked(tmp_path: Path, command_here: Command) -> None:
    with log.EventLog(tmp_path / "r") as events:
        events.append(log.RunStarted(run="r", pilotfish="1", command="bench", model="m"))
        for number in (0, 1):
            events.append(log.EpisodeStarted(episode=number, task="t", instruction="x"))
            events.append(log.EpisodeEnded(episode=number, end="done"))
    assert (
        "has 2 episodes, 0 to 1; choose one with --episode" in checked(command_here, tmp_path / "r")["error"]
    )
    assert "choose from 0, 1" in checked(command_here, tmp_path / "r", "--episode", "7")["error"]


async def test_a_check_can_be_stopped(project: Path, tmp_path: Path) -> None:
    target = Target(instruction="Wait.", workspace=str(project))
    run = await play(target, tmp_path / "r", [shell("sleep 2 & wait"), shell("true"), turn(text="Done.")])
    process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this event loop
        [*PILOTFISH, "replay", str(run.folder), "--check"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "the screen" in process.stdout.readline()
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: " in rest
    assert time.monotonic() - began_s < 30


def test_what_is_done_again(tmp_path: Path) -> None:
    """A sub-task's calls stand in place of the call that handed it over, and what was undone is left out."""
    plan = log.CallData(id="p", name="plan", arguments={"subtask": "x"})
    one = log.CallData(id="a", name="shell", arguments={"command": "one"})
    with log.EventLog(tmp_path) as events:
        events.append(log.EpisodeStarted(episode=0, task="t", instruction="x"))
        events.append(log.Answered(step=1, calls=[plan]))
        events.append(log.Intended(step=1, call=plan))
        part = events.under(events.last)
        part.append(log.EpisodeStarted(episode=0, task="subtask", instruction="x"))
        part.append(log.Intended(step=1, call=one))
        part.append(log.Resulted(step=1, call_id="a", ok=True, text="1"))
        part.append(log.EpisodeEnded(episode=0, end="answered"))
        events.append(log.Resulted(step=1, call_id="p", ok=True, text="done"))
        for command in ("two", "three"):
            said = log.CallData(id="a", name="shell", arguments={"command": command})
            events.append(log.Answered(step=2, calls=[said]))
            events.append(log.Intended(step=2, call=said))
            events.append(log.Resulted(step=2, call_id="a", ok=True, text=command))
            if command == "two":
                events.append(log.SteppedBack(step=3, to=2))
    things = recorded_calls(log.read_run(tmp_path).episodes()[0])
    assert [(thing.what, thing.parent, thing.call and thing.call.id) for thing in things] == [
        ("look", 0, None),
        ("call", 3, "a"),
        ("call", 0, "p"),
        ("anew", 0, None),
        ("call", 0, "a"),
    ]
    assert things[2].parts
    assert things[4].result is not None
    assert things[4].result.text == "three"
    assert len(recorded_calls(log.read_run(tmp_path).episodes()[0], before=2)) == 4


def test_how_frames_and_texts_differ() -> None:
    dice = np.random.default_rng(3)
    frame = dice.integers(0, 256, (40, 60, 3), np.uint8)
    assert compare_frames(frame, frame.copy()) is None
    other = frame.copy()
    other[5, 7] ^= 1
    other[20, 30, 2] ^= 128
    found = compare_frames(frame, other)
    assert found is not None
    assert found.box is not None
    assert (found.pixels, found.box.x, found.box.y, found.box.width, found.box.height) == (2, 7, 5, 24, 16)
    smaller = compare_frames(frame, frame[:30])
    assert smaller is not None
    assert (smaller.box, smaller.words) == (None, "the screen is 60x30, not 60x40")
    assert first_difference("a\nb", "a\nb") is None
    assert first_difference("a\nb\nc", "a\nx\nc") == ("b", "x")
    assert first_difference("a", "a\nmore") == ("", "more")
