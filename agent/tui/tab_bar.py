"""A line of tabs. Each has its number as a key."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget


class TabBar(Widget):
    """The names of tabs, of which one is active; a click chooses another."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"tab--active"}
    DEFAULT_CSS = """
    TabBar { height: 1; background: $panel; }
    TabBar > .tab--active { text-style: bold reverse; }
    """
    active: reactive[int] = reactive(0)
    note: reactive[str] = reactive("")
    """Stands at the right, where there is room for it."""

    class Picked(Message):
        """A tab was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, names: tuple[str, ...], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._names = names

    def render_line(self, y: int) -> Strip:
        """The line."""
        base = self.rich_style
        active = base + self.get_component_rich_style("tab--active", partial=True)
        segments = [
            Segment(label, active if index == self.active else base)
            for index, label in enumerate(self._labels())
        ]
        room = self.size.width - sum(segment.cell_length for segment in segments)
        if self.note and len(self.note) + 2 <= room:
            segments.append(Segment(f"{self.note} ".rjust(room), base))
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def on_click(self, event: events.Click) -> None:
        """Choose the tab under the pointer."""
        end = 0
        for index, label in enumerate(self._labels()):
            end += len(label)
            if event.x < end:
                self.post_message(self.Picked(index))
                return

    def _labels(self) -> list[str]:
        wide = self.size.width >= sum(len(name) + 4 for name in self._names)
        return [
            f" {index} {name} " if wide else f"{index}{name[:4]} "
            for index, name in enumerate(self._names, 1)
        ]
