"""The `shell` tool: one command in the sandbox's shell."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from pilotfish.sandbox import SandboxError, ShellResult
from pilotfish.tools.base import ToolArgs, ToolContext, ToolResult
from pilotfish.tools.words import seconds, short

TIMEOUT_S = 60.0
"""How long a command may take when it does not say, in seconds."""
MAX_TIMEOUT_S = 600.0
"""The longest time a command may ask for, in seconds."""


def _timeout(value: object) -> float:
    number = seconds(value)
    if not 0 < number <= MAX_TIMEOUT_S:
        raise ValueError(f"is {short(value)}, but must be above 0 and at most {MAX_TIMEOUT_S:g} seconds")
    return number


class ShellArgs(ToolArgs):
    """A command and its time limit in seconds."""

    command: str = Field(description="bash; folder and variables stay for the next command")
    timeout: Annotated[
        float,
        BeforeValidator(_timeout),
        WithJsonSchema({"type": "number"}),
    ] = Field(TIMEOUT_S, description=f"seconds, default {TIMEOUT_S:g}, at most {MAX_TIMEOUT_S:g}")


class ShellTool:
    """Runs a command and reports its output, and its exit status when that is not 0.

    A command that fails is not an error of the tool: `ok` is False only when it could not run to its end.
    """

    name = "shell"
    description = "Run a shell command in the workspace."
    Args = ShellArgs

    async def run(self, args: ShellArgs, context: ToolContext) -> ToolResult:
        """Run the command; what the sandbox refuses is a result."""
        if context.box is None:
            return ToolResult(False, "shell: there is no sandbox here; use the other tools.")
        try:
            result = await context.box.shell.run(args.command, timeout_s=args.timeout)
        except SandboxError as error:
            return ToolResult(False, f"shell: {error}")
        return _report(result, args.timeout)

    async def close(self) -> None:
        """Nothing to release: the shell belongs to the sandbox."""


def _report(result: ShellResult, timeout_s: float) -> ToolResult:
    output = result.output.rstrip("\n")
    if result.timed_out:
        advice = "give a longer `timeout`, or run it with `&` and its output in a file"
        if timeout_s >= MAX_TIMEOUT_S:
            advice = "run it with `&` and its output in a file"
        said = f"{output}\n" if output else ""
        return ToolResult(False, f"{said}shell: stopped after {timeout_s:g} s; {advice}.")
    if result.exit_code:
        said = f"{output}\n" if output else ""
        return ToolResult(True, f"{said}exit status {result.exit_code}")
    return ToolResult(True, output or "ok")
