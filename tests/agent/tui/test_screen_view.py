"""The live screen: what is drawn on it, at any size, and in words where nothing can be drawn."""

from __future__ import annotations

import numpy as np
import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from pilotfish.agent.events import CallData
from pilotfish.agent.tui.proposal import colour_at, crop_at, drawn, proposal
from pilotfish.agent.tui.screen_view import Blocks, ClipView, Magnified, PixelView, ScreenView
from pilotfish.agent.tui.terminal import Terminal

from .pictures import SIZES, assert_picture
from .screens import call, desktop

BLOCKS, WORDS = Terminal("blocks"), Terminal("words", why="NO_COLOR is set; unset it")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (call(action="left_click", coordinate=[500, 500]), "left click at pixel (320, 200)"),
        (
            call(action="double_click", coordinate=["500", 500.0], text="ctrl"),
            "double click at pixel (320, 200)",
        ),
        (
            call(action="left_click_drag", start_coordinate=[0, 0], coordinate=[1000, 1000]),
            "drag from pixel (0, 0) to pixel (639, 399)",
        ),
        (call(action="left_click_drag", coordinate=[500, 0]), "drag from pixel (9, 8) to pixel (320, 0)"),
        (call(action="scroll", scroll_direction="up", scroll_amount=3), "scroll up by 3 at pixel (9, 8)"),
        (call(action="zoom", region=[0, 0, 500, 1000]), "look closely of 320 x 400 pixels at pixel (0, 0)"),
        (call(action="type", text="a\x1bb"), "type a\\x1bb at pixel (9, 8)"),
        (call(action="key", text="ctrl+s"), "press ctrl+s at pixel (9, 8)"),
        (call(action="wait", duration=2), "wait"),
        (call(action="left_click", coordinate="[/]"), "computer, with arguments that the tool will refuse"),
        (call(action=["x"]), "computer, with arguments that the tool will refuse"),
        (call("browser", action="click"), "browser click"),
        (call("[bold]\x1b", action=7), "[bold]\\x1b"),
    ],
)
def test_what_a_call_would_do_in_words(action: CallData, words: str) -> None:
    assert proposal(action, 640, 400, (9, 8)).words.startswith(words)


def test_a_click_is_marked_around_its_pixel_and_not_on_it() -> None:
    frame = desktop()
    what = proposal(call(action="left_click", coordinate=[500, 500]), 640, 400)
    marked = drawn(frame, (640, 400), None, what, labels=True)
    assert np.array_equal(marked[200, 320], frame[200, 320])
    assert not np.array_equal(marked[200, 340], frame[200, 340])
    assert not np.array_equal(marked[180, 320], frame[180, 320])


@pytest.mark.parametrize("size", [(1, 2), (2, 2), (7, 3), (640, 400), (1000, 20)])
def test_everything_is_drawn_at_any_size(size: tuple[int, int]) -> None:
    frame = desktop()
    for action in (
        call(action="left_click", coordinate=[1000, 1000]),
        call(action="left_click_drag", start_coordinate=[0, 0], coordinate=[0, 0]),
        call(action="scroll", scroll_direction="left", coordinate=[0, 0]),
        call(action="zoom", region=[999, 999, 1000, 1000]),
        call(action="type", text="字 \ud800 " * 30),
    ):
        what = proposal(action, 640, 400, (639, 399))
        assert drawn(frame, size, (639, 399), what, labels=True).shape == (size[1], size[0], 3)


def test_pixels_beyond_the_edge_are_black() -> None:
    frame = np.full((3, 4, 3), 200, np.uint8)
    crop = crop_at(frame, (0, 2), 5, 3)
    assert crop[:, :2].max() == 0
    assert crop[1, 2].tolist() == [200] * 3
    assert crop[2].max() == 0
    assert colour_at(frame, (0, 2)) == "#c8c8c8"
    assert colour_at(frame, (4, 0)) == ""


class _App(App[None]):
    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self.terminal = terminal

    def compose(self) -> ComposeResult:
        yield ScreenView()


async def _drawn(pilot: Pilot[None]) -> None:
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES)
async def test_the_screen_with_a_proposed_click(size: tuple[int, int]) -> None:
    app = _App(BLOCKS)
    async with app.run_test(size=size) as pilot:
        view = app.query_one(ScreenView)
        view.show(desktop(), (100, 300), call(action="left_click", coordinate=[500, 500], text="ctrl"))
        await _drawn(pilot)
        columns, rows = view.fitted(desktop())
        assert columns <= size[0]
        assert rows < size[1]
        assert abs(columns / rows / (640 / 400) / 2 - 1) < 0.1
        assert view.pixel_at(columns - 1, rows - 1) is not None
        assert view.pixel_at(columns, 0) is None
        await assert_picture(pilot, "screen")


async def test_typed_text_stands_beside_the_cursor_in_letters() -> None:
    app = _App(BLOCKS)
    async with app.run_test(size=(80, 24)) as pilot:
        view = app.query_one(ScreenView)
        view.show(desktop(), (600, 380), call(action="type", text="[/]字\x1b[2J"))
        await _drawn(pilot)
        shown = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert shown.count("[/]字\\x1b[2J") == 2


async def test_words_say_it_where_nothing_can_be_drawn() -> None:
    app = _App(WORDS)
    async with app.run_test(size=(40, 12)) as pilot:
        view = app.query_one(ScreenView)
        await pilot.pause()
        assert "no picture" in str(view.children[0].render())
        view.show(desktop(), (100, 300), call(action="left_click", coordinate=[500, 500]))
        await pilot.pause()
        said = " ".join(str(view.children[0].render()).split())
        assert said == (
            "Proposed: left click at pixel (320, 200) #28a050. Screen 640 x 400, cursor at (100, 300). "
            "No picture of it is drawn: NO_COLOR is set; unset it."
        )


async def test_frames_that_come_too_fast_are_left_out_and_the_last_is_shown() -> None:
    app = _App(BLOCKS)
    async with app.run_test(size=(120, 40)) as pilot:
        view, blocks = app.query_one(ScreenView), app.query_one(Blocks)
        shown = 0
        put = blocks.put

        def counted(*words: object) -> None:
            nonlocal shown
            shown += 1
            put(*words)  # type: ignore[arg-type]

        blocks.put = counted  # type: ignore[method-assign]
        for shade in range(250):
            view.show(np.full((400, 640, 3), shade, np.uint8))
        await _drawn(pilot)
        assert shown < 10
        assert blocks._pixels is not None
        assert blocks._pixels.max() == 249 & 0xF8


async def test_a_resize_scales_the_picture_and_no_frame_takes_it_away() -> None:
    app = _App(BLOCKS)
    async with app.run_test(size=(120, 40)) as pilot:
        view, blocks = app.query_one(ScreenView), app.query_one(Blocks)
        view.show(desktop())
        for size in ((20, 5), (5, 2), (1, 1), (80, 24)):
            await pilot.resize_terminal(*size)
            await _drawn(pilot)
        assert (blocks.size.width, blocks.size.height) == view.fitted(desktop())
        view.show(None)
        await _drawn(pilot)
        assert blocks.size.area == 0


class _Parts(App[None]):
    terminal = BLOCKS

    def compose(self) -> ComposeResult:
        yield PixelView()
        yield ClipView()


async def test_a_clip_shows_its_times_and_word_and_a_pixel_its_colour() -> None:
    app = _Parts()
    async with app.run_test(size=(100, 30)) as pilot:
        frames = [np.full((400, 640, 3), shade, np.uint8) for shade in (0, 80, 160, 240)]
        app.query_one(ClipView).show(frames, (0.0, 0.5, 1.0, 1.5), "settled")
        app.query_one(PixelView).show(desktop(), (280, 180))
        await _drawn(pilot)
        shown = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        for words in ("0.0 s", "0.5 s", "1.0 s", "1.5 s settled", "pixel (280, 180) is #28a050", "[]"):
            assert words in shown
        assert app.query_one(Magnified).size.height == 7
        await assert_picture(pilot, "clip")
