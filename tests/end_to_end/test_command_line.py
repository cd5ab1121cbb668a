"""The command as a person or a script uses it: real processes, real sandboxes, exit statuses, signals."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from pilotfish.agent import cli_run
from pilotfish.agent import events as log
from pilotfish.agent.prompt import UNKNOWN_OUTCOME
from pilotfish.tasks.format import Task

from ..processes import living
from ..waiting import wait_for
from .conftest import Command

PILOTFISH = [sys.executable, "-m", "pilotfish.agent.cli"]

COUNTING = """
instruction: Count.
tools: [shell]
environment: {kind: shell}
limits: {steps: 40, seconds: 300}
graders: [{kind: file_matches, path: count.txt, pattern: "^29$"}]
solution:
"""


def pilotfish(*arguments: object, timeout: float = 90, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [*PILOTFISH, *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload,no-any-return]
    )


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """A task whose solution adds one number a step to a file, slowly enough to be killed in between."""
    steps = "".join(f"  - echo {n} >> count.txt; sleep 0.1\n" for n in range(30))
    path = tmp_path / "counting.yaml"
    path.write_text(COUNTING + steps)
    return path


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def wait_for_events(process: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    """Wait until the one run in `folder` has that many records, or its process has ended."""
    while process.poll() is None:
        logs = list((folder / "runs").glob("*/events.jsonl"))
        if logs and logs[0].read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)


def test_help_is_fast_and_lists_the_commands() -> None:
    done = pilotfish("--help")
    assert done.returncode == 0
    for name in ("run", "bench", "show", "replay", "resume", "doctor", "model", "demo", "version"):
        assert f"\n  {name} " in done.stdout
    heavy = [sys.executable, "-X", "importtime", *PILOTFISH[1:], "--help"]
    imported = subprocess.run(heavy, capture_output=True, text=True, check=True).stderr
    for module in ("torch", "playwright", "numpy", "pydantic"):
        assert f" {module}\n" not in imported, f"{module} makes --help slow"


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_an_output_that_takes_nothing_is_no_traceback(as_json: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*PILOTFISH, "version", *as_json], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("pilotfish: Cannot write the result (No space left on device)")
    assert "Traceback" not in done.stderr
    closed = ["sh", "-c", '"$@" >&-', "sh", *PILOTFISH, "version", *as_json]
    assert subprocess.run(closed, capture_output=True, text=True).stderr == ""


def test_version_as_an_option(command_here: Command) -> None:
    assert command_here("--version") == command_here("version")


def test_version_as_json(command_here: Command) -> None:
    said = command_here("version", "--json")
    assert json.loads(said.out)["version"]
    assert (said.status, said.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["run"], 2, "either a TASK or --instruction"),
        (["run", "web/sign-inn"], 2, "sign-in"),
        (["run", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["run", "web/sign-in", "--desktop"], 2, "--instruction"),
        (["run", "--instruction", "x", "--tools", "browser"], 2, "needs a display; add --desktop"),
        (["run", "web/sign-in", "--attention", "blurred"], 2, "--attention is 'blurred', but must be"),
        (["run", "web/sign-in", "--max-steps", "0"], 2, "--max-steps is 0, but must be 1 or more"),
        (["run", "web/sign-in", "--model", "/no/such/folder"], 1, "/no/such/folder"),
        (["run", "--instruction", "x", "--model", "solution"], 1, "no reference solution"),
        (["run", "--instruction", "x", "--tools", "shell,telepathy", "--model", "solution"], 2, "telepathy"),
        (["bench", "miniwob", "--tasks", "click-tset", "--model", "solution"], 2, "click-test"),
        (["bench", "miniwob", "--limits", "none"], 2, "classic or untimed"),
        (["bench", "tasks", "no-such-suite"], 2, "no-such-suite"),
        (["replay", "/no/such/run"], 1, "/no/such/run"),
        (["show", "/no/such/run"], 1, "/no/such/run"),
        (["resume", "/no/such/run"], 1, "/no/such/run"),
        (["frobnicate"], 2, "frobnicate"),
        (
            ["run", "web/sign-in", "--max-steps", "few"],
            2,
            "--max-steps is 'few', but must be a whole number.",
        ),
        (["bench", "miniwob", "--episodes", "0"], 2, "--episodes is '0', but must be 1 or more."),
        (["run", "web/sign-in", "--max-step", "1"], 2, "see pilotfish run --help"),
        (["show"], 2, "Missing argument 'folder', a run; `pilotfish runs` lists them, and pilotfish show"),
        (["watch"], 2, "Missing argument 'folder', a run; `pilotfish runs` lists them, and pilotfish watch"),
        (["code"], 2, "Missing argument 'repository'; see pilotfish code --help."),
        (["run", "miniwob/click-test", "--model", "solution"], 2, "choose another --model"),
        (["bench", "miniwob", "--tasks", "click-test click-tset"], 2, "'click-tset'"),
        (["bench", "miniwob", "--tasks", "click-test", "click-tset"], 2, "'click-tset'"),
        (["bench", "tasks", "shell,no-such-suite"], 2, "'no-such-suite'"),
        (["run", "miniwob/click-test", "--seed", "-1"], 2, "seed -1"),
        (["bench", "miniwob", "--seed", str(1 << 31), "--model", "solution"], 2, "out of range"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path, command_here: Command, arguments: list[str], status: int, says: str, as_json: bool
) -> None:
    said = command_here(*arguments, *(["--json"] if as_json else []))
    assert said.status == status
    if as_json:
        assert says in json.loads(said.out)["error"]
    else:
        assert said.out == ""
    assert says in said.err
    assert said.err.startswith("pilotfish: ")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "runs").exists(), "a command that cannot start leaves no run"


def test_a_run_is_solved_recorded_and_replayed(tmp_path: Path, counting: Path) -> None:
    done = pilotfish("run", counting, "--model", "solution", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["end"], result["passed"], result["steps"]) == ("answered", True, 30)
    assert "echo 29" in done.stderr, "the steps are told on standard error"
    run = only_run(tmp_path)
    replay = pilotfish("replay", run, cwd=tmp_path)
    assert Path(replay.stdout.strip()).is_file() or (tmp_path / replay.stdout.strip()).is_file()
    atif = pilotfish("replay", run, "--atif", tmp_path / "run.json", "--json", cwd=tmp_path)
    assert json.loads(atif.stdout)["path"] == str(tmp_path / "run.json")
    assert len(json.loads((tmp_path / "run.json").read_text())["steps"]) == 32
    again = pilotfish("resume", run, cwd=tmp_path)
    assert again.returncode == 1
    assert "nothing to resume" in again.stderr
    shown = pilotfish("show", run, cwd=tmp_path)
    assert '  30  shell {"command": "echo 29' in shown.stdout
    assert shown.stdout.endswith(f"used  {result['usage']['output_tokens']} tokens out\n")
    told = json.loads(pilotfish("show", run, "--json", cwd=tmp_path).stdout)
    assert (told["status"], told["usage"]) == ("finished", result["usage"])
    assert told["answers"][0]["usage"]["input_tokens"] is None, "a script knows of no prompt"
    assert len(told["answers"]) == result["usage"]["answers"] == 31


def test_a_run_that_fails_has_another_status(tmp_path: Path, counting: Path) -> None:
    done = pilotfish("run", counting, "--model", "solution", "--max-steps", 3, cwd=tmp_path)
    assert done.returncode == 1
    assert "step_limit" in done.stdout
    assert f"pilotfish replay runs/{only_run(tmp_path).name}\n" in done.stdout
    assert "pilotfish resume" not in done.stdout, "it has finished"
    assert "Traceback" not in done.stderr


def test_settings_come_from_file_and_environment(tmp_path: Path, counting: Path) -> None:
    (tmp_path / "pilotfish.toml").write_text(
        'model = "solution"\nmax_steps = 2\n[[rules]]\nverdict = "deny"\n'
    )
    done = pilotfish("run", counting, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["steps"] == 2
    assert "denied" in done.stderr
    done = pilotfish("run", counting, "--json", cwd=tmp_path, env=os.environ | {"PILOTFISH_MAX_STEPS": "1"})
    assert json.loads(done.stdout)["steps"] == 1
    done = pilotfish("run", counting, "--json", cwd=tmp_path, env=os.environ | {"PILOTFISH_RULES": "deny"})
    assert done.returncode == 2
    assert "environment variable" in json.loads(done.stdout)["error"]
    (tmp_path / "pilotfish.toml").write_text("model = \n")
    done = pilotfish("run", counting, cwd=tmp_path)
    assert done.returncode == 2
    assert "pilotfish.toml" in done.stderr


def test_killed_at_any_moment_a_run_keeps_every_finished_step(tmp_path: Path, counting: Path) -> None:
    moments = random.Random(os.environ.get("PYTEST_SEED", "seed"))
    command = [*PILOTFISH, "run", str(counting), "--model", "solution"]
    seen: list[log.Event] = []
    for _ in range(7):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_events(process, tmp_path, len(seen) + moments.randint(1, 8))
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        process.wait()
        run = log.read_run(only_run(tmp_path))
        assert list(run.events[: len(seen)]) == seen, "what was recorded stays"
        seen = list(run.events)
        command = [*PILOTFISH, "resume", str(run.folder)]
    done = pilotfish("resume", only_run(tmp_path), "--json", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    run = log.read_run(only_run(tmp_path))
    assert list(run.events[: len(seen)]) == seen
    numbers = [event.n for event in run.events]
    assert numbers == sorted(set(numbers)), "ordinals are unique"
    results = [event for event in run.events if isinstance(event, log.Resulted)]
    assert len({event.call_id for event in results}) == len(results) == 30
    finished = {int(event.call_id.removeprefix("call-")) for event in results if event.executed}
    unknown = {int(event.call_id.removeprefix("call-")) for event in results if event.text == UNKNOWN_OUTCOME}
    assert finished | unknown == set(range(30))
    lines = [int(line) for line in (run.folder / "workspace" / "count.txt").read_text().split()]
    assert len(lines) == len(set(lines)), "no step was done twice"
    assert finished <= set(lines) <= finished | unknown


def descendants(pid: int) -> set[int]:
    """The processes that descend from one."""
    found: set[int] = set()
    new = {pid}
    while new:
        found |= new
        listed = subprocess.run(
            ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
        ).stdout
        pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
        new = {child for child, parent in pairs if parent in found} - found
    return found - {pid}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_at_once_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    task = tmp_path / "sleeping.yaml"
    task.write_text(COUNTING + "  - touch started; sleep 77\n")
    process = subprocess.Popen(
        [*PILOTFISH, "run", str(task), "--model", "solution"], cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    while process.poll() is None and not list(tmp_path.glob("runs/*/workspace/started")):
        time.sleep(0.02)
    children = descendants(process.pid)
    assert len(children) >= 3
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number
    run = log.read_run(only_run(tmp_path))
    assert run.ended is not None
    assert run.ended.status == "interrupted"
    ends = [event for event in run.events if isinstance(event, log.EpisodeEnded)]
    assert [event.end for event in ends] == ["stopped"]
    wait_for(lambda: not living(children))


def test_a_stopped_bench_says_how_to_go_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PILOTFISH, "bench", "tasks", "shell", "code", "--model", "solution"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    while process.poll() is None and not any(
        "episode_ended" in path.read_text() for path in tmp_path.glob("runs/*/events.jsonl")
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"pilotfish resume runs/{only_run(tmp_path).name} goes on" in said


def test_a_run_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, counting: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    done = pilotfish("run", counting, "--model", "solution", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("pilotfish: Cannot write")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize(
    "options", [{}, {"settings": {}}, {"settings": 5}, {"settings": {}, "target": {"x": 1}}]
)
def test_a_log_that_does_not_say_what_to_do_is_one_sentence(
    tmp_path: Path, command_here: Command, command: Literal["run", "bench"], options: dict[str, Any]
) -> None:
    with log.EventLog(tmp_path / "r") as events:
        events.append(log.RunStarted(run="r", pilotfish="0", command=command, model="nano", options=options))
    said = command_here("resume", str(tmp_path / "r"))
    assert said.status == 1
    assert "does not say what the run was to do" in said.err


def test_a_place_that_may_not_be_looked_at_is_one_sentence(
    command_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(task: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", task)

    monkeypatch.setattr(cli_run, "_absolute", look)
    said = command_here("run", "/secret/task.yaml", "--json")
    assert said.status == 1
    sentence = "Cannot use /secret/task.yaml (Permission denied); check its permissions."
    assert json.loads(said.out) == {"error": sentence}
    assert said.err == f"pilotfish: {sentence}\n"


def test_a_screen_is_brought_back_or_its_episode_starts_again(tmp_path: Path, web_task: Task) -> None:
    done = pilotfish("run", web_task.folder, "--model", "solution", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = only_run(tmp_path) / log.EVENTS
    lines = path.read_text().splitlines(keepends=True)
    end = next(number for number, line in enumerate(lines, 1) if '"type": "resulted"' in line)
    path.write_text("".join(lines[:end]))
    done = pilotfish("resume", path.parent, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    resumed, begun, arrived, *rest = log.read_run(path.parent).events[end:]
    assert isinstance(resumed, log.Resumed)
    assert resumed.note == "The screen is brought back by doing its finished step again."
    assert isinstance(begun, log.SteppedBack)
    assert isinstance(arrived, log.SteppedBack)
    assert (begun.over, arrived.over, arrived.note) == (False, True, "The screen is equal to what it was.")
    assert [event.type for event in rest[:2]] == ["answered", "intended"]

    end = next(number for number, line in enumerate(lines, 1) if '"type": "intended"' in line)
    path.write_text("".join(lines[:end]))
    kept = log.read_run(path.parent).events
    begun = kept[-1]
    assert isinstance(begun, log.Intended)
    done = pilotfish("resume", path.parent, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cannot be brought back (no step of it was finished)" in done.stdout
    events = log.read_run(path.parent).events
    assert events[:end] == kept
    resumed = events[end]
    assert isinstance(resumed, log.Resumed)
    assert resumed.unknown_call == begun.call
    assert "The outcome of the last call of computer is unknown" in resumed.note
    assert [event.type for event in events[end:]].count("episode_started") == 1


def small_disk(command: list[str], folder: Path) -> list[str]:
    """The command with a disk of 16 kB mounted over `folder`, whose files are copied out at the end."""
    script = f"""mount -t tmpfs -o size=16k none {folder} && "$@"
    status=$?; cp -r {folder}/. {folder}-copy; exit $status"""
    return ["unshare", "-m", "sh", "-c", script, "sh", *command]


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path, counting: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    if subprocess.run(small_disk(["true"], folder), capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    command = small_disk([*PILOTFISH, "run", str(counting), "--model", "solution"], folder)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert done.stderr.strip().startswith("pilotfish: Cannot write")
    assert "free some space" in done.stderr
    (copy,) = (tmp_path / "runs-copy").iterdir()
    run = log.read_run(copy)
    assert len(run.events) > 5
    assert not run.warnings


@pytest.mark.parametrize(("key", "lines"), [(b"y\n", 3), (b"n\n", 0), (b"\n", 0)])
def test_a_person_is_asked_on_the_terminal(tmp_path: Path, key: bytes, lines: int) -> None:
    task = tmp_path / "asking.yaml"
    task.write_text(COUNTING + '  - "echo a[b]c\\e[2J >> count.txt"\n' * 3)
    (tmp_path / "pilotfish.toml").write_text('default_verdict = "ask"\n')
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*PILOTFISH, "run", str(task), "--model", "solution"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    answered = 0
    with contextlib.suppress(OSError):  # the terminal is gone when the process is
        while part := os.read(ours, 4096):
            said += part
            if said.count(b"or why not] ") > answered:
                answered += 1
                os.write(ours, key)
    os.close(ours)
    assert process.wait() == 1
    assert answered == 3
    assert b"command: echo a[b]c\\x1b[2J" in said
    assert b"\x1b[2J" not in said
    count = only_run(tmp_path) / "workspace" / "count.txt"
    assert (len(count.read_text().splitlines()) if count.exists() else 0) == lines


def test_a_run_in_the_folder_where_one_stands_is_kept_elsewhere(
    tmp_path: Path, command_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path.parent / "state"))
    words = ("run", "--instruction", "Work.", "--workspace", ".", "--model", "solution")
    assert "has no reference solution" in command_here(*words).err
    assert "would lie in the workspace" in command_here(*words, "--record-dir", "here").err
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "would lie in the workspace" in command_here(*words).err
