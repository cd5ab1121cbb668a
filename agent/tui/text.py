"""Any text of a model, tool, file, page or error, shown whole in Textual's widgets.

Textual reads every `str` as markup: `build[a-z]*` would show as `build*`, `[/]` would end the program, and
`[@click=...]` would make a link that acts. So no `str` from outside reaches a widget here; it goes through
`plain`, which spells out in reverse video what does not show as itself.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from rich.cells import cell_len
from rich.segment import Segment
from textual.app import App
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.content import Content, Span
from textual.filter import LineFilter
from textual.geometry import Size
from textual.style import Style
from textual.visual import VisualType
from textual.widget import Widget
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from pilotfish.agent.safetext import shortened, visible
from pilotfish.agent.tui.colours import Coloured

MARKED = Style(reverse=True)
"""How a spelt-out character stands out, without colour too."""

Severity = Literal["information", "warning", "error"]
_RUN = re.compile(r"[ -~]+")
_PARTS = re.compile(r"[ -~]+|[^ -~]")
_ASCII = frozenset(map(chr, range(0x20, 0x7F)))
_TAB = 8
_REST = "… (? has all)"
LOW = 16
"""Rows below which there is little room."""
_KITTY_CELL = "\U0010eeee"  # where Kitty draws a part of a picture


def plain(text: str, style: Style | str = "", *, one_line: bool = False, exact: bool = False) -> Content:
    """`text` as content that is never markup. Control, direction and invisible characters are spelt out as in
    `\\x1b`, in reverse video; tabs become blanks up to the next eighth column.

    one_line: spell out line feeds and tabs too. exact: spell out tabs, and blanks other than U+0020.
    """
    shown: list[str] = []
    spans: list[Span] = []
    length = 0
    for index, line in enumerate([text] if one_line else text.split("\n")):
        if index:
            shown.append("\n")
            length += 1
        for piece, marked in pieces(line, spell_tabs=one_line or exact, exact=exact):
            if marked:
                spans.append(Span(length, length + len(piece), MARKED))
            shown.append(piece)
            length += len(piece)
    if style and length:
        spans.insert(0, Span(0, length, style))
    return Content("".join(shown), spans, strip_control_codes=False)


def pieces(line: str, *, spell_tabs: bool = True, exact: bool = True) -> list[tuple[str, bool]]:
    """A line cut into what shows as itself and what is spelt out (True)."""
    if _RUN.fullmatch(line) or (not exact and visible(line, one_line=True) == line):
        return [(line, False)]
    found: list[tuple[str, bool]] = []
    kept = ""
    for part in _PARTS.finditer(line):
        char = part[0]
        if char[0] in _ASCII:
            kept += char
            continue
        if char == "\t" and not spell_tabs:
            kept += " " * (_TAB - (_width(found) + cell_len(kept)) % _TAB)
            continue
        spelt = visible(char, one_line=True)
        if exact and char.isspace() and char != " " and spelt == char:
            spelt = char.encode("unicode_escape").decode("ascii")
        if spelt == char:
            kept += char
            continue
        if kept:
            found.append((kept, False))
            kept = ""
        found.append((spelt, True))
    if kept:
        found.append((kept, False))
    return found


def _width(found: list[tuple[str, bool]]) -> int:
    return sum(cell_len(piece) for piece, _ in found)


class Plain(Static):
    """A `Static` whose `str` is shown as it is."""

    def __init__(self, text: str | Content = "", **options: Any) -> None:
        super().__init__(_content(text), markup=False, **options)

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        super().update(_content(content) if isinstance(content, str) else content, layout=layout)


def stand_close(dialog: Widget, close: bool) -> None:
    """Have the buttons of a dialog take no more room than their words, or as much as is usual."""
    for button in dialog.query(PlainButton):
        button.styles.line_pad = 0 if close else 1  # not in a style sheet, where 0 is no number


class PlainButton(Button):
    """A `Button` whose label is shown as it is; Space presses it too."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "press", "Press", show=False)]
    DEFAULT_CSS = """
    PlainButton.-primary { color: white !important; }
    PlainButton:disabled { opacity: 100% !important; text-opacity: 100% !important;
        color: $text-disabled !important; text-style: none; }
    """

    def __init__(self, label: str | Content, **options: Any) -> None:
        super().__init__(_content(label), **options)

    def validate_label(self, label: Any) -> Content:
        return _content(label)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        usual = super().get_content_width(container, viewport)  # which is with one blank on each side
        return usual - 2 + 2 * self.styles.line_pad


class PlainOptions(OptionList):
    """An `OptionList` of `option`s; a `str` given as one is shown as it is."""

    def __init__(self, *options: str | Content | Option | None, **more: Any) -> None:
        super().__init__(*map(_option, options), markup=False, **more)

    def add_options(self, new_options: Any) -> PlainOptions:
        super().add_options([_option(one) for one in new_options])
        return self


def option(text: str | Content, name: str | None = None, *, disabled: bool = False) -> Option:
    """One choice of a `PlainOptions`, on one line."""
    return Option(_content(text, one_line=True), id=name, disabled=disabled)


@runtime_checkable
class Uncovered(Protocol):
    """A screen that nothing may lie upon."""

    def notified(self, words: str) -> None:
        """Show a message in a place of its own."""
        ...


def notify(
    where: App[Any] | Widget, text: str, *, severity: Severity = "information", timeout: float = 8
) -> None:
    """Show a short message for `timeout` seconds; a long one is cut with a mark. A dialog that must not be
    covered shows it itself. On a low terminal it takes two lines at most and the place of the one before; the
    help has the whole of it.
    """
    app = where if isinstance(where, App) else where.app
    said = shortened(text, 400)
    if app.size.height < LOW:
        app.clear_notifications()
        room = max(20, app.size.width - 5)  # beside a border, blanks and the place of a scroll bar
        whole, said = said, _on_two_lines(said, room)
        if isinstance(app, Coloured):
            app.cut_notice = "" if said == whole else whole
    if isinstance(app.screen, Uncovered):
        app.screen.notified(said)
    else:
        app.notify(said, severity=severity, timeout=timeout, markup=False)


def _on_two_lines(text: str, width: int) -> str:
    """As much of a text as two lines of so many cells hold, with a word on the rest."""
    rows = Content(text).wrap(width)
    if len(rows) <= 2:
        return text
    first, second = rows[0].plain.rstrip(), rows[1].truncate(width - len(_REST)).plain.rstrip()
    return f"{first}\n{second}{_REST}"


def sentence(error: BaseException) -> str:
    """An error on one line; its kind where it says nothing itself."""
    return shortened(str(error), 400) or type(error).__name__


class Gate(LineFilter):
    """Lets no control code through that stands in shown text, whatever widget put it there. The last line of
    defence; `plain` is what makes such characters visible.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Put U+FFFD in the place of each, or nothing where it took no cell."""
        return [
            segment
            if segment.control or segment.text.isprintable()
            else Segment(_gated(segment.text), segment.style)
            for segment in segments
        ]


def _gated(text: str) -> str:
    return "".join(
        char if char == _KITTY_CELL or visible(char, one_line=True) == char else "�" * cell_len(char)
        for char in text
    )


def _content(text: Any, *, one_line: bool = False) -> Content:
    return text if isinstance(text, Content) else plain(str(text), one_line=one_line)


def _option(one: str | Content | Option | None) -> Option | None:
    return one if isinstance(one, Option) or one is None else option(one)
