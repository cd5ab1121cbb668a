"""The keyboard map of an X display, read live, and extended so that every character has a key.

A character that the layout lacks goes on a spare key: one without symbols, and when those are used up a media
key, which gets its symbols back at the end. A program that lags reads a key press with the newest map, so a
spare key gets another symbol only when the program has read what was typed with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from Xlib import XK, X
from Xlib.protocol import event

for _group in ("xf86", "xkb"):
    XK.load_keysym_group(_group)

_GROUP_SHIFT = (
    13  # where the core protocol's state holds the active group (X Keyboard Extension, section 2.2.1)
)
_MEDIA = range(0x1008FE00, 0x10090000)
# Keys that Chromium acts on by their code, whatever symbol they have: Copy, Paste, Cut, Favorites, Back,
# Forward, HomePage, Reload and Search, by the codes that all keyboards have on Linux (evdev).
_TAKEN_BY_CODE = frozenset({141, 143, 145, 164, 166, 167, 180, 181, 225})
_FUNCTION = range(0xFE00, 0x10000)  # keys without a character: Return, Shift, F1, ISO_Level3_Shift
_BORROWED_PROPERTY = "_PILOTFISH_BORROWED_KEYS"
# How long a program may take to read what was typed, where it cannot be asked; and to answer, where it can.
_LAG_S = 1.0
_ANSWER_S = 5.0


def keysym(key: str) -> int:
    """The X symbol of a keysym name or one character.

    Source: X11 protocol, appendix A: Latin-1 has its own code, every other character 0x1000000 plus it.
    """
    if len(key) > 1:
        return int(XK.string_to_keysym(key.replace("XF86", "XF86_")))
    point = ord(key)
    return point if 0x20 <= point <= 0x7E or 0xA0 <= point <= 0xFF else 0x1000000 | point


class Keymap:
    """One reading of the map: which key code gives a symbol in the active group.

    rows: the symbols of each key code from `first` on, as the core protocol lists them: group 1 plain and
    with Shift, group 2 plain and with Shift, then more. borrowed: rows of the keys that were given other
    symbols.
    """

    def __init__(
        self, rows: Sequence[Sequence[int]], first: int, group: int, borrowed: Mapping[int, Sequence[int]]
    ) -> None:
        self._keys: dict[int, tuple[int, bool]] = {}
        for level in (0, 1):
            for code, row in enumerate(rows, first):
                symbol = _symbol(row, group, level)
                if symbol:
                    self._keys.setdefault(symbol, (code, bool(level)))
        self.original = {
            code: borrowed.get(code, row)
            for code, row in enumerate(rows, first)
            if code > first and code not in _TAKEN_BY_CODE and _is_spare(borrowed.get(code, row))
        }

    def has(self, symbol: int) -> bool:
        return symbol in self._keys

    def find(self, symbol: int) -> tuple[int, bool]:
        """(key code, whether Shift is needed) of a symbol that the map has."""
        return self._keys[symbol]

    def missing(self, symbols: Sequence[int]) -> list[int]:
        """Those of `symbols` that no key gives, each once."""
        return [symbol for symbol in dict.fromkeys(symbols) if symbol not in self._keys]


def _symbol(row: Sequence[int], group: int, level: int) -> int:
    """What a key gives. The core protocol shows two groups; of a later one only keys without a character are
    certain, because they are the same in every group.
    """
    if group > 1:
        return row[level] if row[level] in _FUNCTION else 0
    own = row[2 * group : 2 * group + 2]
    return own[level] if any(own) else row[level]


def _is_spare(row: Sequence[int]) -> bool:
    return all(symbol == 0 or symbol in _MEDIA for symbol in row)


class LiveKeymap:
    """The display's map now, and the spare keys that give it what it lacks."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._root = display.screen().root
        self._first = display.display.info.min_keycode
        self._count = display.display.info.max_keycode - self._first + 1
        self._property = display.intern_atom(_BORROWED_PROPERTY)
        self._used: dict[int, float] = {}
        self._last_read = 0.0

    def read(self) -> Keymap:
        """The map as it is now; a program may change the layout at any time."""
        rows = [list(row) for row in self._display.get_keyboard_mapping(self._first, self._count)]
        group = self._root.query_pointer().mask >> _GROUP_SHIFT & 3
        return Keymap(rows, self._first, group, self._borrowed())

    def fitting(self, symbols: Sequence[int], start: int) -> int:
        """Where a text that begins at `start` must stop for one change of the map to be enough.

        At most half of the spare keys get new symbols, two each; the other half keeps its symbols for a
        program that is one change behind. Keys that the same text needs as they are cannot get new ones
        either.
        """
        keymap = self.read()
        spare = len(keymap.original)
        new: set[int] = set()
        kept: set[int] = set()
        for index in range(start, len(symbols)):
            if keymap.has(symbols[index]):
                kept |= {keymap.find(symbols[index])[0]} & keymap.original.keys()
            else:
                new.add(symbols[index])
            changed = (len(new) + 1) // 2
            if index > start and (changed > spare // 2 or changed + len(kept) > spare):
                return index
        return len(symbols)

    def provide(self, symbols: Sequence[int]) -> Keymap:
        """The map, after putting those of `symbols` that it lacks on spare keys, two on each.

        Raises ValueError if there are not enough spare keys, or if the program does not read what it got.
        """
        keymap = self.read()
        missing = keymap.missing(symbols)
        if not missing:
            return keymap
        needed = {keymap.find(symbol)[0] for symbol in symbols if keymap.has(symbol)}
        free = [code for code in keymap.original if code not in needed]
        free.sort(key=lambda code: (self._used.get(code, 0.0), any(keymap.original[code]), code))
        pairs = [missing[start : start + 2] for start in range(0, len(missing), 2)]
        if len(free) < len(pairs):
            raise ValueError("the keyboard map has too few spare keys for this text; write it by the shell")
        given = dict(zip(free, pairs, strict=False))
        if not self._wait_until_read(max(self._used.get(code, 0.0) for code in given), _ANSWER_S):
            raise ValueError(
                f"the program with the keyboard has not read its keys for {_ANSWER_S:g} s, so a part of the "
                "text is not typed; look at the screen, then type the rest"
            )
        self._store({**self._borrowed(), **{code: keymap.original[code] for code in given}})
        for code, pair in given.items():
            self._display.change_keyboard_mapping(code, [[pair[0], pair[-1]] * 2])
        self._display.sync()
        return self.read()

    def note_use(self, codes: Sequence[int]) -> None:
        """Remember that these keys were pressed just now."""
        self._used.update(dict.fromkeys(codes, time.monotonic()))

    def restore(self) -> None:
        """Give the media keys that were used their own symbols back; empty keys keep what they got."""
        borrowed = self._borrowed()
        media = {code: row for code, row in borrowed.items() if any(row)}
        if media:
            self._wait_until_read(max(self._used.get(code, 0.0) for code in media), _LAG_S)
        for code, row in media.items():
            self._display.change_keyboard_mapping(code, [row])
        self._store({code: row for code, row in borrowed.items() if code not in media})
        self._display.sync()

    def _borrowed(self) -> dict[int, list[int]]:
        """The original rows of changed keys. They are kept at the root window, so they outlive a crash."""
        stored = self._root.get_full_property(self._property, X.AnyPropertyType)
        flat = [] if stored is None else list(stored.value)
        return {flat[start]: flat[start + 1 : start + 5] for start in range(0, len(flat) - 4, 5)}

    def _store(self, rows: Mapping[int, Sequence[int]]) -> None:
        flat = [value for code, row in rows.items() for value in (code, *(list(row) + [0] * 4)[:4])]
        self._root.change_property(self._property, self._display.intern_atom("CARDINAL"), 32, flat)

    def _wait_until_read(self, used_at: float, answer_s: float) -> bool:
        """Return when the program with the focus has read the keys that were pressed at `used_at`; False when
        it could say so and does not within `answer_s`.
        """
        if used_at <= self._last_read:
            return True
        asked_at = time.monotonic()
        answered = self._ping(answer_s)
        if answered is None:
            time.sleep(max(0.0, used_at + _LAG_S - time.monotonic()))
        if answered is not False:
            self._last_read = asked_at
        return answered is not False

    def _ping(self, answer_s: float) -> bool | None:
        """Ask the focused program to answer after all it has to read: whether it did, None if it cannot.

        Source: Extended Window Manager Hints, _NET_WM_PING: the answer is the same message to the root
        window.
        """
        ping = self._display.intern_atom("_NET_WM_PING")
        protocols = self._display.intern_atom("WM_PROTOCOLS")
        window = self._display.get_input_focus().focus
        while not isinstance(window, int) and window.id != self._root.id:
            supported = window.get_full_property(protocols, X.AnyPropertyType)
            if supported is not None and ping in supported.value:
                break
            window = window.query_tree().parent
        else:
            return None
        stamp = int(time.monotonic() * 1000) & 0x7FFFFFFF
        data = (32, [ping, stamp, window.id, 0, 0])
        self._root.change_attributes(event_mask=X.SubstructureNotifyMask)
        try:
            window.send_event(event.ClientMessage(window=window, client_type=protocols, data=data))
            self._display.flush()
            deadline = time.monotonic() + answer_s
            while time.monotonic() < deadline:
                if self._display.pending_events():
                    answer = self._display.next_event()
                    if answer.type == X.ClientMessage and list(answer.data[1][:2]) == [ping, stamp]:
                        return True
                else:
                    time.sleep(0.005)
            return False
        finally:
            self._root.change_attributes(event_mask=0)
