"""Small dialogs: a question with two answers, a sentence to read, and the help."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen, Screen

from pilotfish.agent.safetext import shortened
from pilotfish.agent.tui.bottom_line import BottomLine
from pilotfish.agent.tui.text import Plain, PlainButton
from pilotfish.agent.tui.text_view import TextView
from pilotfish.agent.tui.words import Part

_BASICS = """\
Up, Down   move (k, j too); Page Up, Page Down, Home, End
Enter      open, press
Tab        to the next pane or field; Shift+Tab back
Esc        back
Ctrl+P     every command, to be searched by name
F2, F4     light or dark; the rules of what runs, is asked about or denied
Ctrl+Q     leave; runs go on by themselves
the mouse  a click chooses, two open, the wheel scrolls; the keys in the bottom line can be clicked"""
_MARKS = """\
+ went well     ! failed       ? waits for you     . no result yet
> a task        # an end       @ you               ~ asked again
struck through: undone by a step back"""


def of_no_use(screen: Screen[Any], event: events.Key) -> str:
    """A sentence on a key that does nothing in a dialog, with those that do; '' for one that does."""
    if event.key in screen.active_bindings:
        return ""
    keys = [binding for binding in Binding.make_bindings(type(screen).BINDINGS) if binding.show]
    shown = ", ".join(dict.fromkeys(screen.app.get_key_display(binding) for binding in keys))
    pressed = screen.app.get_key_display(Binding(event.key, "", ""))
    return f"{shortened(pressed, 12)} does nothing here; these do: {shown}."


class Confirm(ModalScreen[bool]):
    """Asks before something that cannot be taken back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("left,right", "app.focus_next", "The other", show=False),
    ]

    def __init__(self, question: str, yes: str, no: str = "No") -> None:
        super().__init__()
        self._question, self._yes, self._no = question, yes, no

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Plain(self._question, classes="question")
            said = Plain(classes="said hint")
            said.display = False
            yield said
            with Horizontal(classes="buttons"):
                yield PlainButton(f"y {self._yes}", id="yes", variant="warning", compact=True)
                yield PlainButton(f"n {self._no}", id="no", compact=True)
        yield BottomLine()

    def on_mount(self) -> None:
        """The answer that changes nothing is the one that Enter gives."""
        self.query_one("#no").focus()

    def on_button_pressed(self, event: PlainButton.Pressed) -> None:
        """Answer."""
        self.dismiss(event.button.id == "yes")

    def on_key(self, event: events.Key) -> None:
        """Say of a key that it is none here."""
        if words := of_no_use(self, event):
            said = self.query_one(".said", Plain)
            said.display = True
            said.update(words)

    def action_answer(self, yes: bool) -> None:
        """Answer."""
        self.dismiss(yes)


class Reader(ModalScreen[None]):
    """A text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Close")]

    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self._parts = parts

    def compose(self) -> ComposeResult:
        yield TextView(id="reader")
        yield BottomLine()

    def on_mount(self) -> None:
        """Show it."""
        view = self.query_one(TextView)
        view.show(self._parts)
        view.focus()


class Help(Reader):
    """Every key of the screen below, and what the signs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "dismiss", "Close", show=False)]

    def __init__(self, below: Screen[Any]) -> None:
        keys: dict[str, str] = {}
        for binding in Binding.make_bindings(type(below).BINDINGS):
            what = binding.tooltip or binding.description
            shown = below.app.get_key_display(binding)
            keys[what] = f"{keys[what]}, {shown}" if what in keys else shown
        width = max(10, *map(len, keys.values())) if keys else 0
        explanation = getattr(below, "EXPLANATION", "")
        cut = getattr(below.app, "cut_notice", "")
        super().__init__(
            [
                *([Part("The newest message", cut)] if cut else []),
                Part("What this is", explanation),
                Part("Keys here", "\n".join(f"{key:<{width}} {what}" for what, key in keys.items())),
                Part("Keys everywhere", _BASICS),
                Part("Signs before a step", _MARKS),
            ]
        )
