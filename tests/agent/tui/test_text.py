"""Text from outside in every kind of widget: whole, never as markup, without a control code."""

from __future__ import annotations

from typing import Any

import pytest
from textual.app import App, ComposeResult

from pilotfish.agent.tui import text
from pilotfish.agent.tui.text import Plain, PlainButton, PlainOptions, plain

from .screens import shown_text

HOSTILE = [
    "rm -rf build[a-z]*",
    "[/]",
    "[/red]",
    "[#zz]x[/]",
    "d['k'][/a]",
    "end\\",
    "\\[b",
    "[@click=app.quit]see docs[/]",
    "[bold red]$var[/]",
    "\x1b[31mred\x1b[0m",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]0;title\x1b\\",
    "\x1bP1;2|x\x1b\\",
    "\x9b2J\x9d0;x\x9c",
    "\x1bc\x1b[6n",
    "\x1b]8;;http://evil",
    "a\u202eb\u2066c\u200bd\ufeffe\U000e0041f\u3164g\u2028h",
    "nul\0bell\x07back\x08del\x7fform\x0c",
    "lone \ud800 surrogate",
    "tab\tand\nlines\r\n",
]


@pytest.mark.parametrize("string", HOSTILE)
def test_what_shows_is_the_text_with_what_does_not_show_spelt_out(string: str) -> None:
    shown = plain(string)
    assert not [char for char in shown.plain if not char.isprintable() and char != "\n"]
    for index, char in enumerate(string):
        if char.isprintable() and ord(char) < 128:
            assert char in shown.plain, (index, char)
    one = plain(string, one_line=True)
    assert one.plain.isprintable()


def test_spelt_out_characters_stand_out_without_colour() -> None:
    shown = plain("a\x1bb")
    assert shown.plain == "a\\x1bb"
    assert [(span.start, span.end, span.style) for span in shown.spans] == [(1, 5, text.MARKED)]
    assert text.MARKED.reverse
    assert not plain("a\\x1bb").spans


def test_tabs_stop_at_every_eighth_cell() -> None:
    assert plain("a\tb\n字\tc").plain == "a       b\n字      c"
    assert plain("a\tb", exact=True).plain == "a\\tb"
    assert plain("a\xa0b", exact=True).plain == "a\\xa0b"


class _Everywhere(App[None]):
    """One of each widget."""

    def __init__(self, string: str) -> None:
        super().__init__()
        self.string = string
        self.quits = 0

    def compose(self) -> ComposeResult:
        yield Plain(self.string, id="plain")
        yield PlainButton(self.string)
        yield PlainOptions(self.string, text.option(self.string, "named"))

    def on_mount(self) -> None:
        text.notify(self, self.string)
        self.query_one("#plain", Plain).update(self.string)

    def action_quit(self) -> Any:
        self.quits += 1


@pytest.mark.parametrize("string", HOSTILE)
async def test_no_widget_reads_markup_or_lets_a_control_code_through(string: str) -> None:
    app = _Everywhere(string)
    async with app.run_test(size=(100, 40), notifications=True) as pilot:
        await pilot.pause()
        shown = shown_text(app)
        assert not [char for char in shown if not char.isprintable() and char != "\n"]
        first = plain(string, one_line=True).plain.split("\\")[0].split("  ")[0]
        assert first in shown
        await pilot.click("#plain", offset=(3, 0))
        assert app.quits == 0
        app.simulate_key("tab")
        await pilot.pause()


def test_the_gate_replaces_what_a_widget_let_through() -> None:
    from rich.segment import Segment
    from textual.color import Color

    passed = text.Gate().apply([Segment("a\x1b[31m\u202eb\x9b"), Segment("字 \xa0ok")], Color(0, 0, 0))
    assert [segment.text for segment in passed] == ["a[31mb", "字 \xa0ok"]


def test_errors_are_one_line() -> None:
    assert text.sentence(ValueError("[/a]\x1b[1m\nmore")) == "[/a]\\x1b[1m\\nmore"
    assert text.sentence(KeyboardInterrupt()) == "KeyboardInterrupt"
