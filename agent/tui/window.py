"""A window on many rows, of which only those in sight are drawn: the base of lists and long texts."""

from __future__ import annotations

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

SCROLLING: list[BindingType] = [
    Binding("up,k", "scroll_up", "Line up", show=False),
    Binding("down,j", "scroll_down", "Line down", show=False),
    Binding("pageup", "page_up", "Page up", show=False),
    Binding("pagedown,space", "page_down", "Page down", show=False),
    Binding("home,g", "scroll_home", "To the beginning", show=False),
    Binding("end,G", "scroll_end", "To the end", show=False),
]
"""The keys of a text that is read."""


class Window(ScrollView, can_focus=True):
    """A subclass draws rows in `render_line`, with the styles that `base` and `styled` give."""

    DEFAULT_CSS = """
    Window { overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1; }
    """
    base = Style.null()
    """The style of the widget itself, found anew for each drawing and not for each row."""

    def set_rows(self, count: int) -> None:
        """Say how many rows there are. The scrollbar is always there, so that this lays nothing out anew."""
        size = Size(self.room, count)
        if size != self.virtual_size:
            self.set_reactive(Window.virtual_size, size)
            self._scroll_update(size)

    @property
    def room(self) -> int:
        """Cells of a row, without the scrollbar."""
        return max(1, self.scrollable_content_region.width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the rows in sight."""
        self.base = self.rich_style
        return super().render_lines(crop)

    def styled(self, name: str, base: Style) -> Style:
        """A style of the sheet over another."""
        return base + self.get_component_rich_style(name, partial=True)
