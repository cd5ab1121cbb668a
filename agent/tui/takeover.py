"""The screen of a run under a person's own mouse and keyboard."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingsMap
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import Input

from pilotfish.agent.control import wire
from pilotfish.agent.tui.fields import PlainInput
from pilotfish.agent.tui.proposal import Frame, Point
from pilotfish.agent.tui.screen_view import ScreenView
from pilotfish.agent.tui.text import Plain, notify, sentence

WAY_OUT = "ctrl+right_square_bracket"
_YOURS = "Ctrl+] hands back. Mouse and keyboard are yours"
Send = Callable[[wire.Request], Awaitable[Any]]
_BUTTONS: dict[int, Literal["left", "middle", "right"]] = {1: "left", 2: "middle", 3: "right"}
_KEYS = {
    "left_square_bracket": "bracketleft",
    "right_square_bracket": "bracketright",
    "left_parenthesis": "parenleft",
    "right_parenthesis": "parenright",
    "left_curly_bracket": "braceleft",
    "right_curly_bracket": "braceright",
    "circumflex_accent": "asciicircum",
    "vertical_line": "bar",
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "low_line": "underscore",
    "grave_accent": "grave",
    "commercial_at": "at",
    "full_stop": "period",
    "hyphen": "minus",
    "equals_sign": "equal",
    "quotation_mark": "quotedbl",
    "number_sign": "numbersign",
    "dollar_sign": "dollar",
    "percent_sign": "percent",
    "plus_sign": "plus",
    "less_than_sign": "less",
    "greater_than_sign": "greater",
    "exclamation_mark": "exclam",
    "question_mark": "question",
}
"""Textual's names of keys where the tools have others."""


def key_name(event: events.Key) -> str | None:
    """A key as the `computer` tool names it; None for one that types a character."""
    *modifiers, key = event.key.split("+")
    if event.character is not None and event.character.isprintable() and not modifiers:
        return None
    return "+".join([*modifiers, _KEYS.get(key, key)])


class TakeOver(ModalScreen[None]):
    """Sends mouse and keyboard to the sandbox until the person hands them back, with a note for the agent.

    It takes them when it is shown, and goes away with the reason where the run refuses.
    """

    ALLOW_SELECT = False
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    TakeOver > Vertical { width: 100%; height: 100%; background: $surface; }
    TakeOver .title { height: 1; background: $error; color: $text; text-style: bold; padding: 0 1;
        text-wrap: nowrap; text-overflow: ellipsis; }
    TakeOver #note { height: 1; border: none; padding: 0 1; }
    """

    def __init__(
        self, send: Send, frame: Frame | None = None, cursor: Point | None = None, *, waits: bool = False
    ) -> None:
        """send: passes a request on to the run; what it raises is shown. waits: whether a call waits for the
        person, which is denied by this.
        """
        super().__init__()
        self._send = send
        self._first = (frame, cursor)
        self._waits = waits
        self._waiting: deque[wire.Input | wire.TakeOver] = deque()
        self._more = asyncio.Event()
        self._held: Literal["left", "middle", "right"] | None = None
        self._has_it = False
        self._gives_back = False

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Plain("Taking mouse and keyboard …", classes="title")
            yield ScreenView(caption=False)
            yield PlainInput(
                id="note",
                placeholder="Note for the agent. Enter hands back, Esc keeps them, Ctrl+] types Ctrl+]",
            )

    def on_mount(self) -> None:
        """Take mouse and keyboard."""
        self.query_one("#note").display = False
        self.show_screen(*self._first)
        self.run_worker(self._take())

    def show_screen(self, frame: Frame | None, cursor: Point | None = None) -> None:
        """The live screen has changed."""
        self.query_one(ScreenView).show(frame, cursor)

    @property
    def _binding_chain(self) -> list[tuple[DOMNode, BindingsMap]]:
        """Of the keys, none is the application's own here, not the one that ends it either."""
        return [pair for pair in super()._binding_chain if pair[0] is not self.app]

    @property
    def _yours(self) -> str:
        words = ["the waiting call is denied"] if self._waits else []
        if self.query_one(ScreenView).terminal.pictures == "words":
            words.append("the mouse needs a picture, which this terminal does not show")
        return "; ".join([_YOURS, *words]) + "."

    @property
    def _writing(self) -> bool:
        return bool(self.query_one("#note").display)

    # What goes to the sandbox.

    def on_key(self, event: events.Key) -> None:
        """Type it there, or begin to hand back."""
        if event.key == WAY_OUT:  # no binding: one of priority would be heeded ahead of keys pressed before
            event.stop()
            event.prevent_default()
            self._way_out()
            return
        if self._writing:
            if event.key == "escape":
                event.stop()
                self._write_note(False)
            return
        event.stop()
        event.prevent_default()
        name = key_name(event)
        if name is None:
            self._put(wire.Input(action="text", text=event.character or ""))
        else:
            self._put(wire.Input(action="key", key=name))

    def on_paste(self, event: events.Paste) -> None:
        """Type what is pasted."""
        if not self._writing:
            event.stop()
            self._put(wire.Input(action="text", text=event.text))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Press a button of the mouse."""
        place = self._place(event)
        button = _BUTTONS.get(event.button)
        if place is None or button is None or self._writing:
            return
        self.query_one(ScreenView).capture_mouse()
        self._held = button
        self._put(wire.Input(action="press", x=place[0], y=place[1], button=button))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Release it, at the edge if the pointer has left the picture."""
        self.query_one(ScreenView).release_mouse()
        button, self._held = self._held, None
        if button is not None:
            place = self._place(event, clamp=True)
            x, y = place if place is not None else (None, None)
            self._put(wire.Input(action="release", x=x, y=y, button=button))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the pointer."""
        place = self._place(event, clamp=self._held is not None)
        if place is not None and not self._writing:
            self._put(wire.Input(action="move", x=place[0], y=place[1]))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Turn the wheel."""
        self._scroll(event, 0, -1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Turn the wheel."""
        self._scroll(event, 0, 1)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        """Turn the wheel."""
        self._scroll(event, -1, 0)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        """Turn the wheel."""
        self._scroll(event, 1, 0)

    def _scroll(self, event: events.MouseEvent, dx: int, dy: int) -> None:
        event.stop()
        place = self._place(event)
        if place is not None and not self._writing:
            self._put(wire.Input(action="scroll", x=place[0], y=place[1], dx=dx, dy=dy))

    def _place(self, event: events.MouseEvent, *, clamp: bool = False) -> Point | None:
        """The pixel of the screen under the pointer."""
        view = self.query_one(ScreenView)
        frame = view.frame
        if frame is None:
            return None
        x = event.pointer_screen_x - view.region.x
        y = event.pointer_screen_y - view.region.y
        if clamp:
            columns, rows = view.fitted(frame)
            x, y = max(0.0, min(x, columns - 0.01)), max(0.0, min(y, rows - 0.01))
        return view.pixel_at(x, y)

    def _put(self, what: wire.Input) -> None:
        """Queue an input; one that only carries on what waits last is put together with it."""
        if not self._has_it or self._gives_back:
            return
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, wire.Input) and last.action == what.action:
            if what.action == "move":
                self._waiting.pop()
            elif what.action == "text":
                self._waiting.pop()
                what = what.model_copy(update={"text": last.text + what.text})
            elif what.action == "scroll" and (last.x, last.y) == (what.x, what.y):
                self._waiting.pop()
                what = what.model_copy(update={"dx": last.dx + what.dx, "dy": last.dy + what.dy})
        if what.action != "scroll" or what.dx or what.dy:
            self._waiting.append(what)
        self._more.set()

    # Taking and handing back.

    def _way_out(self) -> None:
        """Write a note and hand back; a second time, type the key itself."""
        if self._writing:
            self._write_note(False)
            self._put(wire.Input(action="key", key="ctrl+bracketright"))
        else:
            self._write_note(True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Hand back with this note, behind what was done before."""
        event.stop()
        if not self._gives_back:
            self._gives_back = True
            self._waiting.append(wire.TakeOver(on=False, note=event.value))
            self._more.set()

    def _write_note(self, on: bool) -> None:
        note = self.query_one("#note", PlainInput)
        note.display = on
        if self._has_it:
            self._say("Enter hands back with this note, Esc keeps mouse and keyboard." if on else self._yours)
        self.set_focus(note if on else None)  # at once: what is typed next belongs there

    async def _take(self) -> None:
        try:
            await self._send(wire.TakeOver(on=True))
            self._has_it = True
            self._say(self._yours)
            while True:
                await self._more.wait()
                self._more.clear()
                while self._waiting:
                    what = self._waiting.popleft()
                    if isinstance(what, wire.TakeOver):
                        await self._send(what)
                        self._leave("")
                        return
                    await self._do(what)
        except Exception as error:
            self._leave(sentence(error))

    async def _do(self, what: wire.Input) -> None:
        try:
            await self._send(what)
        except Exception as error:
            self._say(f"{sentence(error)} Ctrl+] hands back.")

    def _leave(self, words: str) -> None:
        if words:
            notify(self.app, words, severity="error")
        self.dismiss(None)

    def _say(self, words: str) -> None:
        self.query_one(".title", Plain).update(words)
