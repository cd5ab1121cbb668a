"""What has become of a run is one word, in `pilotfish runs`, in the interface and on the replay page."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.control.runs import runs_in
from pilotfish.agent.replay.page import run_data
from pilotfish.agent.tui.model import Summary

START = log.RunStarted(run="r", pilotfish="0", command="run", model="m", options={})
FINISHED = log.RunEnded(status="finished")


def task(number: int = 0, *, parent: int = 0) -> log.Event:
    return log.EpisodeStarted(episode=number, task="t", instruction="i", parent=parent)


def end(passed: bool | None, how: str = "done", *, parent: int = 0) -> log.Event:
    return log.EpisodeEnded(episode=0, end=how, passed=passed, parent=parent)


CASES: dict[str, list[log.Event]] = {
    "starting": [],
    "broken off": [START, task()],
    "failed": [START, log.RunEnded(status="failed")],
    "stopped": [START, task(), end(None, "stopped"), log.RunEnded(status="interrupted")],
    "passed": [
        *[START, task(), task(parent=3), end(False, parent=3), log.Told(step=1, text='{"type":"run_ended"}')],
        *[end(None, "stopped"), log.RunEnded(status="interrupted"), log.Resumed(), end(True), FINISHED],
    ],
    "not passed": [START, task(), end(False), log.Networked(note="x" * 9000), FINISHED],
    "done": [START, task(), end(None), FINISHED],
    "ended": [START, task(), end(None, "step_limit"), FINISHED],
    "1/2 passed": [START, task(), end(True), task(1), task(1), end(False), FINISHED],
    "broken off again": [START, task(), end(True), FINISHED, log.Resumed()],
}


@pytest.mark.parametrize("word", CASES)
def test_a_run_has_one_word_everywhere(word: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    summary = Summary()
    with log.EventLog(folder) as events:
        for event in CASES[word]:
            events.append(event)
            summary.add(event)
        assert [run.outcome for run in runs_in(tmp_path)] == ["running"]
    (run,) = runs_in(tmp_path)
    assert run.outcome == summary.word == word.removesuffix(" again")
    if CASES[word]:
        found = log.read_run(folder)
        assert run_data(found)["status"] == (word if found.ended else "open")
