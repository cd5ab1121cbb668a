"""The tools there are, by the name a task file and the model use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pilotfish.tools.base import Tool
from pilotfish.tools.browser import BrowserTool
from pilotfish.tools.computer import ComputerTool
from pilotfish.tools.edit import EditTool
from pilotfish.tools.index.tool import IndexTool
from pilotfish.tools.plan import PlanTool
from pilotfish.tools.shell import ShellTool
from pilotfish.tools.words import one_of, short

TOOLS: dict[
    str,
    type[ComputerTool]
    | type[ShellTool]
    | type[EditTool]
    | type[BrowserTool]
    | type[IndexTool]
    | type[PlanTool],
] = {
    "computer": ComputerTool,
    "shell": ShellTool,
    "edit": EditTool,
    "browser": BrowserTool,
    "index": IndexTool,
    "plan": PlanTool,
}


def make_tools(names: Sequence[str]) -> list[Tool[Any]]:
    """Fresh tools of these names, in their order; raises ValueError for a name that is not one of `TOOLS`."""
    for name in names:
        if name not in TOOLS:
            raise ValueError(f"there is no tool {short(name)}; {one_of(name, TOOLS)}.")
    return [TOOLS[name]() for name in names]
