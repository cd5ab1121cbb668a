"""`python -m pilotfish.tasks.prove SUITE ...`: every task can be done, and is not done by doing nothing.

Plays each task's reference solution through the real tools in a sandbox of its own and prints a table. The
exit status is 0 if each failed before and passed after it.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from pilotfish.sandbox import Sandbox, SandboxError
from pilotfish.tasks.environment import End, Grade, StartError
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import load_suite
from pilotfish.tasks.reader import TaskError
from pilotfish.tasks.run_solution import play_solution, solution_calls


async def prove(task: Task) -> tuple[Grade, Grade]:
    """The verdict on doing nothing, and the one on the reference solution.

    Raises `TaskError`, `StartError` or `SandboxError`.
    """
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        nothing = await environment.grade(box, End("done", "Done."))
        end = await play_solution(task, box, environment)
        return nothing, await environment.grade(box, end)


async def _row(task: Task) -> tuple[bool, str]:
    if (reason := skip_reason(task)) is not None:
        return False, f"| {task.id} | | | | {reason} |"
    begun = time.monotonic()
    try:
        nothing, solved = await prove(task)
    except (TaskError, StartError, SandboxError) as error:
        return False, f"| {task.id} | | | | {error} |"
    good = nothing.passed is False and solved.passed is True
    calls, seconds = len(list(solution_calls(task))), time.monotonic() - begun
    verdicts = " | ".join("passes" if found.passed else "fails" for found in (nothing, solved))
    return good, f"| {task.id} | {verdicts} | {calls} | {seconds:.1f} |"


def main() -> int:
    """Prove the suites that were named."""
    reader = argparse.ArgumentParser(prog="python -m pilotfish.tasks.prove", description=__doc__)
    reader.add_argument("suites", nargs="+", help="suites that ship, or folders of tasks")
    suites = reader.parse_args().suites
    try:
        tasks = [task for suite in suites for task in load_suite(suite)]
    except TaskError as error:
        reader.error(str(error))
    print("| task | nothing | solution | calls | seconds |\n|---|---|---|---:|---:|")
    bad = 0
    for task in tasks:
        good, row = asyncio.run(_row(task))
        bad += not good
        print(row, flush=True)
    print(f"\n{len(tasks) - bad} of {len(tasks)} tasks fail before their solution and pass after it.")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
