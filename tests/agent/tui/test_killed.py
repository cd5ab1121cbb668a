"""`kill -9` of the interface at any moment, on terminals, beside one run that goes on."""

from __future__ import annotations

import asyncio
import os
import pty
import random
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.control.spawn import start_supervised
from pilotfish.agent.tui.bench import Terminal

KILLS, TERMINALS = 20, 2
START_S, SHOWN_S = 0.6, 0.4
"""Within which a kill comes: while it starts, and while it shows the run."""


class _Steps:
    """Lets the run take its steps, one by one: each waits for a file."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._taken = 0
        self._lock = threading.Lock()

    def next(self) -> None:
        """Let it take one more."""
        with self._lock:
            self._taken += 1
            (self._workspace / f"go-{self._taken}").touch()


def _task(folder: Path) -> Path:
    """A task whose steps wait to be let on."""
    steps = [
        f"  - until [ -e go-{number} ]; do sleep 0.05; done; echo part-{number}"
        for number in range(1, KILLS + 1)
    ]
    text = (
        "instruction: Go on.\ntools: [shell]\nenvironment: {kind: shell}\nlimits: {steps: 40, seconds: 600}\n"
    )
    text += "graders: [{kind: file_matches, path: go-1, pattern: ''}]\nsolution:\n"
    (folder / "task.yaml").write_text(text + "\n".join(steps) + "\n")
    return folder / "task.yaml"


def _modes(name: str) -> list[Any]:
    follower = os.open(name, os.O_RDWR | os.O_NOCTTY)
    try:
        return termios.tcgetattr(follower)
    finally:
        os.close(follower)


def _modes_of_a_new_one() -> list[Any]:
    leader, follower = pty.openpty()
    try:
        return _modes(os.ttyname(follower))
    finally:
        os.close(leader)
        os.close(follower)


def _kill_again_and_again(run: Path, steps: _Steps, seed: int) -> Terminal:
    """Start and kill on one terminal; returns it."""
    moments = random.Random(seed)
    terminal = None
    for number in range(KILLS // TERMINALS):
        terminal = Terminal(["attach", str(run)], columns=100, rows=50, on=terminal)
        if number == 5:
            terminal.wait(r"row [\d,]+ of")
        else:
            terminal.rest(moments.uniform(0, START_S))
        steps.next()
        terminal.rest(moments.uniform(0, SHOWN_S))
        terminal.process.kill()
        terminal.process.wait()
    assert terminal is not None
    return terminal


@pytest.mark.timeout(240)
def test_killing_the_interface_harms_neither_the_run_nor_the_terminal(tmp_path: Path) -> None:
    words = ["run", str(_task(tmp_path)), "--model", "solution"]
    run = asyncio.run(start_supervised(words, tmp_path / "runs"))
    steps = _Steps(run / "workspace")
    with ThreadPoolExecutor(TERMINALS) as pool:
        jobs = [pool.submit(_kill_again_and_again, run, steps, seed) for seed in range(TERMINALS)]
        killed = [job.result() for job in jobs]
    end = time.monotonic() + 60
    while not (read := log.read_run(run)).ended and time.monotonic() < end:
        time.sleep(0.1)
    assert read.ended is not None
    assert read.ended.status == "finished"
    results = [event for event in read.events if isinstance(event, log.Resulted)]
    assert [f"part-{number}" in event.text for number, event in enumerate(results, 1)] == [True] * KILLS
    written = (run / log.EVENTS).read_bytes()
    for terminal in killed:
        again = Terminal(["attach", str(run)], on=terminal)
        again.wait("passed")
        for number in range(1, KILLS + 1):
            again.wait(rf"go-{number} ")
        again.press("q")
        again.wait_for_end()
        assert again.process.returncode == 0
        assert _modes(again.name) == _modes_of_a_new_one()
        again.close()
    assert (run / log.EVENTS).read_bytes() == written
