"""Whole runs with models that really choose: a small one behind a real server, and the one that ships.

Neither can do the work; what is held is that a run ends by the model's choice or by a limit, never by the
protocol between them and the loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.code import CodeTarget, run_code
from pilotfish.agent.run import Target, run_target
from pilotfish.agent.settings import Settings

from ..real_server import served_small_model
from ..sandbox.repositories import make

BY_CHOICE = {"answered", "done", "infeasible", "step_limit", "time_limit", "token_limit"}
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "import unittest\nfrom calc import add\n\n\nclass Calc(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n",
}


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with served_small_model(8192) as url:
        yield f"openai:{url}#SmolLM2"


def settings(model: str, runs: Path, **more: Any) -> Settings:
    return Settings(model=model, record_dir=runs, answer_tokens=120, max_steps=3, max_seconds=40, **more)


def ended(result: dict[str, Any]) -> log.RunLog:
    """The log of a run that has ended by choice."""
    run = log.read_run(Path(result["folder"]))
    ends = [event for event in run.events if isinstance(event, log.EpisodeEnded)]
    assert {end.end for end in ends} <= BY_CHOICE, ends
    assert run.ended is not None
    assert run.ended.status == "finished"
    assert not run.warnings
    json.dumps(result)
    return run


async def test_a_small_served_model_works_on_a_repository(model: str, tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", FILES)
    target = CodeTarget(str(repo), "Mend add in calc.py.", attempts=2, context_tokens=400)
    run = ended(await run_code(target, settings(model, tmp_path / "runs")))
    laid = next(event for event in run.events if isinstance(event, log.LaidOut))
    assert laid.counted == "estimate"
    assert any(isinstance(event, log.Answered) for event in run.events)


@pytest.mark.parametrize("task", ["add-nearest", "add-folder-completion"])
async def test_the_model_that_ships_fails_a_repository_task_by_choice(task: str, tmp_path: Path) -> None:
    few = settings("nano", tmp_path / "runs").model_copy(update={"answer_tokens": 40})
    run = ended(await run_target(Target(task=f"repository/{task}"), few))
    assert any(isinstance(event, log.Answered) for event in run.events)


async def test_a_small_served_model_does_a_task(model: str, tmp_path: Path) -> None:
    target = Target(instruction="Write hello into hello.txt with the shell.", workspace=None)
    ended(await run_target(target, settings(model, tmp_path / "runs", temperature=0.7)))
