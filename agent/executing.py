"""Executes a call: checked, approved, the workspace kept, the intent on record, the screen watched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pilotfish.agent.approval import Approval, Approved
from pilotfish.agent.control.steering import Steering
from pilotfish.agent.health import Health
from pilotfish.agent.keeping import Keeper
from pilotfish.agent.limits import Budget, FormatError, MachineBroke, TimeLimit
from pilotfish.agent.preview import preview
from pilotfish.agent.recorder import CaptureError, Observed
from pilotfish.agent.transcript import Transcript
from pilotfish.agent.view import View
from pilotfish.model.protocol import CallChunk
from pilotfish.sandbox import Sandbox, SandboxError
from pilotfish.tools.base import Tool, ToolContext, ToolResult, find_tool, misfit, validate


@dataclass(eq=False)
class Executor:
    """The tools of one episode at work. part: has a part of the work done elsewhere; see `ToolContext`.
    or_stopped: awaits, or raises what ends the episode.
    """

    tools: Sequence[Tool[Any]]
    box: Sandbox
    view: View
    health: Health
    budget: Budget
    approval: Approval
    steering: Steering
    keeper: Keeper | None
    transcript: Transcript
    part: Callable[[str], Awaitable[ToolResult]] | None
    or_stopped: Callable[..., Awaitable[Any]]

    async def execute(self, said: CallChunk, step: int) -> tuple[ToolResult, Observed | None]:
        """Raises `NotExecuted` for a call that does not run, and what ends the episode."""
        tool = find_tool(self.tools, said.call.name)
        if isinstance(tool, ToolResult):
            raise FormatError(tool.text)
        arguments = validate(tool, said.call.arguments)
        if isinstance(arguments, ToolResult):
            raise FormatError(arguments.text)
        approved = await self._approved(said, tool, step)
        if approved.call is not said.call:
            said = replace(said, call=approved.call)
            arguments = validate(tool, said.call.arguments)
            assert not isinstance(arguments, ToolResult), "it was checked when it was approved"
        if self.keeper is not None:
            await self.or_stopped(self.keeper.before(said.call, step))
        self.view.follow()
        self.transcript.intent(step, said)
        self.steering.change(phase="acting")
        result, seen = await self._run(tool, arguments)
        return replace(result, text=f"{approved.note}\n{result.text}") if approved.note else result, seen

    async def _approved(self, said: CallChunk, tool: Tool[Any], step: int) -> Approved:
        """What may run of a call. Raises `Denied`."""

        def check(arguments: dict[str, Any]) -> str | None:
            return misfit(tool, arguments, said.call.arguments)

        look = partial(preview, tool, said.call.arguments, self.box, self.view.screen)
        with self.budget.held():
            approved: Approved = await self.or_stopped(self.approval.decide(said.call, step, check, look))
        return approved

    async def _run(self, tool: Tool[Any], arguments: Any) -> tuple[ToolResult, Observed | None]:
        context = ToolContext(self.box, self.view.screen, self.part)
        try:
            async with self.budget.time_left():
                done: tuple[ToolResult, Observed | None] = await self.or_stopped(
                    self.view.watch(lambda: tool.run(arguments, context))
                )
                return done
        except TimeoutError:
            raise TimeLimit(f"The limit of {self.budget.seconds:g} s was reached during a call.") from None
        except (SandboxError, CaptureError) as error:
            raise MachineBroke(self.health.trouble or str(error)) from error

    async def with_limits(self, result: ToolResult) -> ToolResult:
        """Add which limits of the sandbox were reached meanwhile, if the tool has not said so itself."""
        hit = await self.box.limits_hit()
        return (
            replace(result, text="\n".join([result.text, *(f"[{told}]" for told in hit)])) if hit else result
        )
