"""The steps experts yield: an action on the model's grid, its target, and whether to imitate it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from pilotfish.tasks.episodes.pages import Screen, Target


@dataclass(frozen=True)
class Step:
    """One action. `box` is the target in device pixels; `train` is false for a deliberate slip."""

    action: dict[str, Any]
    box: list[int] | None = None
    train: bool = True


Steps = AsyncIterator[Step]
Expert = Callable[[Screen], Steps]


def click(target: Target, kind: str = "left_click") -> Step:
    """Click (or `double_click`, `mouse_move`) the target's point."""
    return Step({"action": kind, "coordinate": target.grid}, target.device_box)


def type_text(text: str) -> Step:
    """Type characters into whatever has the focus."""
    return Step({"action": "type", "text": text})


def key(text: str) -> Step:
    """Press one key or combination, for instance `Return` or `ctrl+a`."""
    return Step({"action": "key", "text": text})


def drag(start: Target, end: Target) -> Step:
    """Drag from one point to another."""
    action = {"action": "left_click_drag", "start_coordinate": start.grid, "coordinate": end.grid}
    return Step(action, start.device_box)


def scroll(target: Target, direction: str, amount: int) -> Step:
    """Turn the wheel `amount` clicks over the target."""
    action = {
        "action": "scroll",
        "coordinate": target.grid,
        "scroll_direction": direction,
        "scroll_amount": amount,
    }
    return Step(action, target.device_box)


def wait(seconds: int) -> Step:
    """Let the page work."""
    return Step({"action": "wait", "duration": seconds})


def done() -> Step:
    """Say that the task is finished."""
    return Step({"action": "done"})


def give_up() -> Step:
    """Say that the task cannot be done."""
    return Step({"action": "infeasible"})
