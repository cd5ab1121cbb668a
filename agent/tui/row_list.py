"""A list of rows of which only those in the window are drawn, however many there are."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from pilotfish.agent.tui.window import Window


def fitted(text: str, room: int) -> str:
    """A text of exactly so many cells: filled up with blanks, or cut with a mark."""
    if cell_len(text) <= room:
        return set_cell_size(text, room)
    return set_cell_size(text, room - 1) + "…" if room > 0 else ""


class RowList(Window):
    """Rows with a cursor. A subclass says how many there are and draws one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--cursor"}
    DEFAULT_CSS = """
    RowList > .rows--cursor { background: $surface-lighten-1; text-style: bold; }
    RowList:focus > .rows--cursor { background: $primary-muted; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Row up", show=False),
        Binding("down,j", "move(1)", "Row down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "move(-1000000000)", "First row", show=False),
        Binding("end,G", "move(1000000000)", "Last row", show=False),
    ]
    cursor: reactive[int] = reactive(0, repaint=False)

    class Chosen(Message):
        """Another row is under the cursor."""

    class Opened(Message):
        """A row was clicked twice."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        raise NotImplementedError

    def draw(self, index: int, width: int, base: Style) -> list[Segment]:
        """One row, of at most so many cells."""
        raise NotImplementedError

    def changed(self) -> None:
        """Call it when there are other rows, or as many others."""
        self.set_rows(self.count)
        self.cursor = max(0, min(self.cursor, self.count - 1))
        self._reveal()
        self.refresh()

    def choose(self, index: int) -> None:
        """Put the cursor on a row."""
        self.cursor = max(0, min(index, self.count - 1))

    def watch_cursor(self) -> None:
        """Tell of the row under the cursor."""
        if self.is_mounted:
            self._reveal()
            self.refresh()
            self.post_message(self.Chosen())

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.choose(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by what the window shows."""
        self.choose(self.cursor + by * max(1, self.size.height - 1))

    def on_click(self, event: events.Click) -> None:
        """Choose the row under the pointer; the second click opens it."""
        index = event.y + self.scroll_offset.y
        if index < self.count:
            self.choose(index)
            if event.chain > 1:
                self.post_message(self.Opened())

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self._reveal()

    def render_line(self, y: int) -> Strip:
        """One line of the window."""
        index = y + self.scroll_offset.y
        width, base = self.room, self.base
        if index >= self.count:
            return Strip.blank(self.size.width, base)
        is_cursor = index == self.cursor
        if is_cursor:
            base = self.styled("rows--cursor", base)
        segments = [Segment("▌" if is_cursor else " ", base), *self.draw(index, max(0, width - 1), base)]
        return Strip(segments).adjust_cell_length(width, base).extend_cell_length(self.size.width, base)

    def _reveal(self) -> None:
        top, height = self.scroll_offset.y, self.size.height
        if height <= 0:
            return
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True, immediate=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True, immediate=True)
