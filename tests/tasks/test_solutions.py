"""Every task that ships can be done with the real tools, and is not done by doing nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environment import End
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import find_task, list_suites, load_suite
from pilotfish.tasks.miniwob_tasks import miniwob_task
from pilotfish.tasks.reader import TaskError
from pilotfish.tasks.run_solution import play_solution, run_solution

OTHERS = [
    task
    for suite in list_suites()
    if suite not in ("miniwob", "web", "repository")
    for task in load_suite(suite)
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web_box() -> AsyncIterator[Sandbox]:
    """One browser for all web tasks of the default screen: starting it takes longer than playing them."""
    async with Sandbox.open(environment_for(find_task("web/save-name")).sandbox_spec()) as box:
        yield box


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("task", load_suite("web"), ids=lambda task: task.name)
async def test_web_tasks(task: Task, web_box: Sandbox) -> None:
    assert environment_for(task).sandbox_spec() == web_box.spec
    await nothing_fails_and_the_solution_passes(task, web_box)


@pytest.mark.parametrize("task", OTHERS, ids=lambda task: task.name)
async def test_other_tasks(task: Task) -> None:
    if reason := skip_reason(task):
        pytest.skip(reason)
    async with Sandbox.open(environment_for(task).sandbox_spec()) as box:
        await nothing_fails_and_the_solution_passes(task, box)


async def nothing_fails_and_the_solution_passes(task: Task, box: Sandbox) -> None:
    environment = environment_for(task)
    assert await environment.start(box) == task.instruction.strip()
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
    with pytest.raises(TaskError, match=r"click-test is of .*, which has no reference solutions"):
        await run_solution(miniwob_task("click-test"))
