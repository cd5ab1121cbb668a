"""Fields to edit text in that show what does not show as itself, and never change it by themselves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Checkbox, Input, RadioButton, RadioSet, TextArea

from pilotfish.agent.safetext import visible
from pilotfish.agent.tui.text import plain

_REVERSE = Style(reverse=True)


@lru_cache(1 << 14)
def stand_in(char: str) -> str:
    """One character of one cell or more that stands for `char` where it would not show as itself."""
    if visible(char, one_line=True) == char:
        return char
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def stood_in(text: str) -> Text:
    """A line, character for character, with stand-ins in reverse video."""
    shown = "".join(map(stand_in, text))
    line = Text(shown, no_wrap=True, overflow="ignore", end="")
    for index, (char, instead) in enumerate(zip(text, shown, strict=True)):
        if char != instead:
            line.stylize(_REVERSE, index, index + 1)
    return line


class PlainInput(Input):
    """One line to edit. Its value may hold anything, line feeds too, and stays what it is."""

    def __init__(self, value: str = "", *, placeholder: str = "", **options: Any) -> None:
        options.setdefault("select_on_focus", False)  # or the next key would take what is there away
        super().__init__(value, placeholder=visible(placeholder, one_line=True), **options)

    @property
    def _value(self) -> Text:
        return Text("•" * len(self.value), end="") if self.password else stood_in(self.value)

    def _position_to_cell(self, position: int) -> int:
        return cell_len("".join(map(stand_in, self.value[:position])))

    def _cell_offset_to_index(self, offset: int) -> int:
        offset += self.scroll_offset.x
        cells = 0
        for index, char in enumerate(self.value):
            cells += cell_len(stand_in(char))
            if offset < cells:
                return index
        return len(self.value)


class PlainArea(TextArea):
    """Several lines to edit. It can hold what `can_edit` says; of what is pasted, the rest is spelt out."""

    def __init__(self, text: str = "", **options: Any) -> None:
        super().__init__(text, soft_wrap=True, tab_behavior="focus", **options)

    @staticmethod
    def can_edit(text: str) -> bool:
        """Whether every character shows as itself, so that the text comes back as it is."""
        return "\r" not in text and visible(text) == text

    def get_line(self, line_index: int) -> Text:
        """One line as it is drawn."""
        line = self.document.get_line(line_index)
        if line.isprintable():
            return super().get_line(line_index)
        shown = "".join(char if char == "\t" else stand_in(char) for char in line)
        return Text(shown, end="", no_wrap=True)

    async def _on_paste(self, event: events.Paste) -> None:
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        event.prevent_default()
        if not self.read_only and (result := self._replace_via_keyboard(visible(text), *self.selection)):
            self.move_cursor(result.end_location)


def label(text: str, note: str = "") -> Content:
    """What stands above a field."""
    return Content.assemble(plain(text, "bold", one_line=True), *([plain(f"  {note}")] if note else []))


class Tick(Checkbox):
    """A box whose sign tells its state, where there is no colour too."""

    def __init__(self, label: str, value: bool = False, *, id: str | None = None) -> None:
        """label: shown as it is."""
        super().__init__(plain(label), value, id=id, compact=True)

    @property
    def _button(self) -> Content:
        return Content(f"[{'x' if self.value else ' '}]")


class Choice(RadioButton):
    """One of several, likewise."""

    def __init__(self, label: str, value: bool = False) -> None:
        """label: shown as it is."""
        super().__init__(plain(label), value)

    @property
    def _button(self) -> Content:
        return Content(f"({'o' if self.value else ' '})")


class Choices(RadioSet):
    """`Choice`s of which the arrow keys choose one: what they lead to holds, without another key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,right", "go(1)", "Next", show=False),
        Binding("up,left", "go(-1)", "Before", show=False),
    ]

    def on_focus(self) -> None:
        """Begin at the one that is chosen, which Enter and Space then leave chosen."""
        self._selected = max(0, self.pressed_index)

    def action_go(self, by: int) -> None:
        """Choose the one after that which is chosen, or before it; round at the ends."""
        buttons = list(self.query(Choice))
        chosen = (max(0, self.pressed_index) + by) % len(buttons)
        # At once, for keys may come faster than the messages by which the buttons agree with each other.
        with self.prevent(RadioButton.Changed):
            for index, button in enumerate(buttons):
                button.value = index == chosen
        self._pressed_button, self._selected = buttons[chosen], chosen
