"""The process that moves the mouse and presses keys on one X display.

pyautogui reads DISPLAY once, when it is imported, so each display has a process of its own:
`python -m pilotfish.tools.input_process` with DISPLAY set. It reads one JSON object per line,
`{"op": ..., parameters}`, and answers each by one line, `{"ok": true, "value": ...}` or
`{"ok": false, "error": ...}`, perhaps with `"notes"` for the model; the first line, without a request, says
whether it is ready. It ends at the end of its input or on SIGTERM, and releases what it holds in any case. If
it is killed, its successor on the display releases it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from Xlib import X, display
from Xlib.ext import xtest

from pilotfish.tools.keyboard import Keyboard

_OWNER_PROPERTY = "_PILOTFISH_INPUT_PROCESS"
BUTTONS = {"left": X.Button1, "middle": X.Button2, "right": X.Button3}
_CLICK_INTERVAL_S = 0.03
# A drag is recognised by programs from motion they see while the button is down.
_DRAG_STEPS = 12
_DRAG_STEP_S = 0.01
_DRAG_PAUSE_S = 0.05


class InputProcess:
    """The operations of one display. Public methods without an underscore are the protocol's operations."""

    keyboard_type = Keyboard

    def __init__(self) -> None:
        # pyautogui can do without mouseinfo, which ends the whole process where tkinter is missing.
        sys.modules.setdefault("mouseinfo", None)  # type: ignore[arg-type]
        import pyautogui  # not above: it connects to the display, and a failure has to be answered

        self._gui = pyautogui
        self._gui.PAUSE = 0
        self._gui.FAILSAFE = False
        self._display = display.Display()
        self._root = self._display.screen().root
        self._owner_atom = self._display.intern_atom(_OWNER_PROPERTY)
        self._keyboard = self.keyboard_type(self._display, self._gui)
        self._buttons_held: set[str] = set()
        self._release_after_crash()

    def move(self, x: int, y: int) -> None:
        """Move the pointer to display pixel (x, y). Raises ValueError if the display has shrunk."""
        root = self._root.get_geometry()
        if not (0 <= x < root.width and 0 <= y < root.height):
            raise ValueError(
                f"pixel ({x}, {y}) is not on the display any more, which is {root.width}x{root.height} now; "
                "look at the screen"
            )
        self._gui.moveTo(x, y, _pause=False)

    def position(self) -> list[int]:
        """The pointer's display pixel."""
        pointer = self._root.query_pointer()
        return [pointer.root_x, pointer.root_y]

    def click(
        self, at: list[int] | None, button: str, count: int, keys: list[str], hold_s: float = 0.0
    ) -> None:
        """Click `count` times at `at` (default: where the pointer is) with `keys` held, each for `hold_s`."""
        with self._keyboard.hold(keys):
            self._move_to(at)
            self._button_up(button)
            for number in range(count):
                if number:
                    time.sleep(_CLICK_INTERVAL_S)
                with self._button(button):
                    time.sleep(hold_s)

    def drag(self, start: list[int] | None, end: list[int], keys: list[str]) -> None:
        """Press the left button at `start` (default: where the pointer is), move to `end`, release."""
        with self._keyboard.hold(keys):
            self._move_to(start)
            self._button_up("left")
            from_x, from_y = self.position()
            with self._button("left"):
                time.sleep(_DRAG_PAUSE_S)
                for step in range(1, _DRAG_STEPS + 1):
                    part = step / _DRAG_STEPS
                    self.move(
                        round(from_x + (end[0] - from_x) * part), round(from_y + (end[1] - from_y) * part)
                    )
                    time.sleep(_DRAG_STEP_S)
                time.sleep(_DRAG_PAUSE_S)

    def button(self, at: list[int] | None, press: bool, keys: list[str], which: str = "left") -> bool:
        """Press or release a button; False if it was so already."""
        with self._keyboard.hold(keys):
            self._move_to(at)
            changed = self._is_down(which) != press
            if press:
                self._button_down(which)
            else:
                self._button_up(which)
        return changed

    def scroll(self, at: list[int] | None, direction: str, amount: int, keys: list[str]) -> None:
        """Turn the wheel by `amount` clicks."""
        with self._keyboard.hold(keys):
            self._move_to(at)
            turn = self._gui.scroll if direction in {"up", "down"} else self._gui.hscroll
            turn(amount if direction in {"up", "right"} else -amount, _pause=False)

    def key(self, chords: list[list[str]]) -> None:
        """Press and release chords of keysym names or characters."""
        self._keyboard.press([tuple(chord) for chord in chords])

    def hold(self, chord: list[str], seconds: float) -> None:
        """Hold a chord for a time."""
        with self._keyboard.hold(chord):
            time.sleep(seconds)

    def type(self, text: str) -> None:
        """Type text exactly."""
        self._keyboard.type(text)

    def _move_to(self, at: list[int] | None) -> None:
        if at is not None:
            self.move(*at)

    def _is_down(self, button: str) -> bool:
        return bool(self._root.query_pointer().mask & (X.Button1Mask << (BUTTONS[button] - 1)))

    @contextlib.contextmanager
    def _button(self, button: str) -> Iterator[None]:
        self._button_down(button)
        try:
            yield
        finally:
            self._button_up(button)

    def _button_down(self, button: str) -> None:
        self._buttons_held.add(button)
        self._gui.mouseDown(button=button, _pause=False)

    def _button_up(self, button: str) -> None:
        if self._is_down(button):
            self._gui.mouseUp(button=button, _pause=False)
        self._buttons_held.discard(button)

    def _release_after_crash(self) -> None:
        """Take the display over; if its last process ended without a farewell, release what is down."""
        mark = self._root.get_full_property(self._owner_atom, X.AnyPropertyType)
        # Any program on the display can write the property, so nothing is expected of its value.
        owner = list(mark.value)[:1] if mark is not None else []
        if owner and not _lives(owner[0]):
            self._keyboard.release_everything()
            for button in range(1, 6):
                if self._root.query_pointer().mask & (X.Button1Mask << (button - 1)):
                    xtest.fake_input(self._display, X.ButtonRelease, button)
        self._root.change_property(self._owner_atom, self._display.intern_atom("CARDINAL"), 32, [os.getpid()])
        self._display.sync()

    def _release_held(self) -> None:
        """Release what this process holds and leave the display."""
        for button in list(self._buttons_held):
            self._button_up(button)
        self._keyboard.release_held()
        self._root.delete_property(self._owner_atom)
        self._display.sync()

    def _run(self, requests: TextIO, answer: Callable[[dict[str, Any]], None]) -> None:
        try:
            for line in requests:
                answer(self._serve(json.loads(line)))
        finally:
            self._release_held()

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        parameters = {name: value for name, value in request.items() if name != "op"}
        try:
            return {"ok": True, "value": getattr(self, request["op"])(**parameters)}
        except ValueError as error:
            return {"ok": False, "error": str(error)}


def _lives(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet collected by its parent does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(") ")[2][:1] not in {"Z", "X"}


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def serve(kind: type[InputProcess]) -> None:
    """Serve standard input until it ends. What libraries print goes to standard error."""
    signal.signal(signal.SIGTERM, _end)
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        channel.write(json.dumps(value) + "\n")

    try:
        process = kind()
    except Exception as error:  # whatever keeps pyautogui or the display from starting is told, not raised
        answer({"ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]})
        return
    answer({"ok": True, "value": None})
    process._run(sys.stdin, answer)


if __name__ == "__main__":
    serve(InputProcess)
