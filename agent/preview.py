"""What a call would do, as far as that can be shown to the one who is asked: the diff of an edit, the pixel
under a click.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotfish.sandbox import Sandbox
from pilotfish.tools.base import Tool, ToolResult, validate
from pilotfish.tools.edit import EditTool
from pilotfish.tools.edit_preview import edit_diff
from pilotfish.tools.grid import Screen, grid_to_pixel


def preview(
    tool: Tool[Any], arguments: Mapping[str, Any], box: Sandbox, screen: Screen | None
) -> tuple[str, tuple[int, int] | None]:
    """A unified diff ('' where none can be told) and the pixel of the screen that is meant, if any."""
    checked = validate(tool, arguments)
    if isinstance(checked, ToolResult):
        return "", None
    if isinstance(tool, EditTool):
        return edit_diff(tool, checked, box.files), None
    point = getattr(checked, "coordinate", None)
    if screen is None or point is None:
        return "", None
    x, y = grid_to_pixel(point, screen)
    return "", (x - screen.x, y - screen.y)
