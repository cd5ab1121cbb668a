"""The strip on a person's own display that says who moves the mouse there, and how to stop it.

It is above all windows and lets every click through. It is in the pictures that the model gets, because they
are what the person sees, whole; so it is small, and moves to the other edge of the monitor when the pointer
comes near, for the person and the model alike.
"""

from __future__ import annotations

import time
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from Xlib import X
from Xlib.ext import shape

from pilotfish.sandbox.monitors import Monitor

_PAPER, _INK = (176, 0, 32), (255, 255, 255)
_NEAR = 12
"""Pixels around it that count as on it."""
_RAISE_S = 0.3
"""Least seconds between two raises, so that two programs which both want to be on top do not flicker."""


class Banner:
    """The strip at the top or bottom edge of one monitor. Not for use from two threads."""

    def __init__(self, display: Any, monitor: Monitor, text: str) -> None:
        self._display = display
        self._text = text
        self._window: Any = None
        self._at_bottom = False
        self._raised_s = 0.0
        self.show(monitor)

    def show(self, monitor: Monitor) -> None:
        """Draw it on a monitor, instead of where it is."""
        self._monitor = monitor
        picture = _picture(self._text, monitor)
        self._size = picture.size
        screen = self._display.screen()
        x, y = self._place()
        window = screen.root.create_window(
            x,
            y,
            *picture.size,
            0,
            screen.root_depth,
            event_mask=X.VisibilityChangeMask,
            override_redirect=True,
        )
        window.set_wm_name("Pilotfish")
        window.set_wm_class("pilotfish-banner", "Pilotfish")
        pixmap = window.create_pixmap(*picture.size, screen.root_depth)
        context = pixmap.create_gc()
        pixmap.put_pil_image(context, 0, 0, picture)
        window.change_attributes(background_pixmap=pixmap)
        context.free()
        pixmap.free()
        # Without an input region the pointer is never in it, so clicks reach what lies below.
        window.shape_rectangles(shape.SO.Set, shape.SK.Input, 0, 0, 0, [])
        window.map()
        self.close()
        self._window = window
        self._display.sync()

    def pointer_at(self, x: int, y: int) -> None:
        """Step aside if the pointer is here."""
        left, top = self._place()
        width, height = self._size
        if left - _NEAR <= x < left + width + _NEAR and top - _NEAR <= y < top + height + _NEAR:
            self._at_bottom = not self._at_bottom
            left, top = self._place()
            self._window.configure(x=left, y=top, stack_mode=X.Above)
            self._display.flush()

    def keep_above(self) -> None:
        """Come back on top of a window that covers it."""
        if time.monotonic() - self._raised_s >= _RAISE_S:
            self._raised_s = time.monotonic()
            self._window.configure(stack_mode=X.Above)
            self._display.flush()

    def close(self) -> None:
        """Take it away; safe to call twice."""
        if self._window is not None:
            self._window.destroy()
            self._window = None
            self._display.flush()

    def _place(self) -> tuple[int, int]:
        """The strip's top left corner: in the middle of the edge, away from the corners."""
        monitor, (width, height) = self._monitor, self._size
        y = monitor.y + (monitor.height - height if self._at_bottom else 0)
        return monitor.x + (monitor.width - width) // 2, y


def _picture(text: str, monitor: Monitor) -> Image.Image:
    """The text in white on red, as high as a line of text is on a monitor of this many pixels."""
    height = min(max(monitor.height // 50, 16), 60)
    font = ImageFont.load_default(height * 0.68)
    width = min(round(font.getlength(text)) + height, max(monitor.width // 2, 1))
    picture = Image.new("RGB", (width, height), _PAPER)
    ImageDraw.Draw(picture).text((width / 2, height / 2), text, _INK, font, anchor="mm")
    return picture
