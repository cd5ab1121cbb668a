"""What Pilotfish has pressed and changed on a person's own display, written down there before it is done.

The notes are properties of the root window, so they outlive whoever made them: the guard undoes them when the
agent is killed, and the next run does when both were. Any program on the display can write them too; then
the worst is that keys that are down get released and that keys without a symbol stay without one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from Xlib import X
from Xlib.ext import xtest

from pilotfish.sandbox.x_properties import numbers, set_numbers

GUARD_SELECTION = "_PILOTFISH_HOST_GUARD"
"""The X selection that the guard owns while it watches. The server takes it back when the guard ends, however
that comes, so who finds an owner knows that the emergency stop works and was not used."""
BORROWED_PROPERTY = "_PILOTFISH_BORROWED_KEYS"
"""Rows of the keyboard map that were changed: key code and four symbols each (`tools/keymap.py`)."""
_KEYS, _BUTTONS = "_PILOTFISH_HOST_KEYS", "_PILOTFISH_HOST_BUTTONS"
_CAPS, _POINTER = "_PILOTFISH_HOST_CAPS_LOCK", "_PILOTFISH_HOST_POINTER"
_LAG_S = 1.0
"""How long a program may take to read what was typed before the keyboard map goes back."""


class Traces:
    """The notes on one display. Not for use from two threads."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._root = display.screen().root

    def note_keys(self, codes: Sequence[int]) -> None:
        """These key codes are down, or about to be."""
        set_numbers(self._root, _KEYS, codes)

    def note_buttons(self, buttons: Iterable[int]) -> None:
        """These buttons are down, or about to be."""
        set_numbers(self._root, _BUTTONS, sorted(buttons))

    def note_caps_lock(self, *, off: bool) -> None:
        """Caps Lock is about to be switched off for a while, or is on again."""
        set_numbers(self._root, _CAPS, [1] if off else [])

    def note_pointer(self, x: int, y: int) -> None:
        """The pointer is about to be moved to display pixel (x, y)."""
        set_numbers(self._root, _POINTER, [x & 0xFFFFFFFF, y & 0xFFFFFFFF])

    def pointer(self) -> tuple[int, int] | None:
        """Where the pointer was last moved to from here."""
        found = numbers(self._root, _POINTER)
        return (_signed(found[0]), _signed(found[1])) if len(found) == 2 else None

    def is_guarded(self) -> bool:
        """Whether the guard watches. Everything noted on this connection so far is with the server then."""
        return self._display.get_selection_owner(self._display.intern_atom(GUARD_SELECTION)) != X.NONE

    def release(self) -> None:
        """Release what is noted as down and still is, and forget it."""
        down = self._display.query_keymap()
        for code in reversed(numbers(self._root, _KEYS)):
            if 8 <= code <= 255 and down[code // 8] >> code % 8 & 1:
                xtest.fake_input(self._display, X.KeyRelease, code)
        held = self._root.query_pointer().mask
        for button in numbers(self._root, _BUTTONS):
            # The server tells only of the first five; letting go of one that is up does nothing.
            if 1 <= button <= 9 and (button > 5 or held & (X.Button1Mask << (button - 1))):
                xtest.fake_input(self._display, X.ButtonRelease, button)
        if numbers(self._root, _CAPS):
            self._caps_lock_on()
        for name in (_KEYS, _BUTTONS, _CAPS):
            set_numbers(self._root, name, [])
        self._display.sync()

    def restore_map(self) -> None:
        """Give borrowed keys their own symbols back, when programs have had time to read what was typed."""
        flat = numbers(self._root, BORROWED_PROPERTY)
        if not flat:
            return
        time.sleep(_LAG_S)
        for start in range(0, len(flat) - 4, 5):
            code, *row = flat[start : start + 5]
            if 8 <= code <= 255:
                self._display.change_keyboard_mapping(code, [row])
        set_numbers(self._root, BORROWED_PROPERTY, [])
        self._display.sync()

    def forget(self) -> None:
        """Take the last note away: where the pointer was moved to."""
        set_numbers(self._root, _POINTER, [])
        self._display.sync()

    def _caps_lock_on(self) -> None:
        from Xlib import XK

        code = self._display.keysym_to_keycode(XK.XK_Caps_Lock)
        if code and not self._root.query_pointer().mask & X.LockMask:
            for kind in (X.KeyPress, X.KeyRelease):
                xtest.fake_input(self._display, kind, code)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
