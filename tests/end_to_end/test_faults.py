"""Faults in the middle of a run with a model: the log says what it was in a sentence, and is whole."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.model.protocol import Message
from pilotfish.model.scripted import ScriptedModel
from pilotfish.sandbox.inside.processes import below, processes
from pilotfish.tasks.format import Limits as TaskLimits
from pilotfish.tasks.format import Task

from ..processes import living
from ..waiting import wait_for
from .conftest import SHELL, Open, call, turn

pytestmark = pytest.mark.timeout(120)

LIMITS = TaskLimits(steps=6, seconds=90)
FAULTS = {
    "pkill -KILL Xvfb": "display",
    "pkill -STOP Xvfb": "The display server (Xvfb) of the sandbox was frozen by a signal",
    "pkill -KILL openbox": "The window manager (openbox) of the sandbox was killed by signal 9",
    "pkill -STOP openbox": "The window manager (openbox) of the sandbox was frozen by a signal",
    "pkill -KILL -f -- --remote-debugging-pipe": "The browser in the sandbox has ended.",
    "kill -STOP $(pgrep -of -- --remote-debugging-pipe)": "The browser (Chromium) of the sandbox was frozen",
}


def programs_of(pid: int) -> set[int]:
    """The processes below one, without those that are dead."""
    return below(pid, processes())


def last_of(folder: Path) -> log.EpisodeEnded:
    """The end of the episode in a log that is whole."""
    run = log.read_run(folder)
    assert list(run.warnings) == []
    end = run.events[-1]
    assert isinstance(end, log.EpisodeEnded)
    assert "\n" not in end.reason
    return end


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("when", ["while the model thinks", "while it acts"])
async def test_a_part_that_fails_ends_the_episode(
    web_task: Task, open_episode: Open, tmp_path: Path, fault: str, when: str
) -> None:
    async def play(conversation: object, tools: object) -> Message:
        process = await episode.box.run(["bash", "-c", fault])
        if when == "while the model thinks":
            await asyncio.sleep(60)
        await process.wait()
        return turn(call(action="left_click", coordinate=[500, 200], id="a"))

    began = programs_of(os.getpid())
    async with open_episode(web_task, ScriptedModel(play), limits=LIMITS) as episode:
        outcome = await asyncio.wait_for(episode.run(), 50)
    assert outcome.end == "sandbox_error"
    if when == "while the model thinks":
        assert not outcome.grade.passed  # When it acts, a click may be made before the fault is noticed.
    end = last_of(tmp_path / "run")
    assert (end.end, end.reason) == ("sandbox_error", outcome.reason)
    assert FAULTS[fault] in end.reason
    assert programs_of(os.getpid()) - began == set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_pid_1_that_fails_ends_the_episode(
    shell_task: Task, open_episode: Open, tmp_path: Path, number: signal.Signals
) -> None:
    async def play(conversation: object, tools: object) -> Message:
        assert episode.box._supervisor.inner_pid is not None
        asyncio.get_running_loop().call_later(0.2, os.kill, episode.box._supervisor.inner_pid, number)
        return turn(call("shell", command="sleep 60", id="a"))

    began = programs_of(os.getpid())
    async with open_episode(shell_task, ScriptedModel(play), limits=LIMITS) as episode:
        outcome = await asyncio.wait_for(episode.run(), 50)
    assert outcome.end == "sandbox_error"
    what = "has ended" if number == signal.SIGKILL else "was frozen from outside"
    assert f"The sandbox {what}" in last_of(tmp_path / "run").reason
    assert programs_of(os.getpid()) - began == set()


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("kill -9 $$", "bash ended, and a new one goes on"),
        ("kill -STOP $$", "a signal stopped bash, so it was ended"),
        ("kill -STOP $PPID", "bash ended, and a new one goes on"),
        ("head -c 3000000000 /dev/zero > /tmp/x", "No space left on device"),
    ],
)
async def test_a_shell_that_fails_is_told_to_the_model_and_the_run_goes_on(
    shell_task: Task, open_episode: Open, tmp_path: Path, command: str, note: str
) -> None:
    script = [
        turn(call("shell", command=command, id="a")),
        turn(call("shell", command="rm -f /tmp/x; echo done > /workspace/result.txt", id="b")),
        turn(text="Done."),
    ]
    async with open_episode(shell_task, ScriptedModel(script), limits=LIMITS) as episode:
        outcome = await asyncio.wait_for(episode.run(), 50)
    assert outcome.grade.passed
    results = [event for event in log.read_run(tmp_path / "run").events if isinstance(event, log.Resulted)]
    assert note in results[0].text
    last_of(tmp_path / "run")


RUN = [sys.executable, "-c", "from pilotfish.agent.cli import main; main()", "run"]


def test_a_run_whose_disk_is_full_says_so_and_leaves_a_whole_log(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "small", str(disk)], check=True)
    try:
        task = tmp_path / "task.yaml"
        # What it prints fills the log's disk.
        task.write_text(SHELL.split("solution")[0] + "solution:\n" + "  - seq 9000 | head -c 30000\n" * 20)
        done = subprocess.run(
            [*RUN, str(task), "--model", "solution"], cwd=disk, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 1
        said = done.stderr.strip().splitlines()[-1]
        assert said.startswith("pilotfish: Cannot write")
        assert said.endswith("(No space left on device); free some space.")
        assert "Traceback" not in done.stderr
        (folder,) = (disk / "runs").iterdir()
        run = log.read_run(folder)
        assert list(run.warnings) == []
        assert isinstance(run.events[0], log.RunStarted)
        assert any(isinstance(event, log.Resulted) for event in run.events)
        assert (folder / "events.jsonl").read_bytes().endswith(b"\n")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_an_agent_that_is_killed_leaves_a_whole_log_and_nothing_else(tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text(SHELL.split("solution")[0] + "solution:\n  - echo first\n  - touch started; sleep 77\n")
    process = subprocess.Popen(
        [*RUN, str(task), "--model", "solution"], cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    while process.poll() is None and not list(tmp_path.glob("runs/*/workspace/started")):
        time.sleep(0.02)
    children = programs_of(process.pid)
    assert len(children) >= 5
    process.kill()
    process.wait()
    (folder,) = (tmp_path / "runs").iterdir()
    run = log.read_run(folder)
    assert list(run.warnings) == []
    assert isinstance(run.events[-1], log.Intended)
    wait_for(lambda: not living(children), 15)
