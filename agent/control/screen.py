"""The live screen of a run for those who watch it: a picture whenever something has changed.

One thread owns the X connections. The X server tells when something is drawn, so that a screen that stands
still costs nothing but a look at the pointer now and then; pictures are taken and encoded there too, and the
event loop of the run only hands them on.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pilotfish.agent.camera import Camera, Frame
from pilotfish.agent.control.wire import Screen as Shown
from pilotfish.agent.damage import Rect, XDamageWatcher, is_composited
from pilotfish.tools.base import Screen

POINTER_S = 0.2
"""Seconds between two looks at the pointer, at least: moving it draws nothing."""
POLL_S = 0.5
"""The same between two pictures, where the X server does not tell what it draws."""
_CLOSE_S = 1.0


@dataclass(eq=False)
class _Viewer:
    """One who watches: a picture that comes too soon after the last one waits."""

    say: Callable[[Shown], None]
    gap_s: float
    next_s: float = 0.0
    timer: asyncio.TimerHandle | None = None

    def hear(self, shown: Shown) -> None:
        self.end()
        loop = asyncio.get_running_loop()
        if loop.time() < self.next_s:
            self.timer = loop.call_at(self.next_s, self.hear, shown)
            return
        self.next_s = loop.time() + self.gap_s
        self.say(shown)

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None


class LiveScreen:
    """Sends pictures of one screen to those who watch it. Within one event loop; `close` when it is over."""

    def __init__(self, screen: Screen, camera: Camera) -> None:
        self._screen, self._camera = screen, camera
        self._viewers: dict[Callable[[Shown], None], _Viewer] = {}
        self._last: Shown | None = None
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._gap_s: float | None = None
        self._stopping = False

    def watch(self, say: Callable[[Shown], None], per_second: float) -> None:
        """Begin to tell one who watches, at most so often, beginning with the screen as it is."""
        self.unwatch(say)
        viewer = self._viewers[say] = _Viewer(say, 1 / per_second)
        if self._last is not None:
            viewer.hear(self._last)
        self._set_pace()

    def unwatch(self, say: Callable[[Shown], None]) -> None:
        """Tell one no more."""
        viewer = self._viewers.pop(say, None)
        if viewer is not None:
            viewer.end()
            self._set_pace()

    async def close(self) -> None:
        """End it. A display that is frozen is not waited for."""
        self._stopping = True
        for viewer in self._viewers.values():
            viewer.end()
        self._poke()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _CLOSE_S)
        else:
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _set_pace(self) -> None:
        self._gap_s = min((viewer.gap_s for viewer in self._viewers.values()), default=None)
        if self._thread is None and self._viewers:
            self._thread = threading.Thread(target=self._main, name="live screen", daemon=True)
            self._thread.start()
        self._poke()

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _hear(self, shown: Shown) -> None:
        if not self._stopping:
            self._last = shown
            for viewer in list(self._viewers.values()):
                viewer.hear(shown)

    # The rest runs in the thread.

    def _main(self) -> None:
        try:
            # A display that has gone away ends it; the run says so itself.
            with contextlib.suppress(Exception):
                self._follow()
        finally:
            read, write, self._wake_read, self._wake_write = self._wake_read, self._wake_write, -1, -1
            os.close(read)
            os.close(write)

    def _follow(self) -> None:
        from Xlib import display

        name = self._screen.display
        with contextlib.ExitStack() as stack:
            pointer = stack.enter_context(contextlib.closing(display.Display(name)))
            watcher = None
            if not is_composited(name):
                with contextlib.suppress(LookupError):
                    watcher = stack.enter_context(contextlib.closing(XDamageWatcher(name)))
            self._look(pointer, watcher)

    def _look(self, pointer: Any, watcher: XDamageWatcher | None) -> None:
        """Wait for a change, take a picture when the next one is due, send it if it is another one."""
        screen = self._screen
        region = Rect(screen.x, screen.y, screen.width, screen.height)
        frame: Frame | None = None
        at: tuple[int, int] | None = None
        dirty, taken_s = True, 0.0
        while not self._stopping:
            if self._gap_s is None:
                self._wait(None, None)
                dirty = True
                continue
            due_s = taken_s + (self._gap_s if watcher else max(self._gap_s, POLL_S))
            dirty = dirty or watcher is None or any(rect.overlaps(region) for rect in watcher.changes(None))
            place, now = _pointer(pointer, region), time.monotonic()
            if now >= due_s and (dirty or place != at):
                taken_s, new = now, frame
                if dirty or new is None:
                    if watcher is not None:
                        watcher.rearm()
                    new, dirty = self._camera.grab(region.x, region.y, region.width, region.height), False
                if place != at or frame is None or not np.array_equal(frame, new):
                    self._send(new, place)
                frame, at = new, place
            elif dirty:
                self._wait(None, due_s - now)
            else:
                self._wait(watcher, max(self._gap_s, POINTER_S))

    def _wait(self, watcher: XDamageWatcher | None, seconds: float | None) -> None:
        descriptor = None if watcher is None else watcher.fileno()
        heard = [self._wake_read] if descriptor is None else [self._wake_read, descriptor]
        select.select(heard, [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _send(self, frame: Frame, at: tuple[int, int] | None) -> None:
        from PIL import Image

        data = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(frame[:, :, 2::-1])).save(data, format="PNG", compress_level=1)
        picture = base64.b64encode(data.getvalue()).decode("ascii")
        shown = Shown(width=frame.shape[1], height=frame.shape[0], png=picture, cursor=at)
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._hear, shown)


def _pointer(connection: Any, region: Rect) -> tuple[int, int] | None:
    """Where the pointer is, in pixels of the region; None outside of it."""
    found = connection.screen().root.query_pointer()
    x, y = int(found.root_x) - region.x, int(found.root_y) - region.y
    return (x, y) if 0 <= x < region.width and 0 <= y < region.height else None
