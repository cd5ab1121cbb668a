"""What the index answers, as values and as lines of text for a person or the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class IndexedFile:
    """A file the index knows; path as `paths.shown` gives it, state as in `facts.FileFacts`."""

    path: str
    size: int
    lines: int
    language: str | None
    state: str
    note: str


@dataclass(frozen=True)
class RankedFile:
    """A parsed file and its share of all weight."""

    path: str
    rank: float


@dataclass(frozen=True)
class Symbol:
    """A definition and where it is; lines count from 1."""

    path: str
    line: int
    end_line: int
    kind: str
    name: str
    qualified: str
    signature: str
    doc: str


@dataclass(frozen=True)
class Use:
    """A place where a name is used. inside: the qualified name of the definition around it, or nothing.
    text: the line.
    """

    path: str
    line: int
    called: bool
    inside: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A line that a search found."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Found:
    """An answer: the first of what was found, how much more there is, and sentences on what stood in the
    way.
    """

    items: Sequence[Symbol | Use | Hit]
    left_out: int = 0
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One line for each thing found; what was left out is counted in the last one."""
        found = [_line(item) for item in self.items]
        if self.left_out:
            found.append(f"[{self.left_out} more left out; ask more narrowly or for more at once]")
        return found + [f"[{note}]" for note in self.notes]


def _line(item: Symbol | Use | Hit) -> str:
    if isinstance(item, Symbol):
        lines = str(item.line) if item.line == item.end_line else f"{item.line}-{item.end_line}"
        doc = f"  # {item.doc}" if item.doc else ""
        return f"{item.path}:{lines}: {item.kind} {item.qualified}: {item.signature}{doc}"
    if isinstance(item, Use):
        inside = f" in {item.inside}" if item.inside else ""
        return f"{item.path}:{item.line}{inside}: {item.text}"
    return f"{item.path}:{item.line}: {item.text}"


@dataclass(frozen=True)
class Likely:
    """What a text is about: files with their scores, and definitions, each the likeliest first."""

    files: list[RankedFile]
    symbols: list[Symbol]

    def lines(self) -> list[str]:
        """A line for each file, then one for each definition."""
        return [*(one.path for one in self.files), *map(_line, self.symbols)] or ["[nothing is like that]"]


@dataclass(frozen=True)
class RepositoryMap:
    """A ranked map as text. tokens: what the count function says of it. symbols: how many definitions it
    shows, of how many there are.
    """

    text: str
    tokens: int
    symbols: int
    left_out: int


@dataclass(frozen=True)
class Piece:
    """Lines of a file: first and last that are there, of how many; text with `\\n` ends. encoding: of the
    file.
    """

    path: str
    first: int
    last: int
    total: int
    text: str
    encoding: str

    def lines(self) -> list[str]:
        """The lines with their numbers; what was left out is said in the last one."""
        found = [f"{number:6}\t{line}" for number, line in enumerate(self.text.split("\n"), self.first)]
        if self.total == 0 or self.first > self.last:
            return [f"[{self.path} is empty]" if not self.total else f"[it has {self.total} lines]"]
        if self.last < self.total:
            found.append(f"[{self.total - self.last} more lines; read from {self.last + 1}]")
        return found
