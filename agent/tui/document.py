"""A long text cut into lines and wrapped to a width, so that a window of it can be drawn at any place."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.cells import cell_len, chop_cells

from pilotfish.agent.safetext import visible
from pilotfish.agent.tui.words import Part, Tone

TAB = 4
_PROSE = ("plain", "head", "thinking", "person", "faint")
"""What is broken between words; calls and results are broken where the row is full."""
LARGE = 1 << 16
"""Characters beyond which a text is prepared beside the interface, not by it."""


@dataclass(frozen=True)
class Line:
    """A line that is safe to draw. indent: cells before it."""

    text: str
    tone: Tone = "plain"
    indent: int = 0


@dataclass
class Document:
    """Lines of text; `wrap` lays them out, then `row` tells what stands where."""

    lines: list[Line] = field(default_factory=list)
    width: int = 0
    _starts: list[int] = field(default_factory=list)
    _rows: int = 0

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Document:
        """What the details of a row say."""
        lines: list[Line] = []
        for part in parts:
            if not part.heading and not part.text:
                continue
            if lines:
                lines.append(Line(""))
            if part.heading:
                lines.append(Line(safe(part.heading), "head"))
            text = part.text.removesuffix("\n")
            if text:
                lines += [Line(safe(line), part.tone, 2 if part.heading else 0) for line in text.split("\n")]
        return cls(lines)

    @property
    def rows(self) -> int:
        """How many rows of the terminal it takes at its width."""
        return self._rows

    def wrap(self, width: int) -> None:
        """Lay it out for so many cells."""
        self.width = max(1, width)
        self._starts, self._rows = [], 0
        for line in self.lines:
            self._starts.append(self._rows)
            if line.text.isascii() and (line.tone not in _PROSE or len(line.text) <= self._room(line)):
                self._rows += max(1, -(-len(line.text) // self._room(line)))
            else:
                self._rows += len(self._pieces(line))

    def row(self, y: int) -> tuple[Line, str]:
        """The line that a row shows, and the piece of it."""
        index = bisect_right(self._starts, y) - 1
        line = self.lines[index]
        pieces = self._pieces(line)
        return line, pieces[y - self._starts[index]]

    def find(self, words: str) -> list[int]:
        """The rows where lines begin that have some words in them, whatever the case."""
        words = words.casefold()
        return [
            start
            for start, line in zip(self._starts, self.lines, strict=True)
            if words in line.text.casefold()
        ]

    def _room(self, line: Line) -> int:
        return max(1, self.width - (line.indent if self.width > 20 else 0))

    def _pieces(self, line: Line) -> list[str]:
        text, room = line.text, self._room(line)
        if not text.isascii():
            return [text] if cell_len(text) <= room else chop_cells(text, room)
        if line.tone not in _PROSE or len(text) <= room:
            return [text[start : start + room] for start in range(0, len(text), room)] or [""]
        pieces, start = [], 0
        while len(text) - start > room:
            blank = text.rfind(" ", start + room // 2, start + room)
            end = blank + 1 if blank > 0 else start + room
            pieces.append(text[start:end])
            start = end
        return [*pieces, text[start:]]


def safe(line: str) -> str:
    """A line as it may be drawn: nothing hidden, nothing that moves the cursor."""
    if line.isascii() and line.isprintable():
        return line
    return visible(line).expandtabs(TAB).replace("\n", "\\n")
