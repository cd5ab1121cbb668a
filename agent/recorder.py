"""The newest frames of a display, handed out as clips that span an action.

One thread owns the X connections of one display. While nothing is asked of it, it sleeps in `select`. During
a span it grabs a frame whenever the screen changed, and ends the span when the screen was quiet for
`quiet_ms` or when `cap_s` has passed. A clip shows the screen as it was when the action began, at a third and
at two thirds of the span, and at its end; the screen at a moment is the newest grab before it, since nothing
changed in between.

A machine under load may take longer than `quiet_ms` to show the first effect of an action, so until
something has changed after an action the screen must be still for `PATIENCE` times as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from pilotfish.agent.camera import Camera, Frame, XCamera
from pilotfish.agent.damage import Blinks, PollingWatcher, Rect, Watcher, XDamageWatcher, is_composited
from pilotfish.agent.prompt import Observation, observation_word
from pilotfish.model.protocol import Clip
from pilotfish.sandbox import SandboxError

RING = 12
"""Frames kept per span; 12 at 1920x1080 are 100 MB."""
FRAME_GAP_S = 0.016
"""Least seconds between two grabs of a moving screen, at first; doubled each time the ring is full."""
GRAB_TRIES = 3
CLOSE_S = 1.0
"""How long closing waits for a display that may be frozen."""
PATIENCE = 3
"""How many quiet times an action that has shown no effect yet is waited for."""


class CaptureError(Exception):
    """The screen cannot be seen; the message is one sentence with the mend."""


@dataclass(frozen=True, eq=False)
class Observed:
    """One clip and what it says about the screen."""

    clip: Clip
    changed: bool
    """Whether the last frame differs from the first in any byte."""

    @property
    def word(self) -> Observation:
        """The word the model reads beside the clip."""
        return observation_word(changed=self.changed, settled=self.clip.settled)


@dataclass(eq=False)
class _Span:
    """One observation in the making; only the recorder's thread touches it after `begin`."""

    started: asyncio.Future[None]
    finished: asyncio.Future[Observed]
    loop: asyncio.AbstractEventLoop
    begun_s: float = 0.0
    acted_s: float | None = None
    awaits_effect: bool = False
    moved_s: float = 0.0
    frames: list[tuple[float, Frame]] = field(default_factory=list)
    gap_s: float = FRAME_GAP_S
    blinks: Blinks = field(default_factory=Blinks)

    def add(self, at_s: float, frame: Frame) -> None:
        """Keep a frame; when there are too many, keep every other one and grab half as often from then on."""
        self.frames.append((at_s, frame))
        if len(self.frames) > RING:
            self.frames = [self.frames[0], *self.frames[2::2]]
            self.gap_s *= 2

    def observed(self, end_s: float, last: Frame, *, settled: bool) -> Observed:
        """Pick and convert the four frames: [4, height, width, 3] RGB."""
        length = end_s - self.begun_s
        before = self.frames[0][1]
        during = [self._at(self.begun_s + length * share) for share in (1 / 3, 2 / 3)]
        picked = [before, *during, last]
        rgb = np.empty((4, *before.shape[:2], 3), np.uint8)
        for index, frame in enumerate(picked):
            twin = next((i for i in range(index) if picked[i] is frame), None)
            rgb[index] = frame[:, :, 2::-1] if twin is None else rgb[twin]
        times = (0.0, round(length / 3, 3), round(length * 2 / 3, 3), round(length, 3))
        return Observed(Clip(rgb, times, settled), changed=not np.array_equal(rgb[0], rgb[3]))

    def _at(self, moment_s: float) -> Frame:
        return next(
            frame for at_s, frame in reversed(self.frames) if at_s <= moment_s or at_s == self.begun_s
        )


class Recorder:
    """Watches one region of one display. Use as an async context manager."""

    def __init__(
        self,
        display: str,
        region: Rect,
        *,
        quiet_ms: int = 120,
        cap_s: float = 3.0,
        use_damage: bool = True,
        camera: Camera | None = None,
    ) -> None:
        """`display` is an X display name such as ":107"; `region` is in its pixels.

        quiet_ms: how long nothing must change before the screen counts as settled.
        cap_s: seconds after the action at which the clip is taken anyway, marked unsettled.
        use_damage: False compares frames instead of asking the X server what changed.
        camera: takes the frames; without one an X client asks the X server for them.
        """
        self.display = display
        self.region = region
        self.quiet_s = quiet_ms / 1000
        self.cap_s = cap_s
        self._use_damage = use_damage
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = -1, -1
        self._thread: threading.Thread | None = None
        self._span: _Span | None = None
        self._stopping = False
        self._camera = camera
        self._watcher: Watcher

    async def __aenter__(self) -> Self:
        """Connect to the display; raises `CaptureError` if it cannot be seen."""
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._main, args=(loop, ready), name="recorder", daemon=True)
        self._thread.start()
        try:
            await ready
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def clip(self, action: Callable[[], Awaitable[bool]] | None = None) -> Observed:
        """Four frames that span `action`, or a short wait for quiet when there is none.

        `action` returns whether the screen may still react to it when it is over.
        What the action raises is raised here, and no clip is made. Raises `CaptureError` when the display is
        gone.
        """
        loop = asyncio.get_running_loop()
        span = _Span(loop.create_future(), loop.create_future(), loop)
        self._send(lambda: self._begin(span))
        try:
            await span.started
            awaits_effect = await action() if action is not None else False
            self._send(lambda: self._acted(span, awaits_effect))
            return await span.finished
        finally:
            self._send(lambda: self._drop(span))
            for future in (span.started, span.finished):
                if future.done() and not future.cancelled():
                    future.exception()

    def look_at(self, region: Rect) -> None:
        """Watch another region of the display from the next clip on."""
        self._send(lambda: self._move_to(region))

    # The rest runs in the recorder's thread, except _send and _close.

    def _move_to(self, region: Rect) -> None:
        self.region = region
        if self._watcher.poll_s is not None:
            self._watcher = PollingWatcher(region)

    def _send(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        # Nobody listens any more where the thread has ended.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    async def _close(self) -> None:
        self._stopping = True
        self._send(lambda: None)
        if self._thread is not None:
            # A display that is frozen keeps it waiting; then it ends with the display.
            await asyncio.to_thread(self._thread.join, CLOSE_S)

    def _main(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Future[None]) -> None:
        try:
            self._watch(loop, ready)
        finally:
            read, write = self._wake_read, self._wake_write
            self._wake_read = self._wake_write = -1
            os.close(read)
            os.close(write)

    def _watch(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Future[None]) -> None:
        try:
            self._connect()
        except CaptureError as error:
            _settle(loop, ready, error)
            return
        _settle(loop, ready, None)
        try:
            while not self._stopping:
                self._turn()
        finally:
            # A display that has gone away makes even closing fail; there is nothing left to release then.
            with contextlib.suppress(Exception):
                self._watcher.close()
            with contextlib.suppress(Exception):
                if self._camera is not None:
                    self._camera.close()

    def _connect(self) -> None:
        from mss.exception import ScreenShotError
        from Xlib.error import DisplayError

        try:
            self._camera = camera = self._camera or XCamera(self.display)
        except ScreenShotError as error:
            raise CaptureError(
                f"The display {self.display} cannot be opened; is its X server running?"
            ) from error
        try:
            self._grab()
            self._watcher = PollingWatcher(self.region)
            if self._use_damage and not is_composited(self.display):
                with contextlib.suppress(LookupError):
                    self._watcher = XDamageWatcher(self.display)
        except (CaptureError, DisplayError, OSError) as error:
            camera.close()
            if isinstance(error, CaptureError):
                raise
            raise CaptureError(f"The display {self.display} refused a second connection.") from error

    def _turn(self) -> None:
        """Wait for a command, a change or a deadline, and deal with it."""
        waiting = [self._wake_read]
        if self._span is not None and (descriptor := self._watcher.fileno()) is not None:
            waiting.append(descriptor)
        select.select(waiting, [], [], self._timeout())
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._commands:
            self._guarded(self._commands.popleft())
        if self._span is not None:
            self._guarded(self._advance)

    def _timeout(self) -> float | None:
        span = self._span
        if span is None:
            return None
        if self._watcher.poll_s is not None:
            return self._watcher.poll_s
        deadlines = [span.frames[-1][0] + span.gap_s] if self._dirty else []
        if span.acted_s is not None:
            deadlines += [self._settles_at(span), span.acted_s + self.cap_s]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; whatever the X server does to us ends the span, not the thread."""
        try:
            step()
        except Exception as error:
            span, self._span = self._span, None
            if span is None:
                return
            if not isinstance(error, CaptureError):
                error = CaptureError(f"The display {self.display} is gone; start the sandbox again.")
            _settle(span.loop, span.started, error)
            _settle(span.loop, span.finished, error)

    def _begin(self, span: _Span) -> None:
        self._span = span
        self._watcher.changes(None)
        self._watcher.rearm()
        frame = self._grab()
        self._watcher.begin(frame)
        self._dirty = False
        span.begun_s = span.moved_s = time.monotonic()
        span.add(span.begun_s, frame)
        _settle(span.loop, span.started, None)

    def _acted(self, span: _Span, awaits_effect: bool) -> None:
        span.acted_s = time.monotonic()
        span.awaits_effect = awaits_effect

    def _drop(self, span: _Span) -> None:
        if self._span is span:
            self._span = None

    _dirty = False

    def _advance(self) -> None:
        """One look during a span: note changes, keep a frame, and finish when quiet or at the cap."""
        span = self._span
        assert span is not None
        now = time.monotonic()
        polled = self._grab() if self._watcher.poll_s is not None else None
        for rect in self._watcher.changes(polled):
            if rect.overlaps(self.region):
                self._dirty = True
                if span.blinks.is_motion(rect, now):
                    span.moved_s = now
        if self._dirty and now >= span.frames[-1][0] + span.gap_s:
            self._dirty = False
            self._watcher.rearm()
            span.add(now, self._grab() if polled is None else polled)
        if span.acted_s is None:
            return
        settled = now >= self._settles_at(span)
        if settled or now >= span.acted_s + self.cap_s:
            self._span = None
            last = self._grab() if self._dirty else span.frames[-1][1]
            _settle(span.loop, span.finished, None, span.observed(now, last, settled=settled))

    def _settles_at(self, span: _Span) -> float:
        """When the screen will have been still for long enough, if nothing more changes."""
        still_yet = span.moved_s == span.begun_s
        wait_s = self.quiet_s * (PATIENCE if span.awaits_effect and still_yet else 1)
        return max(span.moved_s, span.acted_s or 0.0) + wait_s

    def _grab(self) -> Frame:
        """One frame of the region. A grab that fails is tried again before it becomes an error."""
        from mss.exception import ScreenShotError

        region, camera = self.region, self._camera
        assert camera is not None
        for attempt in range(GRAB_TRIES):
            try:
                return camera.grab(region.x, region.y, region.width, region.height)
            except (ScreenShotError, SandboxError) as error:
                if attempt + 1 == GRAB_TRIES:
                    if isinstance(error, SandboxError):
                        raise CaptureError(str(error)) from error
                    raise CaptureError(
                        f"The region {region.width}x{region.height} at ({region.x}, {region.y}) of the "
                        f"display {self.display} cannot be captured; does it run, and is it that large?"
                    ) from error
                time.sleep(0.05)
        raise AssertionError("unreachable")


def _settle(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    error: Exception | None,
    value: object = None,
) -> None:
    """Resolve a future of another thread's loop, unless it is done or its loop has closed."""

    def resolve() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(resolve)
