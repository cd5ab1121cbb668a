"""A window on a long text: 35,000 lines are as quick as ten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType
from textual.reactive import reactive
from textual.strip import Strip

from pilotfish.agent.tui.document import LARGE, Document
from pilotfish.agent.tui.window import SCROLLING, Window
from pilotfish.agent.tui.words import Part

_KEPT = 4
"""Large texts that are kept prepared."""


class TextView(Window):
    """Shows parts of text. What others wrote is drawn as it is; nothing in it is obeyed."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "text--plain",
        "text--head",
        "text--thinking",
        "text--call",
        "text--result",
        "text--fault",
        "text--person",
        "text--faint",
        "text--found",
    }
    DEFAULT_CSS = """
    TextView > .text--head { text-style: bold; color: $text-accent; }
    TextView > .text--thinking { color: $foreground-muted; text-style: italic; }
    TextView > .text--call { color: $text-primary; }
    TextView > .text--fault { color: $text-error; }
    TextView > .text--person { color: $text-warning; }
    TextView > .text--faint { color: $foreground-muted; }
    TextView > .text--found { text-style: reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = SCROLLING
    found: reactive[str] = reactive("")
    """Words that are marked wherever they stand."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._document = Document()
        self._kept: dict[Hashable, Document] = {}
        self._shown = 0  # how often another text was asked for

    @property
    def document(self) -> Document:
        """What is shown."""
        return self._document

    def show(self, parts: Sequence[Part], *, keep_place: bool = False, key: Hashable = None) -> None:
        """Show a text in place of the one before.

        keep_place: it is the same one, and has grown. key: of a text that does not change; a large one is
        kept for a while under it.
        """
        self._shown += 1
        if key is not None and key in self._kept:
            self._put(self._kept[key], keep_place)
        elif sum(len(part.text) for part in parts) < LARGE:
            self._put(Document.of(parts), keep_place)
        else:
            self.run_worker(self._prepare(self._shown, lambda: Document.of(parts), keep_place, key))

    def next_found(self, forward: bool = True) -> bool:
        """Scroll to the next line that has the words of `found`; whether there is one."""
        rows = self._document.find(self.found) if self.found else []
        here = self.scroll_offset.y
        later = [row for row in rows if (row > here if forward else row < here)]
        if not later:
            return False
        self.scroll_to(y=later[0 if forward else -1], animate=False, force=True, immediate=True)
        return True

    def first_found(self) -> None:
        """Bring the first line that has the words of `found` into view."""
        rows = self._document.find(self.found) if self.found else []
        if rows and not self.scroll_offset.y <= rows[0] < self.scroll_offset.y + self.size.height:
            self.scroll_to(y=max(0, rows[0] - 2), animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        """One row of the window."""
        y += self.scroll_offset.y
        width = self.size.width
        base = self.base
        if y >= self._document.rows or self._document.width != self.room:
            return Strip.blank(width, base)
        line, piece = self._document.row(y)
        style = self.styled(f"text--{line.tone}", base)
        indent = line.indent if self.room > 20 else 0
        segments = [Segment(" " * indent, base), *self._marked(piece, style)]
        return Strip(segments).adjust_cell_length(width, base)

    def on_resize(self) -> None:
        """Wrap the text to the new width."""
        if self._document.width != self.room:
            document = self._document
            if sum(len(line.text) for line in document.lines) < LARGE:
                self._put(document, keep_place=True)
            else:
                copy = Document(document.lines)
                self.run_worker(self._prepare(self._shown, lambda: copy, keep_place=True))

    def watch_found(self) -> None:
        """Draw the marks anew."""
        self.refresh()

    def _marked(self, piece: str, style: Style) -> list[Segment]:
        if not self.found or (words := self.found.casefold()) not in (folded := piece.casefold()):
            return [Segment(piece, style)]
        marked = self.styled("text--found", style)
        if len(folded) != len(piece):  # folding has moved the places
            return [Segment(piece, marked)]
        segments: list[Segment] = []
        done = 0
        while (place := folded.find(words, done)) >= 0:
            end = place + len(words)
            segments += [Segment(piece[done:place], style), Segment(piece[place:end], marked)]
            done = end
        return [*segments, Segment(piece[done:], style)]

    async def _prepare(
        self, shown: int, make: Callable[[], Document], keep_place: bool, key: Hashable = None
    ) -> None:
        """Cut and wrap a large text in a thread."""
        room = self.room

        def work() -> Document:
            document = make()
            document.wrap(room)
            return document

        document = await asyncio.to_thread(work)
        if key is not None:
            self._kept[key] = document
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        if shown == self._shown:
            self._put(document, keep_place)

    def _put(self, document: Document, keep_place: bool) -> None:
        at_end = keep_place and self.is_vertical_scroll_end and self._document.rows > self.size.height
        if document.width != self.room:
            document.wrap(self.room)
        self._document = document
        self.set_rows(document.rows)
        if not keep_place:
            self.scroll_home(animate=False, force=True, immediate=True)
        elif at_end:
            self.scroll_end(animate=False, force=True, immediate=True)
        self.refresh()
        if self.found and not keep_place:
            self.first_found()
