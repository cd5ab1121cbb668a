"""A window on text that a person has to judge: every character of it, at any length, in numbered lines.

Lines longer than the window go on in the next row, with a mark instead of a number, so that nothing in the
text can pass for another line or for a heading. What does not show as itself is spelt out in reverse video,
blanks at the end of a line are in reverse video, and how much is still below is always known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from pilotfish.agent.safetext import visible
from pilotfish.agent.tui.text import pieces
from pilotfish.agent.tui.window import SCROLLING, Window

_CHUNK = 4096  # characters that are laid out at once
Piece = tuple[str, bool]


@dataclass(frozen=True)
class Line:
    """One line, or a part of a very long one. number: shown before it; None for words about the text, which
    are wrapped between words.
    goes_on: whether the part before it has no end of line.
    """

    text: str
    tone: str = "said"
    number: int | None = None
    goes_on: bool = False


def numbered(text: str, tone: str = "said") -> list[Line]:
    """The lines of a text, from 1."""
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        for start in range(0, max(1, len(line)), _CHUNK):
            lines.append(Line(line[start : start + _CHUNK], tone, number, goes_on=start > 0))
    return lines


class ExactView(Window):
    """Shows lines; knows whether their end was ever in sight."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "exact--said",
        "exact--gutter",
        "exact--head",
        "exact--warning",
        "exact--faint",
        "exact--added",
        "exact--removed",
    }
    DEFAULT_CSS = """
    ExactView > .exact--gutter { color: $foreground-muted; }
    ExactView > .exact--head { text-style: bold; color: $text-accent; }
    ExactView > .exact--warning { text-style: bold; color: $text-warning; }
    ExactView > .exact--faint { color: $foreground-muted; }
    ExactView > .exact--added { color: $text-success; }
    ExactView > .exact--removed { color: $text-error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = SCROLLING

    class Moved(Message):
        """Other rows are in sight."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lines: Sequence[Line] = ()
        self._starts: list[int] = []
        self._rows = 0
        self._laid_out_for = 0
        self._gutter = 0
        self._last: tuple[Line, list[list[Piece]]] | None = None  # rows of one line are drawn one by one
        self.end_seen = False
        """Whether the last row was in sight since the lines were given."""

    def show(self, lines: Iterable[Line]) -> None:
        """Show other lines, from their beginning."""
        self._lines = tuple(lines)
        self._laid_out_for = 0
        self.end_seen = False
        self.scroll_home(animate=False)
        if self.is_mounted and self.size.width:
            self._lay_out()

    @property
    def below(self) -> int:
        """How many rows are below the window."""
        return max(0, self._rows - round(self.scroll_y) - self.size.height)

    def on_resize(self) -> None:
        """Lay the lines out for the width there is."""
        self._lay_out()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Note whether the end has come into sight."""
        super().watch_scroll_y(old_value, new_value)
        self._look()

    def row(self, y: int) -> tuple[str, list[Piece], Line]:
        """What stands in a row: the gutter, pieces that are spelt out or not, the line it is of."""
        index = bisect_right(self._starts, y) - 1
        line = self._lines[index]
        within = y - self._starts[index]
        if self._last is None or self._last[0] is not line:
            self._last = (line, self._wrapped(line))
        return self._mark(line, within), self._last[1][within], line

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._rows

    def render_line(self, y: int) -> Strip:
        """One row of the window."""
        y += round(self.scroll_y)
        base = self.base
        if y >= self._rows:
            return Strip.blank(self.size.width, base)
        mark, found, line = self.row(y)
        style = self.styled(f"exact--{line.tone}", base)
        spelt = style + Style(reverse=True)
        segments = [Segment(mark, self.styled("exact--gutter", base))]
        segments += [Segment(text, spelt if marked else style) for text, marked in found]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _mark(self, line: Line, within: int) -> str:
        if line.number is None or not self._gutter:
            return " " * min(self._gutter, 2) if within else ""
        first = within == 0 and not line.goes_on
        return f"{line.number if first else '·':>{self._gutter - 1}} "

    def _lay_out(self) -> None:
        width = self.room if self.size.width else 0
        if width == self._laid_out_for or not width:
            self._look()
            return
        self._laid_out_for, self._last = width, None
        last = max((line.number or 0 for line in self._lines), default=0)
        self._gutter = len(str(last)) + 1 if last and width > 16 else 0
        self._starts, self._rows = [], 0
        for line in self._lines:
            self._starts.append(self._rows)
            room = self._room(line)
            fits = line.number is not None and line.text.isascii() and line.text.isprintable()
            self._rows += max(1, -(-len(line.text) // room)) if fits else len(self._wrapped(line))
        self.set_rows(self._rows)
        self.refresh()
        self.call_after_refresh(self._look)

    def _room(self, line: Line) -> int:
        width = max(1, self._laid_out_for)
        if line.number is not None:
            return max(1, width - self._gutter)
        return max(1, width - min(self._gutter, 2))

    def _wrapped(self, line: Line) -> list[list[Piece]]:
        """The rows of a line."""
        room, text = self._room(line), line.text
        if line.number is None and visible(text, one_line=True) == text:
            return [[(row, False)] for row in _between_words(text, room)]
        if text.isascii() and text.isprintable():
            rows = [[(text[start : start + room], False)] for start in range(0, len(text), room)] or [[]]
        else:
            rows = _rows(pieces(text), room)
        return _ends_marked(rows) if line.number is not None else rows

    def _look(self) -> None:
        if self._rows and self._laid_out_for and self.size.height and not self.below:
            self.end_seen = True
        self.post_message(self.Moved())


def _rows(found: list[Piece], room: int) -> list[list[Piece]]:
    rows: list[list[Piece]] = [[]]
    left = room
    for text, marked in found:
        if marked and left < len(text) <= room:  # an escape stays together
            rows.append([])
            left = room
        kept = ""
        for char in text:
            width = cell_len(char)
            if width > left:
                if kept:
                    rows[-1].append((kept, marked))
                rows.append([])
                kept, left = "", room
            kept += char
            left -= width
        if kept:
            rows[-1].append((kept, marked))
    return rows


def _between_words(text: str, room: int) -> list[str]:
    rows = [""]
    for word in text.split(" "):
        longer = f"{rows[-1]} {word}" if rows[-1] else word
        if cell_len(longer) <= room:
            rows[-1] = longer
        else:
            rows += chop_cells(word, room)
    return rows if rows[0] else rows[1:] or rows


def _ends_marked(rows: list[list[Piece]]) -> list[list[Piece]]:
    """The same with the blanks at the end of the line marked."""
    last = rows[-1]
    if last and not last[-1][1] and (text := last[-1][0]).endswith(" "):
        bare = text.rstrip(" ")
        rows[-1] = [*last[:-1], *([(bare, False)] if bare else []), (text[len(bare) :], True)]
    return rows
