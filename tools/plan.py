"""The `plan` tool: a list of what is to be done, which the model keeps, and parts of it in fresh contexts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from pilotfish.tools.base import PlanItem, ToolArgs, ToolContext, ToolResult

_ITEMS, _TITLE, _SUBTASK = 50, 300, 20_000
_SIGNS = {"open": " ", "doing": ">", "done": "x", "dropped": "-"}


class Item(ToolArgs):
    """One thing to do."""

    title: str
    status: Literal["open", "doing", "done", "dropped"] = "open"

    @field_validator("title")
    @classmethod
    def _says_something(cls, title: str) -> str:
        if not title.strip() or len(title) > _TITLE:
            raise ValueError(f"has {len(title.strip())} characters, but must have 1 to {_TITLE}")
        return " ".join(title.split())


class PlanArgs(ToolArgs):
    """The whole list as it is from now on, or a sub-task."""

    items: list[Item] | None = Field(None, description="the whole list, in order; replaces the one before")
    subtask: str | None = Field(
        None,
        description="do this part in a fresh context that knows nothing else: say what, where, report",
    )

    @model_validator(mode="after")
    def _require_something(self) -> PlanArgs:
        if self.items is None and self.subtask is None:
            raise ValueError("`items` is missing; give the whole list, or a `subtask`")
        if self.items is not None and not 1 <= len(self.items) <= _ITEMS:
            raise ValueError(f"`items` has {len(self.items)} entries, but must have 1 to {_ITEMS}")
        if self.subtask is not None and not 1 <= len(self.subtask.strip()) <= _SUBTASK:
            size = len(self.subtask.strip())
            raise ValueError(f"`subtask` has {size} characters, but must have 1 to {_SUBTASK}")
        return self


class PlanTool:
    """Keeps nothing itself: the list is in the conversation and in the log."""

    name = "plan"
    description = "Keep a list of what is to be done, or hand a part of it over."
    Args = PlanArgs

    async def run(self, args: PlanArgs, context: ToolContext) -> ToolResult:
        """Take the list; then do the sub-task, whose summary is the result."""
        items = tuple(PlanItem(item.title, item.status) for item in args.items or ())
        text = plan_text(items) if items else ""
        if args.subtask is None:
            return ToolResult(True, text, plan=items)
        if context.hand_over is None:
            return ToolResult(False, "plan: a sub-task hands nothing over here; do it yourself.", plan=items)
        result = await context.hand_over(args.subtask.strip())
        return ToolResult(result.ok, "\n".join(part for part in (text, result.text) if part), plan=items)

    async def close(self) -> None:
        """Nothing to release."""


def plan_text(items: tuple[PlanItem, ...]) -> str:
    """A list as text: `[x]` is done, `[>]` is being done, `[-]` was dropped."""
    return "\n".join(f"[{_SIGNS[item.status]}] {item.title}" for item in items)
