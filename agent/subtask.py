"""Sub-tasks: a part of the work in a conversation of its own, whose summary comes back.

The part has the same model, sandbox and policy, tools of its own (so that the one who handed it over is told
when a file is not as it saw it), no sub-tasks, and at most `STEPS` calls; its time and its tokens are
those of the whole. Its records are in the same log, with the ordinal of the call as their `parent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pilotfish.agent.conversation import Conversation
from pilotfish.agent.limits import Budget
from pilotfish.agent.loop import Episode
from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tasks.environment import End, Grade
from pilotfish.tools.base import ToolResult
from pilotfish.tools.grid import Screen
from pilotfish.tools.registry import make_tools

STEPS = 40
NAME = "subtask"
_SUMMARY = 8_000
_TO_END_S = 0.5
"""What a part leaves of the time of the whole, so that it ends by itself and its end is on record."""
_RULES = (
    "This is one part of a larger task; nothing else of it is known to you. The work is in the workspace. "
    "When you have finished, answer without a call: what you found or changed, and where."
)


@dataclass(frozen=True)
class _Part:
    """The environment of a sub-task: the sandbox as it is."""

    text: str

    def sandbox_spec(self) -> SandboxSpec:
        return SandboxSpec(desktop=False)

    def screen(self, box: Sandbox) -> Screen | None:
        return None

    async def start(self, box: Sandbox) -> str:
        return f"{self.text}\n\n{_RULES}"

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def grade(self, box: Sandbox, end: End) -> Grade:
        return Grade(0.0, None, "A sub-task has no grader.")


async def hand_over(whole: Episode, text: str) -> ToolResult:
    """Have a part done and return its summary."""
    budget = whole.budget
    seconds = max(0.0, budget.remaining_s - _TO_END_S)
    own = Budget(STEPS, seconds, max(1, budget.tokens - budget.used_tokens), whole=budget)
    part = replace(
        whole,
        task=NAME,
        environment=_Part(text),
        tools=make_tools([tool.name for tool in whole.tools if tool.name != "plan"]),
        events=whole.events.under(whole.events.last),
        budget=own,
        conversation=Conversation(max_clips=whole.conversation.max_clips, block=whole.conversation.block),
        resumed=None,
        review=None,
        repository=None,
        hand_over=None,
        keeps_tools=False,
        is_part=True,
    )
    try:
        outcome = await part.run()
    finally:
        budget.used_tokens += own.used_tokens
        for tool in part.tools:  # one that was cancelled has not let go of them
            await tool.close()
    good = outcome.end in ("answered", "done")
    steps = f"{outcome.steps} step{'' if outcome.steps == 1 else 's'}"
    how = f"[the sub-task has ended: {outcome.end}, {steps}]"
    told = outcome.answer.strip() if good else outcome.reason
    if len(told) > _SUMMARY:
        told = f"{told[:_SUMMARY]}\n[{len(told) - _SUMMARY} more characters]"
    return ToolResult(good, f"{how}\n{told}")
