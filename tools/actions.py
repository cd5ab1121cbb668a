"""The arguments of the `computer` tool: M3's action names on M3's grid.

The names are those the published M3 computer-use agent was evaluated with. Spellings that M3 and other
models are known to emit are accepted here and are not part of the schema.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from pilotfish.tools.base import ToolArgs, exactly
from pilotfish.tools.grid import grid_point
from pilotfish.tools.words import seconds, short

Action = Literal[
    "key",
    "type",
    "mouse_move",
    "left_click",
    "right_click",
    "middle_click",
    "double_click",
    "triple_click",
    "left_click_drag",
    "scroll",
    "wait",
    "screenshot",
    "hold_key",
    "left_mouse_down",
    "left_mouse_up",
    "cursor_position",
    "zoom",
    "done",
    "infeasible",
]
Direction = Literal["up", "down", "left", "right"]

ACTIONS: tuple[str, ...] = get_args(Action)
LONG_PRESS_S = 1.0

_ALIASES = {
    "click": "left_click",
    "tap": "left_click",
    "left_lick": "left_click",
    "right_lick": "right_click",
    "drag": "left_click_drag",
    "move": "mouse_move",
    "hover": "mouse_move",
    "press": "key",
    "keypress": "key",
    "hotkey": "key",
    "zoom_in": "zoom",
    "fail": "infeasible",
    "finished": "done",
    "call_user": "call_user",
    "left_press": "left_press",
    "terminate": "terminate",
}

_GRID = {"type": "integer", "minimum": 0, "maximum": 1000}
_INTEGERS = {"type": "array", "items": {"type": "integer"}}
Point = Annotated[
    tuple[int, int],
    BeforeValidator(grid_point),
    exactly(_INTEGERS, items=_GRID, minItems=2, maxItems=2),
]


def _region(value: object) -> tuple[int, int, int, int]:
    wrong = (
        f"is {short(value)}, but must be [x0, y0, x1, y1] with x0 < x1 and y0 < y1, integers from 0 to 1000"
    )
    if not isinstance(value, list | tuple) or len(value) != 4:
        raise ValueError(wrong)
    try:
        (x0, y0), (x1, y1) = grid_point(value[:2]), grid_point(value[2:])
    except ValueError:
        raise ValueError(wrong) from None
    if x0 >= x1 or y0 >= y1:
        raise ValueError(wrong)
    return x0, y0, x1, y1


def _amount(value: object) -> int:
    try:
        amount = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
        if isinstance(value, float) and value.is_integer():
            amount = int(value)
    except ValueError:
        amount = None
    if amount is None or not 0 <= amount <= 100:
        raise ValueError(f"is {short(value)}, but must be an integer of wheel clicks from 0 to 100")
    return amount


Region = Annotated[
    tuple[int, int, int, int],
    BeforeValidator(_region),
    exactly(_INTEGERS, items=_GRID, minItems=4, maxItems=4),
]
Amount = Annotated[int, BeforeValidator(_amount), exactly({"type": "integer"}, minimum=0, maximum=100)]
Seconds = Annotated[float, BeforeValidator(seconds), exactly({"type": "number"}, minimum=0)]


class ComputerArgs(ToolArgs):
    """One action. Points are on the grid 0..1000, durations in seconds, scroll amounts in wheel clicks."""

    action: Action
    coordinate: Point | None = Field(None, description="[x,y], 0..1000")
    start_coordinate: Point | None = None
    text: str | None = Field(None, description="text, or keys such as ctrl+s")
    scroll_direction: Direction | None = None
    scroll_amount: Amount | None = Field(None, description="wheel clicks")
    duration: Seconds | None = Field(None, description="seconds")
    region: Region | None = Field(None, description="[x0,y0,x1,y1]")

    @model_validator(mode="before")
    @classmethod
    def _accept_known_spellings(cls, data: Any) -> Any:
        """Turn the spellings of `_ALIASES` into the schema's."""
        if not isinstance(data, dict):
            return data
        data = in_schema_spelling(data)
        if data.get("action") == "call_user":
            raise ValueError("nobody can be called here; act alone, or end with `done` or `infeasible`")
        return data

    @model_validator(mode="after")
    def _require_what_the_action_needs(self) -> ComputerArgs:
        needs = {
            "key": "text",
            "type": "text",
            "hold_key": "text",
            "mouse_move": "coordinate",
            "left_click_drag": "coordinate",
            "scroll": "scroll_direction",
        }
        need = needs.get(self.action)
        if need and getattr(self, need) is None:
            examples = {"coordinate": "[500, 500]", "text": "'ctrl+s'", "scroll_direction": "'down'"}
            raise ValueError(f"`{self.action}` needs `{need}`, for example {examples[need]}")
        return self


def in_schema_spelling(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments with its action, and what goes with it, as the schema has it."""
    data = dict(arguments)
    if isinstance(data.get("action"), str):
        data["action"] = canonical_action(data["action"])
    if data.get("action") == "terminate":
        status = str(data.pop("status", "success")).strip().lower()
        data["action"] = "infeasible" if status in {"failure", "fail", "failed", "infeasible"} else "done"
    elif data.get("action") == "left_press":
        data.update(action="left_click", duration=LONG_PRESS_S)
    return data


def canonical_action(name: str) -> str:
    """The schema's spelling of an action: `Left Click`, `left_ click` and `left_clik` are `left_click`.

    One that is not close to exactly one action is returned as it is, for the error to show.
    """
    plain = "_".join(name.strip().lower().replace("-", " ").replace("_", " ").split())
    if plain in ACTIONS:
        return plain
    if plain in _ALIASES:
        return _ALIASES[plain]
    near = difflib.get_close_matches(plain, ACTIONS, n=2, cutoff=0.94)
    return near[0] if len(near) == 1 else name
