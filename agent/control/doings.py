"""What a person did with mouse and keyboard, in words for the log: one line for many inputs of a kind.

Text is told by its length: what somebody types themselves may well be a password.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pilotfish.agent.control.wire import Input
from pilotfish.agent.safetext import counted
from pilotfish.tools.keys import Chord, parse_keys

MOST = 500
"""Lines that are kept of one person's turn at mouse and keyboard."""
_TYPING = frozenset({"Shift_L", "Shift_R", "ISO_Level3_Shift"})
_PADS = {f"KP_{n}": str(n) for n in range(10)} | {
    "KP_Add": "+",
    "KP_Subtract": "-",
    "KP_Multiply": "*",
    "KP_Divide": "/",
    "KP_Decimal": ".",
    "KP_Separator": ",",
    "KP_Equal": "=",
    "space": " ",
}


@dataclass
class _Doing:
    what: str
    times: int = 1
    size: int = 0
    text: str = ""  # '' unless it is to be kept

    def words(self) -> str:
        if self.what == "typed":
            shown = (
                json.dumps(self.text, ensure_ascii=False) if self.text else counted(self.size, "character")
            )
            return f"typed {shown}"
        return self.what if self.times == 1 else f"{self.what} {self.times} times"


class Doings:
    """Collects inputs that were done, in their order."""

    def __init__(self, *, keeps_text: bool = False) -> None:
        """keeps_text: tell what was typed, and not only how much."""
        self._keeps_text = keeps_text
        self._doings: list[_Doing] = []
        self._left_out = 0
        self._held: dict[str, str] = {}  # where a button went down

    def add(self, what: Input) -> None:
        """One input more."""
        at = "" if what.x is None or what.y is None else f" at ({what.x}, {what.y})"
        click = "clicked" if what.button == "left" else f"{what.button}-clicked"
        match what.action:
            case "move":
                if not self._held:
                    self._put(f"moved the pointer to ({what.x}, {what.y})")
            case "click":
                self._put(f"{click}{at}")
            case "double_click":
                self._put(f"double-{click}{at}")
            case "press":
                self._held[what.button] = at
            case "release":
                began = self._held.pop(what.button, None)
                self._put(_let_go(what.button, click, began, at))
            case "scroll":
                turns = {"down": what.dy, "up": -what.dy, "right": what.dx, "left": -what.dx}
                for direction in (direction for direction, amount in turns.items() if amount > 0):
                    self._put(f"scrolled {direction}{at}")
            case "key":
                for chord in parse_keys(what.key):
                    self._press(chord)
            case "text":
                self._put("typed", what.text)

    @property
    def lines(self) -> tuple[str, ...]:
        """What was done, a line each."""
        lines = [doing.words() for doing in self._doings]
        lines += [f"held the {name} button down{at}" for name, at in self._held.items()]
        if self._left_out:
            lines.append(f"did {counted(self._left_out, 'more thing')}")
        return tuple(lines)

    def _press(self, chord: Chord) -> None:
        *held, key = chord
        char = _PADS.get(key, key)
        if len(char) == 1 and _TYPING.issuperset(held):
            self._put("typed", char)
        else:
            self._put(f"pressed {'+'.join(name.removesuffix('_L').removesuffix('_R') for name in chord)}")

    def _put(self, what: str, text: str = "") -> None:
        size, text = len(text), text if self._keeps_text else ""
        last = self._doings[-1] if self._doings else _Doing("")
        if last.what == what:
            last.times += 1
            last.size += size
            last.text += text
            return
        if last.what.startswith("moved ") and "(" in what:
            self._doings.pop()  # only where the pointer came to rest tells something
        if len(self._doings) < MOST:
            self._doings.append(_Doing(what, size=size, text=text))
        else:
            self._left_out += 1


def _let_go(button: str, click: str, began: str | None, at: str) -> str:
    """A button that was let go. click: a click of it. began: where it was pressed, None if it was not."""
    if began is None:
        return f"let go of the {button} button{at}"
    if began == at or not at:
        return f"{click}{began}"
    start = began.replace(" at ", " from ")
    return f"dragged with the {button} button{start}{at.replace(' at ', ' to ')}"
