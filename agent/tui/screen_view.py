"""A run's screen in the terminal, with the proposed action drawn on it, and the four frames of a clip."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from pilotfish.agent.events import CallData
from pilotfish.agent.safetext import shortened
from pilotfish.agent.tui.proposal import Frame, Point, Proposal, colour_at, crop_at, drawn, proposal
from pilotfish.agent.tui.terminal import Terminal, picture_widget
from pilotfish.agent.tui.text import Plain, plain

_NO_PICTURE = "There is no picture of the screen."
_COARSE = 0xF8  # colours of half-blocks: five bits each, so that their styles are few


class Blocks(Widget):
    """A picture of coloured half-blocks, two pixels to a cell."""

    DEFAULT_CSS = "Blocks { width: auto; height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self._pixels: Frame | None = None
        self._rows: list[Strip] = []
        self._label: tuple[int, int, Content] | None = None

    def put(self, pixels: Frame | None, label: tuple[int, int, Content] | None = None) -> None:
        """Show a picture of even height, in its own size, with words from a column and row of cells on."""
        self._label = label
        if pixels is None:
            self._pixels, self._rows = None, []
            self.refresh(layout=True)
            return
        pixels = pixels & np.uint8(_COARSE)
        before, rows = self._pixels, self._rows
        same_size = before is not None and before.shape == pixels.shape
        self._pixels = pixels
        self._rows = []
        for row in range(pixels.shape[0] // 2):
            pair = slice(2 * row, 2 * row + 2)
            if before is not None and same_size and np.array_equal(before[pair], pixels[pair]):
                self._rows.append(rows[row])
            else:
                self._rows.append(_strip(pixels[pair]))
        self.refresh(layout=not same_size)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return 0 if self._pixels is None else int(self._pixels.shape[1])

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._rows)

    def render_line(self, y: int) -> Strip:
        """One row of cells."""
        width = self.size.width
        if y >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        strip = self._rows[y]
        if self._label is not None and self._label[1] == y:
            left, _, words = self._label
            over = Strip(words.render_segments(self.visual_style))
            strip = Strip.join([strip.crop(0, left), over, strip.crop(left + over.cell_length)])
        return strip.adjust_cell_length(width, self.rich_style)


def _strip(pair: Frame) -> Strip:
    """Two rows of pixels as one row of cells; equal neighbours share a segment."""
    packed = (pair.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(axis=2)
    both = packed[0].astype(np.uint64) << np.uint64(24) | packed[1]
    edges = [0, *(np.flatnonzero(both[1:] != both[:-1]) + 1).tolist(), len(both)]
    segments = []
    for start, end in itertools.pairwise(edges):
        top, bottom = int(packed[0, start]), int(packed[1, start])
        segments.append(Segment(("▀" if top != bottom else " ") * (end - start), _style(top, bottom)))
    return Strip(segments, pair.shape[1])


@lru_cache(1 << 15)
def _style(top: int, bottom: int) -> Style:
    return Style(color=_colour(top), bgcolor=_colour(bottom))


def _colour(packed: int) -> Color:
    return Color.from_rgb(packed >> 16, packed >> 8 & 255, packed & 255)


class ScreenView(Vertical):
    """The live screen, as large as fits. Frames that come faster than they can be drawn are left out."""

    DEFAULT_CSS = """
    ScreenView { width: 1fr; height: 1fr; min-height: 2; overflow: hidden; }
    ScreenView > .caption { height: 1; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    ScreenView > .words { height: auto; width: 1fr; }
    """

    def __init__(self, terminal: Terminal | None = None, *, caption: bool = True, **options: Any) -> None:
        """terminal: what it can show; by default what the application has found out. caption: whether a line
        below says in words what is drawn; where no picture can be, words say why all the same.
        """
        super().__init__(**options)
        self._caption = caption
        self._terminal = terminal
        self._wanted: tuple[Frame | None, Point | None, CallData | None, Point | None] = (None,) * 4
        self._none = _NO_PICTURE
        self._preparing = False
        self._again = False
        self.proposal: Proposal | None = None
        """What is drawn on the screen."""

    @property
    def terminal(self) -> Terminal:
        """What the terminal can show."""
        return self._terminal or getattr(self.app, "terminal", None) or Terminal("words")

    def compose(self) -> ComposeResult:
        if self.terminal.pictures == "blocks":
            yield Blocks()
        elif self.terminal.pictures != "words":
            yield picture_widget(self.terminal)
        said = Plain(classes="words" if self.terminal.pictures == "words" else "caption")
        said.display = self._caption or self.terminal.pictures == "words"
        yield said

    def show(
        self,
        frame: Frame | None,
        cursor: Point | None = None,
        action: CallData | None = None,
        pixel: Point | None = None,
        *,
        none: str = _NO_PICTURE,
    ) -> None:
        """Show a frame, uint8 RGB of shape [height, width, 3], or that there is none.

        cursor and pixel: places in pixels of the frame. action: a call whose effect is drawn on it. none:
        said where there is no frame.
        """
        self._wanted = (frame, cursor, action, pixel)
        self._none = none
        self._draw()

    @property
    def frame(self) -> Frame | None:
        """The newest frame that was given to it."""
        return self._wanted[0]

    def pixel_at(self, x: float, y: float) -> Point | None:
        """The pixel of the screen under a place of the picture, in cells; None beside it."""
        frame = self.frame
        if frame is None or self.terminal.pictures == "words":
            return None
        columns, rows = self.fitted(frame)
        if not (0 <= x < columns and 0 <= y < rows):
            return None
        return int(x * frame.shape[1] / columns), int(y * frame.shape[0] / rows)

    def fitted(self, frame: Frame) -> tuple[int, int]:
        """The cells (columns, rows) that a frame takes here, its proportions kept."""
        columns, rows = max(1, self.size.width), max(1, self.size.height - self._caption)
        wide, high = self.terminal.cell if self.terminal.pictures in ("kitty", "sixel") else (1, 2)
        scale = min(columns * wide / frame.shape[1], rows * high / frame.shape[0])
        return (
            max(1, min(columns, round(frame.shape[1] * scale / wide))),
            max(1, min(rows, round(frame.shape[0] * scale / high))),
        )

    def on_mount(self) -> None:
        """Draw what was asked for before."""
        self._draw()

    def on_resize(self) -> None:
        """Scale the picture."""
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        frame, cursor, action, pixel = self._wanted
        self.proposal = None
        if frame is not None and action is not None:
            self.proposal = proposal(action, frame.shape[1], frame.shape[0], cursor, pixel)
        self.query_one(".words, .caption", Plain).update(self._words())
        if self.terminal.pictures == "words":
            return
        if self._preparing:
            self._again = True
            return
        self._preparing = True
        self.run_worker(self._prepare(), exit_on_error=False)

    async def _prepare(self) -> None:
        """Scale and draw in a thread, the newest frame again and again until none is newer."""
        try:
            while True:
                self._again = False
                frame, cursor, _, _ = self._wanted
                if frame is None:
                    self._put(None, (0, 0))
                elif self.size.width and self.size.height > self._caption:
                    cells = self.fitted(frame)
                    own = self.terminal.pictures != "blocks"
                    wide, high = self.terminal.cell if own else (1, 2)
                    size = (cells[0] * wide, cells[1] * high)
                    what = self.proposal
                    pixels = await asyncio.to_thread(drawn, frame, size, cursor, what, labels=own)
                    self._put(pixels, cells)
                if not self._again:
                    break
                drawn_once = asyncio.Event()
                self.call_after_refresh(drawn_once.set)
                await drawn_once.wait()
        finally:
            self._preparing = False

    def _put(self, pixels: Frame | None, cells: tuple[int, int]) -> None:
        picture = self.children[0]
        if isinstance(picture, Blocks):
            picture.put(pixels, self._label(cells))
            return
        picture.display = pixels is not None
        if pixels is not None:
            picture.styles.width, picture.styles.height = cells
            picture.image = Image.fromarray(pixels)  # type: ignore[attr-defined]

    def _label(self, cells: tuple[int, int]) -> tuple[int, int, Content] | None:
        """What is typed, in the cells beside the place."""
        what, frame = self.proposal, self.frame
        if what is None or not what.label or frame is None or not all(cells):
            return None
        words = plain(shortened(what.label, max(3, cells[0])), "reverse", one_line=True)
        x, y = what.point or (0, 0)
        column = x * cells[0] // frame.shape[1] + 2
        row = y * cells[1] // frame.shape[0] + 1
        return max(0, min(column, cells[0] - words.cell_length)), min(row, cells[1] - 1), words

    def _words(self) -> str:
        frame, cursor, action, _ = self._wanted
        if frame is None:
            return self._none
        said = []
        if self._caption and action is not None and self.proposal is not None:
            said.append(f"Proposed: {self.proposal.words}")
            if self.proposal.point is not None:
                said[-1] += f" {colour_at(frame, self.proposal.point)}"
        place = f", cursor at ({cursor[0]}, {cursor[1]})" if cursor else ""
        said.append(f"Screen {frame.shape[1]} x {frame.shape[0]}{place}")
        if self.terminal.pictures != "words":
            return ". ".join(said) + "."
        return ".\n".join([*said, f"No picture of it is drawn: {self.terminal.why}"]) + "."


class PixelView(Vertical):
    """The pixels around one, magnified, and its colour."""

    DEFAULT_CSS = """
    PixelView { width: 28; height: auto; }
    PixelView > Plain { width: 1fr; height: auto; }
    """
    COLUMNS, ROWS = 13, 7

    def __init__(self, terminal: Terminal | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._terminal = terminal

    def compose(self) -> ComposeResult:
        yield Magnified()
        yield Plain()

    def show(self, frame: Frame, point: Point) -> None:
        """Magnify the surroundings of a pixel."""
        terminal = self._terminal or getattr(self.app, "terminal", None) or Terminal("words")
        colour = colour_at(frame, point)
        if terminal.pictures != "words":
            self.query_one(Magnified).put(crop_at(frame, point, self.COLUMNS, self.ROWS))
        self.query_one(Plain).update(
            f"pixel ({point[0]}, {point[1]})" + (f" is {colour}" if colour else " is outside the screen")
        )


class Magnified(Widget):
    """A few pixels, each two cells wide; the one in the middle between brackets."""

    DEFAULT_CSS = "Magnified { width: 26; height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self._pixels: Frame | None = None

    def put(self, pixels: Frame) -> None:
        """Show them."""
        self._pixels = pixels
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 0 if self._pixels is None else int(self._pixels.shape[0])

    def render_line(self, y: int) -> Strip:
        """One row of pixels."""
        if self._pixels is None or y >= self._pixels.shape[0]:
            return Strip.blank(self.size.width, self.rich_style)
        row = self._pixels[y]
        middle = (self._pixels.shape[0] // 2, row.shape[0] // 2)
        segments = []
        for x, (red, green, blue) in enumerate(row.tolist()):
            light = sum(
                share * (part / 255) ** 2.2
                for share, part in zip((0.21, 0.72, 0.07), (red, green, blue), strict=True)
            )
            ink = Color.from_rgb(0, 0, 0) if light > 0.18 else Color.from_rgb(255, 255, 255)
            style = Style(color=ink, bgcolor=Color.from_rgb(red, green, blue))
            segments.append(Segment("[]" if (y, x) == middle else "  ", style))
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)


class ClipView(Horizontal):
    """The four frames of a clip side by side, with their times, and how the screen was."""

    DEFAULT_CSS = """
    ClipView { width: 1fr; height: 1fr; min-height: 4; }
    ClipView > Vertical { width: 1fr; height: 1fr; }
    ClipView Plain { height: 1; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, terminal: Terminal | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._terminal = terminal

    def compose(self) -> ComposeResult:
        for _ in range(4):
            with Vertical():
                yield Plain(classes="time")
                yield ScreenView(self._terminal, caption=False)

    def show(self, frames: Sequence[Frame], times_s: Sequence[float], word: str) -> None:
        """Show the frames of a clip, oldest first; the word stands by the last."""
        times = list(self.query(".time").results(Plain))
        views = list(self.query(ScreenView).results())
        for index, (frame, time_s) in enumerate(zip(frames, times_s, strict=True)):
            last = index == len(frames) - 1
            times[index].update(f"{time_s:.1f} s" + (f" {word}" if last else ""))
            views[index].show(frame)
