"""The list of a run's steps."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from pilotfish.agent.safetext import shortened
from pilotfish.agent.tui.model import Row
from pilotfish.agent.tui.row_list import RowList, fitted
from pilotfish.agent.tui.words import duration, head, mark, number

_WIDE, _NARROW = 56, 26
"""Columns from which on a row has its time and tokens, and from which on it has its time."""
_MOST = 400


class StepList(RowList):
    """Rows of a run, and one more for what happens now."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "step--undone",
        "step--task",
        "step--fault",
        "step--person",
        "step--faint",
        "step--live",
    }
    DEFAULT_CSS = """
    StepList > .step--undone { text-style: strike; color: $foreground-muted; }
    StepList > .step--task { color: $text-accent; text-style: bold; }
    StepList > .step--fault { color: $text-error; }
    StepList > .step--person { color: $text-warning; }
    StepList > .step--faint { color: $foreground-muted; }
    StepList > .step--live { text-style: italic; color: $text-success; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[Row] = []
        self._live = ""
        self._count = 0  # when it was last shown; the rows are the model's own and grow before that
        self._heads: dict[int, tuple[int, str]] = {}

    @property
    def count(self) -> int:
        """Its rows, the live one included."""
        return len(self._rows) + bool(self._live)

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor; None for the live one, or where there is none."""
        return self._rows[self.cursor] if self.cursor < len(self._rows) else None

    def show(self, rows: list[Row], live: str) -> None:
        """Show these rows, and a word on what happens now, '' for nothing. Who looks at the last row goes on
        looking at the last row.
        """
        follows = self.cursor >= self._count - 1
        again = rows is not self._rows
        if again:
            self._heads.clear()
        self._rows, self._live = rows, live
        self._count = self.count
        if again or follows:
            self.cursor = max(0, self.count - 1)
        self.changed()

    def draw(self, index: int, width: int, base: Style) -> list[Segment]:
        """One row: number, how it went, what it was, and what it cost."""
        if index == len(self._rows):
            return [Segment(fitted(f"   … {self._live}", width), self.styled("step--live", base))]
        row = self._rows[index]
        style = self._style(row, base)
        figures = _figures(row, width)
        before = f"{row.step or '':>{4 if width >= _NARROW else 3}} {mark(row)} {'  ' * row.depth}"
        before += f"[{row.lane}] " if row.lane else ""
        text = fitted(self._head(row), max(0, width - cell_len(before) - len(figures)))
        faint = self.styled("step--faint", base)
        return [Segment(before, style), Segment(text, style), Segment(figures, faint)]

    def _style(self, row: Row, base: Style) -> Style:
        if row.undone:
            return self.styled("step--undone", base)
        if row.kind == "task":
            return self.styled("step--task", base)
        if mark(row) == "!":
            return self.styled("step--fault", base)
        if row.kind in ("you", "mark"):
            return self.styled("step--person", base)
        return self.styled("step--faint", base) if row.kind in ("note", "net", "told") else base

    def _head(self, row: Row) -> str:
        found = self._heads.get(row.index)
        if found is None or found[0] != row.version:
            text = ("undone: " if row.undone else "") + head(row)
            found = row.version, shortened(text[: 2 * _MOST], _MOST)
            self._heads[row.index] = found
        return found[1]


def _figures(row: Row, width: int) -> str:
    """Time, tokens written and the share of the prompt that was cached, as far as there is room."""
    if width < _NARROW or row.kind != "step":
        return ""
    figures = f" {duration(row.seconds):>6}"
    answer = row.answer
    if width < _WIDE or answer is None:
        return figures
    usage = answer.usage
    hits = (
        f"{usage.cached_tokens / usage.input_tokens:4.0%}"
        if usage.input_tokens and usage.cached_tokens
        else ""
    )
    return f"{figures} {number(usage.output_tokens):>5}t {hits:>4}"
