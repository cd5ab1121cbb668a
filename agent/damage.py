"""Which parts of the display changed: told by the X server (XDamage), or found by comparing frames.

Both watchers answer the same question, "which rectangles changed since I last asked?". XDamage costs nothing
while the screen is still; comparing costs one grab per poll and is used only where the server lacks the
extension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

SMALL_AREA = 2_500
"""Pixels. A caret is about 2x20, the digits of a panel clock about 60x20; a button is larger."""
BLINK_GAP_S = 0.25
"""A caret or a clock repaints a place less often than this; an animation repaints it more often."""


@dataclass(frozen=True)
class Rect:
    """A rectangle in display pixels."""

    x: int
    y: int
    width: int
    height: int

    @property
    def area(self) -> int:
        return self.width * self.height

    def overlaps(self, other: Rect) -> bool:
        """Whether the two share at least one pixel."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


@dataclass
class Blinks:
    """Tells a blinking caret or a ticking clock from motion, so that it cannot keep a screen from settling.

    A small change at a place that last changed at least `BLINK_GAP_S` ago, and did so before, is a blink. The
    first change at a place is always motion, and so is anything larger or faster.
    """

    seen: list[tuple[Rect, float]] = field(default_factory=list)

    def is_motion(self, rect: Rect, at_s: float) -> bool:
        """Note a change of `rect` at the time `at_s` and say whether it must restart the quiet time."""
        if rect.area > SMALL_AREA:
            return True
        for index, (place, last_s) in enumerate(self.seen):
            if place.overlaps(rect):
                self.seen[index] = (rect, at_s)
                return at_s - last_s < BLINK_GAP_S
        self.seen.append((rect, at_s))
        return True


class Watcher(Protocol):
    """Reports changed rectangles of the whole display."""

    poll_s: float | None
    """Seconds between looks when the watcher cannot be waited for; None when `fileno` becomes readable."""

    def fileno(self) -> int | None: ...

    def changes(self, frame: npt.NDArray[np.uint8] | None) -> list[Rect]:
        """The rectangles that changed since the last call. `frame` is the newest grab, if there is one."""
        ...

    def rearm(self) -> None:
        """Forget what was reported so far; must be called just before a grab."""
        ...

    def begin(self, frame: npt.NDArray[np.uint8]) -> None:
        """Take `frame`, the grab after `rearm`, as what later changes are changes of."""
        ...

    def close(self) -> None: ...


def is_composited(display_name: str) -> bool:
    """Whether a compositing manager paints the screen.

    What it paints by the GPU is not always reported as damage, so such a screen has to be compared. Source:
    Extended Window Manager Hints, _NET_WM_CM_Sn. Raises `Xlib.error.DisplayError` without a display.
    """
    from Xlib import X, display

    connection: Any = display.Display(display_name)
    try:
        number = connection.get_default_screen()
        owner = connection.get_selection_owner(connection.intern_atom(f"_NET_WM_CM_S{number}"))
        return bool(owner != X.NONE)
    finally:
        connection.close()


class XDamageWatcher:
    """Changes as the X server reports them (X Damage extension 1.1, report level DeltaRectangles).

    With delta rectangles the server reports a pixel once until the damage is subtracted, so a busy client
    cannot flood this connection.
    """

    poll_s: float | None = None

    def __init__(self, display_name: str) -> None:
        """Raises `Xlib.error.DisplayError` without a display and `LookupError` without the extension."""
        from Xlib import display
        from Xlib.ext import damage

        self._display: Any = display.Display(display_name)
        try:
            if not self._display.has_extension("DAMAGE"):
                raise LookupError("DAMAGE")
            self._display.damage_query_version()
            root = self._display.screen().root
            self._damage: Any = root.damage_create(damage.DamageReportDeltaRectangles)
            self._display.sync()
            self._event_type: int = self._display.extension_event.DamageNotify
        except BaseException:
            self._display.close()
            raise

    def fileno(self) -> int | None:
        return int(self._display.fileno())

    def changes(self, frame: npt.NDArray[np.uint8] | None) -> list[Rect]:
        rects = []
        while self._display.pending_events():
            event = self._display.next_event()
            if event.type == self._event_type:
                area = event.area
                rects.append(Rect(int(area.x), int(area.y), int(area.width), int(area.height)))
        return rects

    def rearm(self) -> None:
        self._display.damage_subtract(self._damage, 0, 0)
        # The grab goes over another connection: without the round trip it could come before the subtraction,
        # and what is drawn between the two would never be reported.
        self._display.sync()

    def begin(self, frame: npt.NDArray[np.uint8]) -> None:
        return None

    def close(self) -> None:
        self._display.close()


class PollingWatcher:
    """Changes found by comparing each frame with the one before: the slow twin of `XDamageWatcher`."""

    poll_s: float | None = 0.015

    def __init__(self, region: Rect) -> None:
        self._region = region
        self._last: npt.NDArray[np.uint8] | None = None

    def fileno(self) -> int | None:
        return None

    def changes(self, frame: npt.NDArray[np.uint8] | None) -> list[Rect]:
        if frame is None:
            return []
        last, self._last = self._last, frame
        if last is None or np.array_equal(last, frame):
            return []
        differs = (last != frame).any(axis=2)
        rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
        top, left = int(rows[0]), int(columns[0])
        width, height = int(columns[-1]) - left + 1, int(rows[-1]) - top + 1
        return [Rect(self._region.x + left, self._region.y + top, width, height)]

    def rearm(self) -> None:
        return None

    def begin(self, frame: npt.NDArray[np.uint8]) -> None:
        self._last = frame

    def close(self) -> None:
        return None
