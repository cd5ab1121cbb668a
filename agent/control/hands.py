"""A person's mouse and keyboard on the display of a sandbox, by way of the tools' own input process."""

from __future__ import annotations

import time

from pilotfish.agent.control.doings import Doings
from pilotfish.agent.control.refusal import Refusal
from pilotfish.agent.control.wire import Input
from pilotfish.tools.base import Screen
from pilotfish.tools.computer import TEXT_LIMIT
from pilotfish.tools.input_driver import InputDriver, InputError
from pilotfish.tools.keys import normalize_text, parse_keys

_MOST_CLICKS = 100
_TYPE_S_PER_CHARACTER = 0.05


class Hands:
    """What a person does on one screen. `close` releases all that is held.

    Places are pixels of the screen, of which no other part of the display can be reached.
    """

    def __init__(self, screen: Screen, *, keeps_text: bool = False) -> None:
        """keeps_text: have `doings` tell what is typed, and not only how much."""
        assert not screen.shared, "a person's own desktop is not taken over"
        self._screen = screen
        self._driver = InputDriver(screen.display)
        self._began_s = time.monotonic()
        self._closed = False
        self.inputs = 0
        self.doings = Doings(keeps_text=keeps_text)

    @property
    def seconds(self) -> float:
        """Since they were made."""
        return time.monotonic() - self._began_s

    async def do(self, what: Input) -> None:
        """Do one thing. Raises `Refusal`."""
        if self._closed:
            raise Refusal("Mouse and keyboard have been handed back.")
        try:
            await self._do(what)
        except (InputError, ValueError) as error:
            raise Refusal(f"That was not done: {error}.") from error
        self.inputs += 1
        self.doings.add(what)

    async def close(self) -> None:
        """Release all buttons and keys."""
        self._closed = True
        await self._driver.close()

    async def _do(self, what: Input) -> None:
        at = self._place(what)
        call = self._driver.call
        match what.action:
            case "move":
                if at is None:
                    raise ValueError("a move needs `x` and `y`; give both")
                await call("move", x=at[0], y=at[1])
            case "click" | "double_click":
                count = 2 if what.action == "double_click" else 1
                await call("click", at=at, button=what.button, count=count, keys=[])
            case "press" | "release":
                await call("button", at=at, press=what.action == "press", keys=[], which=what.button)
            case "scroll":
                turns = {"down": what.dy, "up": -what.dy, "right": what.dx, "left": -what.dx}
                if max(turns.values()) <= 0:
                    raise ValueError("a scroll needs `dx` or `dy` other than 0; give the clicks of the wheel")
                for direction, amount in turns.items():
                    if amount > 0:
                        clicks = min(amount, _MOST_CLICKS)
                        await call("scroll", at=at, direction=direction, amount=clicks, keys=[])
            case "key":
                await call("key", chords=parse_keys(what.key))
            case "text":
                if len(what.text) > TEXT_LIMIT:
                    size = len(what.text)
                    raise ValueError(
                        f"the text has {size} characters, more than {TEXT_LIMIT}; type it in parts"
                    )
                text = normalize_text(what.text)
                await call("type", text=text, takes_s=_TYPE_S_PER_CHARACTER * len(text))

    def _place(self, what: Input) -> tuple[int, int] | None:
        """The display's pixel; None is where the pointer is."""
        if what.x is None or what.y is None:
            return None
        screen = self._screen
        if not (0 <= what.x < screen.width and 0 <= what.y < screen.height):
            size = f"{screen.width}x{screen.height}"
            raise ValueError(f"({what.x}, {what.y}) is not on the screen, which is {size}; look at it again")
        return screen.x + what.x, screen.y + what.y
