"""The pane with the screen: the live one, or what the agent saw at a step, with what it did drawn on it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message

from pilotfish.agent.control.wire import Screen as LiveScreen
from pilotfish.agent.events import FRAMES, CallData, ClipData, FrameStore, LogError
from pilotfish.agent.tui.model import Row
from pilotfish.agent.tui.proposal import Frame, Point
from pilotfish.agent.tui.screen_view import ClipView, ScreenView

_KEPT = 24
"""Decoded frames that are kept."""


class Frames:
    """The frames of a run, decoded in a thread and kept for a while."""

    def __init__(self, folder: Path) -> None:
        self._store = FrameStore(folder / FRAMES)
        self._kept: OrderedDict[str, Frame] = OrderedDict()

    async def get(self, name: str) -> Frame | None:
        """A frame; None where its file is missing or damaged."""
        if name not in self._kept:
            try:
                self._kept[name] = await asyncio.to_thread(self._store.get, name)
            except LogError:
                return None
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]


class ScreenPane(Vertical, can_focus=True):
    """A screen, and below it the four frames of a clip. Up and down choose another step."""

    class Moved(Message):
        """Another step is wanted. by: so many rows on."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Step before", show=False),
        Binding("down,j", "move(1)", "Next step", show=False),
        Binding("home,g", "move(-1000000000)", "First step", show=False),
        Binding("end,G", "move(1000000000)", "Last step", show=False),
    ]

    DEFAULT_CSS = """
    ScreenPane > ScreenView { height: 3fr; }
    ScreenPane > ClipView { height: 1fr; display: none; }
    ScreenPane.with-clip > ClipView { display: block; }
    """

    def __init__(self, folder: Path, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._frames = Frames(folder)

    def compose(self) -> ComposeResult:
        yield ScreenView()
        yield ClipView()

    def action_move(self, by: int) -> None:
        """Ask for another step."""
        self.post_message(self.Moved(by))

    def show_live(self, frame: Frame, cursor: Point | None, action: CallData | None) -> None:
        """Show the screen as it is now, with what the agent wants to do."""
        self.workers.cancel_group(self, "frames")
        self.remove_class("with-clip")
        self.query_one(ScreenView).show(frame, cursor, action)

    def show_step(
        self, before: ClipData | None, call: CallData | None, clip: ClipData | None, none: str
    ) -> None:
        """Show what the agent saw before a step, with its call drawn on it, and what came of it.

        before: the clip that it saw last; clip: the one that the step made. none: said where there is
        neither.
        """
        self.run_worker(self._show_step(before, call, clip, none), group="frames", exclusive=True)

    async def last_of(self, clip: ClipData) -> Frame | None:
        """The newest frame of a clip."""
        return await self._frames.get(clip.frames[-1])

    async def _show_step(
        self, before: ClipData | None, call: CallData | None, clip: ClipData | None, none: str
    ) -> None:
        seen = before or clip
        frame = await self.last_of(seen) if seen is not None else None
        if seen is not None:
            none = f"The picture {seen.frames[-1]} is missing from the run's folder, or damaged."
        self.query_one(ScreenView).show(frame, None, call if before is not None else None, none=none)
        pictures = [await self._frames.get(name) for name in clip.frames] if clip is not None else []
        whole = [picture for picture in pictures if picture is not None]
        has_clip = clip is not None and len(whole) == len(pictures) and self.size.height >= 16
        self.set_class(has_clip, "with-clip")
        if clip is not None and has_clip:
            self.query_one(ClipView).show(whole, clip.times_s, clip.word)


def clip_before(rows: Sequence[Row], row: Row) -> ClipData | None:
    """The clip that the model had seen last when it decided on a step."""
    for index in range(row.index - 1, -1, -1):
        earlier = rows[index]
        if earlier.lane == row.lane and earlier.clip is not None and not (earlier.undone and not row.undone):
            return earlier.clip
        if earlier.kind == "task" and earlier.lane == row.lane and not earlier.depth:
            return None
    return None


def decoded(screen: LiveScreen) -> Frame | None:
    """The pixels of a live screen, RGB [height, width, 3]; None when they make no picture. Takes a while."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(screen.png))) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, binascii.Error):
        return None
