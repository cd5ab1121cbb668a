"""The monitors of an X display, and which of them a person means by a name or a number.

All numbers are pixels of the root window. The X server moves the pointer and hands out pictures in these same
pixels whatever is set for high resolution: Xft.dpi, GDK_SCALE and QT_SCALE_FACTOR only tell toolkits how
large to draw, and `xrandr --scale` makes the root window itself larger. So nothing here is ever multiplied.
The root window begins at (0, 0), also when a monitor lies left of the primary one: then the primary does not.
Of a monitor that a person declared beyond the root window, only what lies inside is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.sandbox.errors import SandboxError


@dataclass(frozen=True)
class Monitor:
    """One monitor: its name as `xrandr --listmonitors` tells it, its top left corner and its size."""

    name: str
    x: int
    y: int
    width: int
    height: int
    primary: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.width}x{self.height} pixels at {self.x}, {self.y})"

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """The four corner pixels."""
        right, bottom = self.x + self.width - 1, self.y + self.height - 1
        return (self.x, self.y), (right, self.y), (self.x, bottom), (right, bottom)


def read_monitors(display: Any) -> list[Monitor]:
    """The monitors that show something now, in the order of `xrandr --listmonitors`.

    display: an open python-xlib display with RandR 1.5.
    """
    root = display.screen().root
    size = root.get_geometry()
    found = []
    for one in root.xrandr_get_monitors(True).monitors:
        left, right = max(one.x, 0), min(one.x + one.width_in_pixels, size.width)
        top, bottom = max(one.y, 0), min(one.y + one.height_in_pixels, size.height)
        if left < right and top < bottom:
            name = display.get_atom_name(one.name)
            found.append(Monitor(name, left, top, right - left, bottom - top, primary=bool(one.primary)))
    return found


def pick_monitor(monitors: Sequence[Monitor], wanted: str | None) -> Monitor:
    """The monitor called `wanted`, or of that number in the list; None is the primary one, else the first.

    Raises `SandboxError` with the monitors there are.
    """
    if not monitors:
        raise SandboxError("The display has no monitor that shows anything; switch one on.")
    if wanted is None:
        return next((monitor for monitor in monitors if monitor.primary), monitors[0])
    for number, monitor in enumerate(monitors):
        if wanted in (monitor.name, str(number)):
            return monitor
    known = ", ".join(f"{number} {monitor}" for number, monitor in enumerate(monitors))
    raise SandboxError(f"There is no monitor '{wanted}'; choose from {known}.")
