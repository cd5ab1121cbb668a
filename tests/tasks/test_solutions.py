"""Every task that ships can be done with the real tools, and is not done by doing nothing."""

from __future__ import annotations

import pytest

from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environment import End
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import find_task, list_suites, load_suite
from pilotfish.tasks.miniwob_tasks import miniwob_task
from pilotfish.tasks.reader import TaskError
from pilotfish.tasks.run_solution import play_solution, run_solution

OWN = [task for suite in list_suites() if suite != "miniwob" for task in load_suite(suite)]


@pytest.mark.parametrize("task", OWN, ids=lambda task: task.name)
async def test_doing_nothing_fails_and_the_solution_passes(task: Task) -> None:
    if reason := skip_reason(task):
        pytest.skip(reason)
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        instruction = await environment.start(box)
        assert instruction == task.instruction.strip()
        nothing = await environment.grade(box, End("done", "Done."))
        assert (nothing.score, nothing.passed) == (0.0, False), nothing.reason
        end = await play_solution(task, box, environment)
        solved = await environment.grade(box, end)
        assert (solved.score, solved.passed) == (1.0, True), solved.reason


async def test_a_solution_that_does_not_work_is_an_error_of_the_task() -> None:
    task = find_task("shell/largest-file")
    step = {"tool": "shell", "arguments": {"comand": "true"}}
    broken = Task.model_validate(task.model_dump() | {"solution": [step]})
    with pytest.raises(TaskError, match=r"step 1 of the solution fails: .*comand"):
        await run_solution(broken)
    with pytest.raises(TaskError, match="miniwob/click-test has no reference solution"):
        await run_solution(miniwob_task("click-test"))
