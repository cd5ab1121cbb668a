"""The keyboard of one X display: presses keys and types any text exactly, whatever the layout.

Everything is looked up in the display's live keyboard map, because a program may change the layout at any
time. A key that pyautogui has a name for is pressed by pyautogui, whose table maps names to fixed key
codes; the rest goes through XTEST. A character that no key gives in the current layout is put on a spare
key first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from Xlib import XK, X
from Xlib.ext import xtest

from pilotfish.tools.keys import Chord

for _group in ("xf86", "xkb"):
    XK.load_keysym_group(_group)

# A client learns of a new map by an event in the same queue as the key events, then asks for the map. Key
# events that follow at once are read with the old map by some toolkits (GTK, Chromium), so the map comes
# first.
SETTLE_S = 0.1
_GROUP_SHIFT = 13
_SLOTS_PROPERTY = "_PILOTFISH_SPARE_KEYS"


class Keyboard:
    """Keys of one display. Whatever is pressed here and not yet released is in `held`."""

    def __init__(self, display: Any, pyautogui: ModuleType) -> None:
        self._display = display
        self._pyautogui = pyautogui
        self._root = display.screen().root
        self._first = display.display.info.min_keycode
        self._count = display.display.info.max_keycode - self._first + 1
        self._slots_atom = display.intern_atom(_SLOTS_PROPERTY)
        self._slot_used: dict[int, float] = {}
        self.held: list[int] = []
        table = pyautogui.platformModule.keyboardMapping
        self._names = {
            code: name for name, code in table.items() if code and not pyautogui.isShiftCharacter(name)
        }

    @contextlib.contextmanager
    def hold(self, chord: Sequence[str]) -> Iterator[None]:
        """Keep the keys of `chord` down. A key that is down already stays as it is, also afterwards."""
        keymap = self._prepare([keysym(key) for key in chord])
        pressed: list[int] = []
        try:
            for key in chord:
                code, shifted = keymap.find(keysym(key))
                codes = (keymap.find(XK.XK_Shift_L)[0], code) if shifted else (code,)
                pressed += [one for one in codes if self.down(one)]
            yield
        finally:
            for code in reversed(pressed):
                self.up(code)

    def press(self, chords: Sequence[Chord]) -> None:
        """Press and release one chord after another."""
        for chord in chords:
            with self.hold(chord):
                pass

    def type(self, text: str) -> None:
        """Type `text`; a newline is Return and a tab is Tab. Caps Lock is off meanwhile."""
        keysyms = [keysym(_TYPED.get(char, char)) for char in text]
        with self._without_caps_lock():
            start = 0
            while start < len(keysyms):
                end = self._segment_end(keysyms, start)
                segment = keysyms[start:end]
                keymap = self._prepare(segment)
                shift = keymap.find(XK.XK_Shift_L)[0]
                for symbol in segment:
                    self._tap(*keymap.find(symbol), shift)
                now = time.monotonic()
                self._slot_used.update(dict.fromkeys((keymap.find(symbol)[0] for symbol in segment), now))
                start = end

    def down(self, code: int) -> bool:
        """Press a key code; False if it was down before."""
        if self._is_down(code):
            return False
        self.held.append(code)
        self._send(code, press=True)
        return True

    def up(self, code: int) -> None:
        """Release a key code that `down` pressed."""
        self._send(code, press=False)
        self.held.remove(code)

    def release_held(self) -> None:
        """Release what is still down from here, the last first."""
        for code in reversed(self.held.copy()):
            self.up(code)

    def release_everything(self) -> None:
        """Release every key that is down on the display, whoever pressed it."""
        for index, byte in enumerate(self._display.query_keymap()):
            for bit in range(8):
                if byte >> bit & 1:
                    self._send(index * 8 + bit, press=False)

    def _tap(self, code: int, shifted: bool, shift: int) -> None:
        with_shift = shifted and self.down(shift)
        if self.down(code):
            self.up(code)
        if with_shift:
            self.up(shift)

    def _send(self, code: int, *, press: bool) -> None:
        name = self._names.get(code)
        if name is None:
            xtest.fake_input(self._display, X.KeyPress if press else X.KeyRelease, code)
            self._display.sync()
        elif press:
            self._pyautogui.keyDown(name, _pause=False)
        else:
            self._pyautogui.keyUp(name, _pause=False)

    def _is_down(self, code: int) -> bool:
        return bool(self._display.query_keymap()[code // 8] >> code % 8 & 1)

    @contextlib.contextmanager
    def _without_caps_lock(self) -> Iterator[None]:
        if not self._root.query_pointer().mask & X.LockMask:
            yield
            return
        self.press([("Caps_Lock",)])
        try:
            yield
        finally:
            self.press([("Caps_Lock",)])

    def _segment_end(self, keysyms: Sequence[int], start: int) -> int:
        """How far typing can go with one change of the map: at most half of the spare keys get a new symbol.

        The other half keeps its symbols, so a client that lags by one change still reads the right ones.
        """
        keymap = self._read_map()
        room = max(1, len(keymap.spare) // 2)
        new: set[int] = set()
        for index in range(start, len(keysyms)):
            if not keymap.has(keysyms[index]):
                new.add(keysyms[index])
                if len(new) > room:
                    return index
        return len(keysyms)

    def _prepare(self, keysyms: Sequence[int]) -> _Keymap:
        """The live map, after putting those of `keysyms` that it lacks on spare keys."""
        keymap = self._read_map()
        missing = [symbol for symbol in dict.fromkeys(keysyms) if not keymap.has(symbol)]
        if not missing:
            return keymap
        needed = {keymap.find(symbol)[0] for symbol in keysyms if keymap.has(symbol)}
        free = [code for code in keymap.spare if code not in needed]
        free.sort(key=lambda code: self._slot_used.get(code, 0.0))
        if len(free) < len(missing):
            raise ValueError("the keyboard map has no free key for this text; write it by the shell instead")
        now = time.monotonic()
        for code, symbol in zip(free, missing, strict=False):
            self._display.change_keyboard_mapping(code, [[symbol] * 4])
            self._slot_used[code] = now
        slots = sorted({*keymap.slots, *free[: len(missing)]})
        self._root.change_property(self._slots_atom, self._display.intern_atom("CARDINAL"), 32, slots)
        self._display.sync()
        time.sleep(SETTLE_S)
        return self._read_map()

    def _read_map(self) -> _Keymap:
        rows = [list(row) for row in self._display.get_keyboard_mapping(self._first, self._count)]
        group = self._root.query_pointer().mask >> _GROUP_SHIFT & 3
        stored = self._root.get_full_property(self._slots_atom, X.AnyPropertyType)
        return _Keymap(rows, self._first, group, [] if stored is None else list(stored.value))


class _Keymap:
    """One reading of the display's map: which key code gives a symbol in the active group.

    rows: per key code the symbols [group 1 plain, group 1 shifted, group 2 plain, group 2 shifted, ...] of
    the core protocol. slots: the spare key codes that were given symbols earlier.
    """

    def __init__(self, rows: list[list[int]], first: int, group: int, slots: list[int]) -> None:
        self.slots = [code for code in slots if len({symbol for symbol in rows[code - first] if symbol}) <= 1]
        self.spare = sorted(
            {*self.slots, *(first + index for index, row in enumerate(rows) if not any(row))} - {first}
        )
        self._keys: dict[int, tuple[int, bool]] = {}
        for level in (0, 1):
            for index, row in enumerate(rows):
                symbol = self._symbol(row, group, level)
                if symbol:
                    self._keys.setdefault(symbol, (first + index, bool(level)))

    def has(self, symbol: int) -> bool:
        return symbol in self._keys

    def find(self, symbol: int) -> tuple[int, bool]:
        """(key code, whether Shift is needed). The symbol is there: `_prepare` saw to it."""
        return self._keys[symbol]

    @staticmethod
    def _symbol(row: list[int], group: int, level: int) -> int:
        """What the key gives in the group. The core protocol shows the first two groups; of a later one only
        keys without a character (Return, Shift) are certain, because every group has them in the same place.
        """
        if group < 2:
            own = row[2 * group : 2 * group + 2]
            return own[level] if any(own) else row[level]
        return row[level] if row[level] > 0xFF00 and row[level] < 0x1000000 else 0


_TYPED = {"\n": "Return", "\t": "Tab"}


def keysym(key: str) -> int:
    """The X symbol of a keysym name or a character (X11 protocol, appendix A: Latin-1 as it is, else
    0x1000000+).
    """
    if len(key) > 1:
        return int(XK.string_to_keysym(key.replace("XF86", "XF86_")))
    point = ord(key)
    return point if 0x20 <= point <= 0x7E or 0xA0 <= point <= 0xFF else 0x1000000 | point
