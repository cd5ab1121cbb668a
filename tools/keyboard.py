"""The keyboard of one X display: presses keys and types any text exactly, whatever the layout.

A key that pyautogui has a name for is pressed by pyautogui, whose table maps names to fixed key codes; other
keys and text go through XTEST. Which key code gives what is looked up in the live map each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from Xlib import XK, X
from Xlib.ext import xtest

from pilotfish.tools.keymap import LiveKeymap, keysym
from pilotfish.tools.keys import Chord

_TYPED = {"\n": "Return", "\t": "Tab"}
_AT_ONCE = 25
"""Characters that go to the X server before it is waited for."""


class Keyboard:
    """Keys of one display. Whatever is pressed here and not yet released is in `held`."""

    def __init__(self, display: Any, pyautogui: ModuleType) -> None:
        self._display = display
        self._pyautogui = pyautogui
        self._map = LiveKeymap(display)
        self.held: list[int] = []
        table = pyautogui.platformModule.keyboardMapping
        self._names = {
            code: name for name, code in table.items() if code and not pyautogui.isShiftCharacter(name)
        }

    @contextlib.contextmanager
    def hold(self, chord: Sequence[str]) -> Iterator[None]:
        """Keep the keys of `chord` down. A key that is down already stays as it is, also afterwards."""
        keymap = self._map.provide([XK.XK_Shift_L, *map(keysym, chord)])
        shift, _ = keymap.find(XK.XK_Shift_L)
        pressed: list[int] = []
        try:
            for key in chord:
                code, shifted = keymap.find(keysym(key))
                for one in (shift, code) if shifted else (code,):
                    if self._down(one):
                        pressed.append(one)
            yield
        finally:
            for code in reversed(pressed):
                self._up(code)
            self._map.note_use(pressed)

    def press(self, chords: Sequence[Chord]) -> None:
        """Press and release one chord after another."""
        for chord in chords:
            with self.hold(chord):
                pass

    def type(self, text: str) -> None:
        """Type `text`; a newline is Return and a tab is Tab. Caps Lock is off meanwhile."""
        symbols = [keysym(_TYPED.get(char, char)) for char in text]
        with self._without_caps_lock():
            start = 0
            while start < len(symbols):
                end = self._map.fitting(symbols, start)
                self._type_segment(symbols[start:end])
                start = end

    def release_held(self) -> None:
        """Release what is still down from here, the last first, and give borrowed keys back."""
        for code in reversed(self.held.copy()):
            self._up(code)
        self._map.restore()

    def release_everything(self) -> None:
        """Release every key that is down on the display, whoever pressed it."""
        for index, byte in enumerate(self._display.query_keymap()):
            for bit in range(8):
                if byte >> bit & 1:
                    self._send(index * 8 + bit, press=False)

    def _type_segment(self, symbols: Sequence[int]) -> None:
        keymap = self._map.provide([XK.XK_Shift_L, *symbols])
        shift, _ = keymap.find(XK.XK_Shift_L)
        keys = [keymap.find(symbol) for symbol in symbols]
        for start in range(0, len(keys), _AT_ONCE):
            down = self._display.query_keymap()
            for code, shifted in keys[start : start + _AT_ONCE]:
                self._tap([one for one in ((shift, code) if shifted else (code,)) if not _is_set(down, one)])
            self._display.sync()
        self._map.note_use([code for code, _ in keys])

    def _tap(self, codes: Sequence[int]) -> None:
        """Press key codes and release them in the reverse order, without waiting for the X server."""
        for code in codes:
            self.held.append(code)
            xtest.fake_input(self._display, X.KeyPress, code)
        for code in reversed(codes):
            xtest.fake_input(self._display, X.KeyRelease, code)
            self.held.remove(code)

    def _down(self, code: int) -> bool:
        """Press a key code; False if it was down before."""
        if _is_set(self._display.query_keymap(), code):
            return False
        self.held.append(code)
        self._send(code, press=True)
        return True

    def _up(self, code: int) -> None:
        """Release a key code that `_down` pressed."""
        self._send(code, press=False)
        self.held.remove(code)

    def _send(self, code: int, *, press: bool) -> None:
        name = self._names.get(code)
        if name is None:
            xtest.fake_input(self._display, X.KeyPress if press else X.KeyRelease, code)
            self._display.sync()
        elif press:
            self._pyautogui.keyDown(name, _pause=False)
        else:
            self._pyautogui.keyUp(name, _pause=False)

    @contextlib.contextmanager
    def _without_caps_lock(self) -> Iterator[None]:
        if not self._display.screen().root.query_pointer().mask & X.LockMask:
            yield
            return
        self.press([("Caps_Lock",)])
        try:
            yield
        finally:
            self.press([("Caps_Lock",)])


def _is_set(keymap: Sequence[int], code: int) -> bool:
    """Whether a key is down, in what `query_keymap` gives: a bit for each key code."""
    return bool(keymap[code // 8] >> code % 8 & 1)
