"""Play a task's reference solution through the real tools: what shows that a task can be done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pilotfish.sandbox import Sandbox
from pilotfish.tasks.edits.environment import solution_of
from pilotfish.tasks.environment import End, Environment, Grade
from pilotfish.tasks.environment_fields import EditsEnvironment, RepositoryEnvironment
from pilotfish.tasks.environments import environment_for
from pilotfish.tasks.format import AnswerStep, CallStep, Task, UndoStep
from pilotfish.tasks.reader import TaskError
from pilotfish.tasks.windows import settle
from pilotfish.tools.base import ToolContext, ToolResult, validate
from pilotfish.tools.registry import make_tools


def solution_calls(task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tool calls of the reference solution, (tool, arguments) each; a plain line is a shell command.

    Raises `TaskError` if the task has no solution.
    """
    if isinstance(task.environment, EditsEnvironment):
        yield from solution_of(task.environment)[0]
        return
    if not task.solution:
        if task.environment.kind == "miniwob":
            raise TaskError(
                f"{task.name} is of MiniWoB++, which has no reference solutions; choose another --model."
            )
        raise TaskError(f"{task.name} has no reference solution; add one under solution.")
    for step in task.solution:
        if isinstance(step, str):
            yield "shell", {"command": step}
        elif isinstance(step, CallStep):
            yield step.tool, dict(step.arguments)
        elif isinstance(step, UndoStep) and isinstance(task.environment, RepositoryEnvironment):
            for change in reversed(task.environment.changes):
                texts = {"old_text": change.replace, "new_text": change.find}
                yield "edit", {"command": "replace", "path": change.path, **texts}


def solution_answer(task: Task) -> str:
    """The final message of the reference solution; empty if it has none."""
    if isinstance(task.environment, EditsEnvironment):
        return solution_of(task.environment)[1]
    return next((step.answer for step in task.solution if isinstance(step, AnswerStep)), "")


async def play_solution(task: Task, box: Sandbox, environment: Environment) -> End:
    """Run the solution's calls in a task that has been started; returns how it ended.

    Raises `TaskError` for a call that does not work, because then the task file is wrong.
    """
    screen = environment.screen(box)
    context = ToolContext(box, screen)
    tools = {tool.name: tool for tool in make_tools(sorted({name for name, _ in solution_calls(task)}))}
    end = End("done", solution_answer(task))
    try:
        for number, (name, arguments) in enumerate(solution_calls(task), start=1):
            checked = validate(tools[name], arguments)
            result = checked if isinstance(checked, ToolResult) else await tools[name].run(checked, context)
            if not result.ok:
                raise TaskError(f"{task.name}: step {number} of the solution fails: {result.text}")
            if result.end is not None:
                end = End(result.end, end.answer)
            if screen is not None:
                await settle(screen)
    finally:
        for tool in tools.values():
            await tool.close()
    return end


async def run_solution(task: Task) -> Grade:
    """Open a sandbox, play the reference solution in it and return its grade."""
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        end = await play_solution(task, box, environment)
        return await environment.grade(box, end)
