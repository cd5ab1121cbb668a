"""The input process on a display that a person uses too: what is theirs is left alone.

It does what `input_process.py` does, with these differences. Nothing is pressed while the person moves the
mouse or holds a key or a button, nor without the guard that watches for them (`sandbox/host_guard.py`). What
is pressed is noted on the display first, so that it can be undone by others; keys that the person holds are
never released. Text goes on keys without a symbol only, and they are empty again at the end. The terminal in
which the run is supervised is out of bounds, or the model could answer what it is asked there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from Xlib import XK, X

from pilotfish.sandbox.host_traces import Traces
from pilotfish.tools.input_process import BUTTONS, InputProcess, serve
from pilotfish.tools.keyboard import Keyboard
from pilotfish.tools.keymap import Keymap, LiveKeymap
from pilotfish.tools.own_terminal import OwnTerminal

STILL_S = 0.3
"""Seconds without motion after which the person has let go of the mouse."""
PATIENCE_S = 3.0
"""Seconds that an action waits for the person."""
_WHEEL = (4, 5, 6, 7)
_ALL_BUTTONS = X.Button1Mask | X.Button2Mask | X.Button3Mask
_UNGUARDED = "the emergency stop was used or has ended, so nothing was done"


class HostKeymap(LiveKeymap):
    """Borrows empty keys only: a media key that a person presses must not type a letter."""

    def read(self) -> Keymap:
        keymap = super().read()
        keymap.original = {code: row for code, row in keymap.original.items() if not any(row)}
        return keymap


class HostKeyboard(Keyboard):
    """Notes each key before it is pressed, and asks whether it still may."""

    def __init__(self, display: Any, pyautogui: ModuleType) -> None:
        super().__init__(display, pyautogui)
        self._map = HostKeymap(display)
        self._traces = Traces(display)

    def release_held(self) -> None:
        for code in reversed(self.held.copy()):
            self._up(code)
        self._traces.restore_map()

    def down_by_others(self) -> list[int]:
        """The key codes that are down and that nobody here pressed."""
        down = self._display.query_keymap()
        return [code for code in range(8, 256) if down[code // 8] >> code % 8 & 1 and code not in self.held]

    def _type_segment(self, symbols: Sequence[int]) -> None:
        keymap = self._map.provide([XK.XK_Shift_L, *symbols])
        shift, _ = keymap.find(XK.XK_Shift_L)
        keys = [keymap.find(symbol) for symbol in symbols]
        try:
            for code, shifted in keys:
                pressed = [one for one in ((shift, code) if shifted else (code,)) if self._down(one)]
                for one in reversed(pressed):
                    self._up(one)
        finally:
            for one in reversed(self.held.copy()):
                self._up(one)
            self._map.note_use([code for code, _ in keys])

    def _down(self, code: int) -> bool:
        if self._display.query_keymap()[code // 8] >> code % 8 & 1:
            return False
        self._traces.note_keys([*self.held, code])
        if not self._traces.is_guarded():
            self._traces.note_keys(self.held)
            raise ValueError(_UNGUARDED)
        return super()._down(code)

    def _up(self, code: int) -> None:
        super()._up(code)
        self._traces.note_keys(self.held)

    @contextlib.contextmanager
    def _without_caps_lock(self) -> Iterator[None]:
        if not self._display.screen().root.query_pointer().mask & X.LockMask:
            yield
            return
        self._traces.note_caps_lock(off=True)
        try:
            with super()._without_caps_lock():
                yield
        finally:
            self._traces.note_caps_lock(off=False)


class HostInput(InputProcess):
    """The operations on a person's display."""

    keyboard_type = HostKeyboard
    _keyboard: HostKeyboard
    _traces: Traces
    _terminal: OwnTerminal
    _left: list[int]
    """Where this process last moved the pointer to."""
    _moved = _disturbed = False
    """Whether the pointer was moved in this operation: from here, and by the person after that."""

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "position":
            return super()._serve(request)
        try:
            self._wait_for_the_person()
            self._check_place(request)
        except ValueError as error:
            return {"ok": False, "error": str(error)}
        self._moved = self._disturbed = False
        answer = super()._serve(request)
        self._terminal.note_focus()
        if self.position() == self._left and not self._disturbed:
            return answer
        self._left = self.position()
        return answer | {"notes": ["the user moved the pointer meanwhile: see whether it did what you meant"]}

    def move(self, x: int, y: int) -> None:
        root = self._root.get_geometry()
        x, y = min(max(x, 0), root.width - 1), min(max(y, 0), root.height - 1)
        self._traces.note_pointer(x, y)
        if not self._traces.is_guarded():
            raise ValueError(_UNGUARDED)
        # A drag goes on to its end all the same: to let go where the person is now would be worse.
        self._disturbed |= self._moved and self.position() != self._left
        super().move(x, y)
        self._left, self._moved = [x, y], True

    def scroll(self, at: list[int] | None, direction: str, amount: int, keys: list[str]) -> None:
        self._note_buttons(*_WHEEL)
        try:
            super().scroll(at, direction, amount, keys)
        finally:
            self._note_buttons()

    def _wait_for_the_person(self) -> None:
        """Return when the person touches neither mouse nor keyboard; raises ValueError if they go on."""
        deadline = time.monotonic() + PATIENCE_S
        seen, still_since = self._left, -STILL_S
        while True:
            at, now = self.position(), time.monotonic()
            if at != seen:
                seen, still_since = at, now
            doing = self._person_does(moving=now - still_since < STILL_S)
            if doing is None:
                return
            if now > deadline:
                raise ValueError(f"the user {doing}, so nothing was done; wait a little and look again")
            time.sleep(0.02)

    def _person_does(self, *, moving: bool) -> str | None:
        if moving:
            return "is moving the mouse"
        own = sum(X.Button1Mask << (BUTTONS[button] - 1) for button in self._buttons_held)
        if self._root.query_pointer().mask & _ALL_BUTTONS & ~own:
            return "holds a button of the mouse"
        if codes := self._keyboard.down_by_others():
            symbol = self._display.keycode_to_keysym(codes[0], 0)
            return f"holds the key {XK.keysym_to_string(symbol) or _NAMES.get(symbol, codes[0])}"
        return None

    def _check_place(self, request: dict[str, Any]) -> None:
        """Raises ValueError for a place that the person changed, or that is out of bounds."""
        if request["op"] in ("key", "hold", "type"):
            self._terminal.give_focus_back()
            return
        if request["op"] == "move":
            return
        starts_here = request.get("at", request.get("start")) is None
        if starts_here and self.position() != self._left:
            self._left = self.position()
            raise ValueError("the user has moved the pointer, so nothing was done; say where by `coordinate`")
        places = [request.get(name) for name in ("at", "start", "end")]
        self._terminal.give_focus_back(must=False)
        self._terminal.check_points([self.position() if starts_here else None, *places])

    def _button_down(self, button: str) -> None:
        if self.position() != self._left:
            raise ValueError(
                "the user moved the pointer just before the click, so nothing was clicked; look again"
            )
        self._note_buttons(BUTTONS[button])
        if not self._traces.is_guarded():
            self._note_buttons()
            raise ValueError(_UNGUARDED)
        super()._button_down(button)

    def _button_up(self, button: str) -> None:
        if button in self._buttons_held:
            super()._button_up(button)
        self._note_buttons()

    def _note_buttons(self, *more: int) -> None:
        self._traces.note_buttons({*(BUTTONS[button] for button in self._buttons_held), *more})

    def _release_after_crash(self) -> None:
        """Take the display over, and undo only what the last process noted."""
        self._traces = Traces(self._display)
        self._traces.release()
        self._traces.restore_map()
        self._left = self.position()
        self._terminal = OwnTerminal(self._display)
        self._terminal.note_focus()

    def _release_held(self) -> None:
        for button in list(self._buttons_held):
            self._button_up(button)
        self._keyboard.release_held()
        self._display.sync()


_NAMES = {
    getattr(XK, f"XK_{name}"): name
    for name in ("Shift_L", "Shift_R", "Control_L", "Control_R", "Alt_L", "Alt_R", "Super_L", "Super_R")
}


if __name__ == "__main__":
    serve(HostInput)
