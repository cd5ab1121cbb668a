"""The recorder on a real X server with windows that move, blink, or do nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from Xlib import display

from pilotfish.agent.damage import Blinks, Rect
from pilotfish.agent.recorder import CaptureError, Observed, Recorder

REGION = Rect(10, 20, 200, 160)
RED, BLUE = 0xFF0000, 0x0000FF


class Painter:
    """An X client with one window without a frame, drawn on from the test."""

    def __init__(self, name: str) -> None:
        self.display = display.Display(name)
        screen = self.display.screen()
        self.window: Any = screen.root.create_window(
            0, 0, 320, 240, 0, screen.root_depth, background_pixel=0x202020, override_redirect=True
        )
        self.window.map()
        self.gc: Any = self.window.create_gc()
        self.display.sync()

    def fill(self, x: int, y: int, width: int, height: int, colour: int) -> None:
        self.gc.change(foreground=colour)
        self.window.fill_rectangle(self.gc, x, y, width, height)
        self.display.sync()

    @contextlib.asynccontextmanager
    async def repeating(self, rect: Rect, every_s: float) -> AsyncIterator[None]:
        """Repaint a rectangle in turns of red and blue while the block runs."""

        async def repaint() -> None:
            colour = RED
            while True:
                self.fill(rect.x, rect.y, rect.width, rect.height, colour)
                colour = RED + BLUE - colour
                await asyncio.sleep(every_s)

        task = asyncio.create_task(repaint())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def painter(x_server: Any) -> Any:
    painter = Painter(x_server.name)
    yield painter
    with contextlib.suppress(Exception):
        painter.display.close()


@pytest.fixture(params=[True, False], ids=["xdamage", "polling"])
def use_damage(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_a_clip_spans_the_action(x_server: Any, painter: Painter, use_damage: bool) -> None:
    async def act() -> bool:
        painter.fill(10, 20, 50, 50, RED)
        await asyncio.sleep(0.3)
        painter.fill(60, 20, 50, 50, BLUE)
        return True

    async with Recorder(x_server.name, REGION, use_damage=use_damage) as recorder:
        seen = await recorder.clip(act)
    frames = seen.clip.frames
    assert frames.shape == (4, 160, 200, 3)
    assert seen.word == "settled"
    assert frames[0][5, 5].tolist() == [0x20, 0x20, 0x20], "the first frame is from before the action"
    assert frames[1][5, 5].tolist() == [255, 0, 0]
    assert frames[1][5, 55].tolist() == [0x20, 0x20, 0x20], (
        "the second frame is from the middle of the action"
    )
    assert frames[3][5, 55].tolist() == [0, 0, 255]
    times = seen.clip.times_s
    assert times[0] == 0.0
    assert list(times) == sorted(times)
    assert times[3] >= 0.3 + recorder.quiet_s


async def test_a_late_effect_is_waited_for(x_server: Any, painter: Painter, use_damage: bool) -> None:
    over = asyncio.Event()

    async def paint_later() -> None:
        if expected:
            await asyncio.sleep(0.3)  # longer than the screen is to be still, and shorter than its patience
        else:
            await over.wait()
        painter.fill(20, 30, 60, 60, RED)

    async def act() -> bool:
        later.append(asyncio.create_task(paint_later()))
        return expected

    later: list[asyncio.Task[None]] = []
    words = {}
    async with Recorder(x_server.name, REGION, quiet_ms=250, use_damage=use_damage) as recorder:
        for expected in (False, True):
            painter.fill(20, 30, 60, 60, BLUE)
            await recorder.clip()
            words[expected] = (await recorder.clip(act)).word
            over.set()
            await later[-1]
    assert words == {False: "unchanged", True: "settled"}


async def test_nothing_happened_says_unchanged(x_server: Any, painter: Painter, use_damage: bool) -> None:
    async def act() -> bool:
        painter.fill(300, 230, 10, 10, RED)
        return True

    async with Recorder(x_server.name, REGION, use_damage=use_damage) as recorder:
        seen = await recorder.clip(act)
        assert seen.word == "unchanged", "a change outside of the region is none of ours"
        assert np.array_equal(seen.clip.frames[0], seen.clip.frames[3])


async def test_the_same_picture_drawn_again_is_unchanged(x_server: Any, painter: Painter) -> None:
    async def act() -> bool:
        painter.fill(20, 30, 100, 100, 0x202020)
        return True

    async with Recorder(x_server.name, REGION) as recorder:
        assert (await recorder.clip(act)).word == "unchanged"


async def test_a_screen_that_never_rests_ends_at_the_cap(
    x_server: Any, painter: Painter, use_damage: bool
) -> None:
    async with (
        Recorder(x_server.name, REGION, cap_s=0.6, use_damage=use_damage) as recorder,
        painter.repeating(Rect(20, 30, 120, 90), 0.02),
    ):
        seen = await recorder.clip()
    assert seen.word == "unsettled"
    assert seen.clip.times_s[3] >= 0.6


@pytest.mark.parametrize(("size", "settles"), [((2, 18), True), ((90, 60), False)], ids=["caret", "button"])
async def test_a_blinking_caret_does_not_keep_the_screen_from_settling(
    x_server: Any, painter: Painter, use_damage: bool, size: tuple[int, int], settles: bool
) -> None:
    async with (
        Recorder(x_server.name, REGION, quiet_ms=1000, cap_s=2, use_damage=use_damage) as recorder,
        painter.repeating(Rect(40, 50, *size), 0.5),
    ):
        seen = await recorder.clip()
    assert seen.clip.settled is settles


async def test_what_is_drawn_while_a_span_begins_is_not_lost(x_server: Any, painter: Painter) -> None:
    async with Recorder(x_server.name, REGION, quiet_ms=20) as recorder:
        for colour in range(1, 200):
            # The recorder's thread begins its span while this one draws.
            watching = asyncio.create_task(recorder.clip())
            await asyncio.sleep(0)
            painter.fill(20, 30, 60, 60, colour)
            seen = await watching
            assert seen.clip.frames[3][20, 20].tolist() == [0, 0, colour]


async def test_a_long_span_keeps_few_frames_spread_over_it(x_server: Any, painter: Painter) -> None:
    async def act() -> bool:
        for step in range(100):
            painter.fill(10 + step, 20, 1, 100, RED)
            await asyncio.sleep(0.01)
        return True

    async with Recorder(x_server.name, REGION) as recorder:
        seen = await recorder.clip(act)
    red = [(frame[:, :, 0] == 255).sum() for frame in seen.clip.frames]
    assert red[0] == 0
    assert 0 < red[1] < red[2] <= red[3] == 100 * 100


async def test_what_the_action_raises_comes_out_and_the_recorder_lives_on(
    x_server: Any, painter: Painter
) -> None:
    async def act() -> bool:
        raise KeyError("boom")

    async with Recorder(x_server.name, REGION) as recorder:
        with pytest.raises(KeyError, match="boom"):
            await recorder.clip(act)
        assert (await recorder.clip()).word == "unchanged"


async def test_a_display_that_dies_is_one_sentence(x_server: Any, use_damage: bool) -> None:
    async def die() -> bool:
        await asyncio.to_thread(x_server.kill)
        return True

    async with Recorder(x_server.name, REGION, use_damage=use_damage) as recorder:
        with pytest.raises(CaptureError, match=f"display {x_server.name}"):
            await recorder.clip(die)
        with pytest.raises(CaptureError, match=f"display {x_server.name}"):
            await recorder.clip()


@pytest.mark.parametrize("region", [Rect(0, 0, 321, 240), Rect(300, 200, 100, 100)])
async def test_a_region_outside_of_the_display_is_refused(x_server: Any, region: Rect) -> None:
    with pytest.raises(CaptureError, match=f"{region.width}x{region.height}"):
        async with Recorder(x_server.name, region):
            pass


async def test_a_display_that_is_not_there_is_refused() -> None:
    with pytest.raises(CaptureError, match=":987"):
        async with Recorder(":987", REGION):
            pass


async def test_many_recorders_leave_no_thread_and_no_descriptor(x_server: Any, painter: Painter) -> None:
    import threading
    from pathlib import Path

    def count() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    async def once() -> Observed:
        async with Recorder(x_server.name, REGION, quiet_ms=1) as recorder:
            return await recorder.clip()

    await once()
    before = count()
    for _ in range(10):
        await once()
    assert count() <= before


def test_a_blink_is_motion_once() -> None:
    blinks, caret = Blinks(), Rect(5, 5, 2, 18)
    assert blinks.is_motion(caret, 0.0)
    assert not blinks.is_motion(caret, 0.5)
    assert not blinks.is_motion(Rect(6, 5, 2, 18), 1.0), "it may move a little"
    assert blinks.is_motion(Rect(60, 5, 2, 18), 1.0), "but not far"
    assert blinks.is_motion(caret, 1.1), "nor repaint fast"
