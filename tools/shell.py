"""The `shell` tool: commands in the sandbox's shell, and answers to programs that ask something."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from pilotfish.sandbox import SandboxError, Shell, ShellResult
from pilotfish.tools.base import ToolArgs, ToolContext, ToolResult, narrowed
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
    """A command, or something for a program that waits; a time limit in seconds."""

    model_config = narrowed(anyOf=[{"required": [name]} for name in ("command", "input", "key")])

    command: str | None = Field(None, description="bash; what it sets stays for the next command")
    input: str | None = Field(None, description="a line for the program that waits")
    key: Literal["ctrl-c", "ctrl-d", "ctrl-z", "kill", "reset"] | None = Field(
        None, description="for the program, instead of Enter; kill ends it, reset the whole session"
    )
    session: str = Field("main", description="another shell: a name of letters, digits, - and _")
    timeout: Annotated[
        float,
        BeforeValidator(_timeout),
        WithJsonSchema({"type": "number"}),
    ] = Field(TIMEOUT_S, description=f"seconds, default {TIMEOUT_S:g}, at most {MAX_TIMEOUT_S:g}")

    @model_validator(mode="after")
    def _one_thing_to_do(self) -> ShellArgs:
        if self.command is None and self.input is None and self.key is None:
            raise ValueError("`command` is missing; or give `input` or `key` for a program that waits")
        if self.command is not None and (self.input is not None or self.key is not None):
            raise ValueError("`command` goes without `input` and `key`; those are for a program that waits")
        if self.key in ("kill", "reset") and self.input is not None:
            raise ValueError(f"`key` {self.key} ends what runs at once; leave out `input`")
        return self


class ShellTool:
    """Runs a command and reports its output, and its exit status when that is not 0.

    A command that fails is not an error of the tool: `ok` is False only when it could not run to its end.
    """

    name = "shell"
    description = "Run a shell command in the workspace."
    Args = ShellArgs

    async def run(self, args: ShellArgs, context: ToolContext) -> ToolResult:
        """Run the command, or type; what the sandbox refuses is a result."""
        if context.box is None:
            return ToolResult(False, "shell: there is no sandbox here; use the other tools.")
        if args.key == "reset":
            gone = await context.box.shell.restart(args.session)
            left = "" if gone else ", but not all that ran in it has ended yet"
            return ToolResult(gone, f"ok; session {args.session} starts anew in the workspace{left}")
        try:
            result = await _do(args, context.box.shell)
        except SandboxError as error:
            return ToolResult(False, f"shell: {error}")
        return _report(result, args)

    async def close(self) -> None:
        """Nothing to release: the shell belongs to the sandbox."""


async def _do(args: ShellArgs, shell: Shell) -> ShellResult:
    if args.command is not None:
        return await shell.run(args.command, args.timeout, session=args.session)
    if args.key == "kill":
        return await shell.kill(args.session)
    assert args.key != "reset"
    text = args.input or ""
    if args.input and args.key is None and not text.endswith("\n"):
        text += "\n"
    return await shell.type(text, args.key, args.timeout, args.session)


def _report(result: ShellResult, args: ShellArgs) -> ToolResult:
    """The output, then what else there is to say, a line each."""
    lines = [result.output.rstrip("\n")] if result.output.strip("\n") else []
    if result.background.strip("\n"):
        lines.insert(0, f"[before, from the background:\n{result.background.strip()}\n]")
    if result.waiting is not None:
        where = "" if args.session == "main" else f" in session {args.session}"
        hidden = " and will not show it" if result.hidden else ""
        lines.append(f"[{result.waiting} waits for input{hidden}{where}; give `input`, or `key` to stop it]")
    if result.exit_code:
        lines.append(f"exit status {result.exit_code}")
    if result.note:
        lines.append(f"[{result.note}]")
    if result.timed_out:
        advice = "run it with `&` and its output in a file"
        if args.timeout < MAX_TIMEOUT_S:
            advice = f"give a longer `timeout`, or {advice}"
        lines.append(f"shell: stopped after {args.timeout:g} s; {advice}.")
    lines += [f"[{sentence}]" for sentence in result.limits]
    if any("processes" in sentence for sentence in result.limits):
        lines.append("[`key` reset ends all that was ever started in this session]")
    return ToolResult(not result.timed_out, "\n".join(lines) or "ok")
