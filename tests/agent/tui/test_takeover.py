"""Mouse and keyboard of a person on their way to the sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from pilotfish.agent.control.wire import Input, TakeOver
from pilotfish.agent.tui.colours import Coloured
from pilotfish.agent.tui.fields import PlainInput
from pilotfish.agent.tui.screen_view import ScreenView
from pilotfish.agent.tui.takeover import TakeOver as TakeOverScreen
from pilotfish.agent.tui.takeover import key_name
from pilotfish.agent.tui.terminal import Terminal
from pilotfish.tools.keys import parse_keys

from .pictures import SIZES, assert_light, assert_picture
from .screens import desktop, shown_text


class _App(Coloured):
    def __init__(self, refusing: str = "") -> None:
        super().__init__()
        self.terminal = Terminal("blocks")
        self.sent: list[Any] = []
        self.refusing = refusing
        self.taken = TakeOverScreen(self._send, desktop(), (10, 10))

    def on_mount(self) -> None:
        self.push_screen(self.taken)

    async def _send(self, request: Any) -> str:
        if self.refusing:
            raise ValueError(self.refusing)
        self.sent.append(request)
        return ""

    def inputs(self) -> list[Input]:
        return [request for request in self.sent if isinstance(request, Input) and request.action != "move"]


async def _settled(pilot: Pilot[None]) -> None:
    for _ in range(5):
        await pilot.pause(0.02)


async def test_keys_go_to_the_sandbox_and_none_does_anything_here() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        await _settled(pilot)
        keys = ["h", "ctrl+q", "ctrl+c", "ctrl+p", "tab", "enter", "escape", "f1", "q", "question_mark", "up"]
        for key in keys:
            await pilot.press(key)
            await _settled(pilot)
        assert app.screen is app.taken
        expected = ["ctrl+q", "ctrl+c", "ctrl+p", "tab", "enter", "escape", "f1", "up"]
        assert [what.key for what in app.inputs() if what.action == "key"] == expected
        assert "".join(what.text for what in app.inputs()) == "hq?"
        for what in app.inputs():
            if what.action == "key":
                assert parse_keys(what.key)
        app.taken.post_message(events.Paste("two\nlines [/] \x1b"))
        await _settled(pilot)
        assert app.inputs()[-1] == Input(action="text", text="two\nlines [/] \x1b")


@pytest.mark.parametrize(
    ("key", "character", "name"),
    [
        ("a", "a", None),
        ("A", "A", None),
        ("space", " ", None),
        ("ctrl+a", "\x01", "ctrl+a"),
        ("shift+tab", None, "shift+tab"),
        ("ctrl+shift+left", None, "ctrl+shift+left"),
        ("ctrl+backslash", "\x1c", "ctrl+backslash"),
        ("ctrl+underscore", "\x1f", "ctrl+underscore"),
        ("ctrl+circumflex_accent", "\x1e", "ctrl+asciicircum"),
        ("ctrl+at", "\x00", "ctrl+at"),
        ("alt+left_square_bracket", None, "alt+bracketleft"),
        ("pageup", None, "pageup"),
        ("f12", None, "f12"),
        ("backspace", "\x7f", "backspace"),
    ],
)
def test_keys_have_the_names_that_the_tools_read(key: str, character: str | None, name: str | None) -> None:
    assert key_name(events.Key(key, character)) == name
    if name is not None:
        assert parse_keys(name)


async def test_clicks_drags_and_the_wheel_arrive_at_the_pixel_under_the_pointer() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        await _settled(pilot)
        view = app.taken.query_one(ScreenView)
        columns, rows = view.fitted(desktop())
        offset = (columns // 2, rows // 2)
        await pilot.click(ScreenView, offset=offset, times=2)
        await _settled(pilot)
        x, y = view.pixel_at(*offset) or (-1, -1)
        assert abs(x - 320) <= 640 / columns
        assert abs(y - 200) <= 400 / rows
        double = [(what.action, what.x, what.y, what.button) for what in app.inputs()]
        assert double == [("press", x, y, "left"), ("release", x, y, "left")] * 2
        app.sent.clear()
        await pilot.mouse_down(ScreenView, offset=(1, 1), button=3)
        await pilot.hover(ScreenView, offset=(5, 5))
        await pilot.mouse_up(ScreenView, offset=(79, 22))
        await _settled(pilot)
        assert [(what.action, what.button) for what in app.inputs()] == [
            ("press", "right"),
            ("release", "right"),
        ]
        assert (app.inputs()[1].x or 0) > 639 - 640 / columns
        assert (app.inputs()[1].y or 0) > 399 - 400 / rows
        assert any(request.action == "move" for request in app.sent)
        app.sent.clear()
        for kind, turn in ((events.MouseScrollDown, (0, 1)), (events.MouseScrollUp, (0, -1))):
            await pilot._post_mouse_events([kind], ScreenView, offset=offset, button=0)
            await _settled(pilot)
            assert [(what.dx, what.dy) for what in app.inputs() if what.action == "scroll"][-1] == turn


async def test_a_click_beside_the_picture_goes_nowhere() -> None:
    app = _App()
    async with app.run_test(size=(120, 20)) as pilot:
        await _settled(pilot)
        await pilot.click(ScreenView, offset=(118, 5))
        await _settled(pilot)
        assert app.inputs() == []


async def test_the_way_out_hands_back_with_a_note() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        await _settled(pilot)
        assert app.sent == [TakeOver(on=True)]
        await pilot.press("ctrl+right_square_bracket")
        assert app.taken.query_one("#note", PlainInput).has_focus
        await pilot.press("x", "escape", "y")
        await _settled(pilot)
        assert app.inputs() == [Input(action="text", text="y")]
        await pilot.press("ctrl+right_square_bracket", "ctrl+right_square_bracket")
        await _settled(pilot)
        assert app.inputs()[-1] == Input(action="key", key="ctrl+bracketright")
        await pilot.press("ctrl+right_square_bracket", "!", "enter")
        await _settled(pilot)
        assert app.sent[-1] == TakeOver(on=False, note="x!")
        assert app.screen is not app.taken


async def test_a_run_that_refuses_is_left_with_its_reason() -> None:
    app = _App("Another client controls [/] \x1b[31m it.")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await _settled(pilot)
        assert app.screen is not app.taken
        for _ in range(100):
            if "Another" in shown_text(app):
                break
            await _settled(pilot)
        assert "Another client controls [/] \\x1b[31m it." in " ".join(
            shown_text(app).replace("▌", "").split()
        )


@pytest.mark.parametrize("size", SIZES)
async def test_pictures(size: tuple[int, int]) -> None:
    app = _App()
    async with app.run_test(size=size) as pilot:
        await _settled(pilot)
        await pilot.press("ctrl+right_square_bracket")
        app.taken.query_one("#note", PlainInput).cursor_blink = False
        while any(worker.name == "_prepare" for worker in app.workers):
            await pilot.pause(0.02)
        await _settled(pilot)
        await assert_picture(pilot, "take-over")
        await assert_light(pilot, "take-over")


@pytest.mark.parametrize("pictures", ["blocks", "words"])
async def test_the_title_says_what_waits_is_denied_and_what_is_missing(pictures: Any) -> None:
    app = _App()
    app.terminal = Terminal(pictures, why="NO_COLOR is set")
    app.taken = TakeOverScreen(app._send, desktop(), waits=True)
    async with app.run_test(size=(160, 24)) as pilot:
        await _settled(pilot)
        title = shown_text(app).splitlines()[0]
        assert "Ctrl+] hands back" in title
        assert "the waiting call is denied" in title
        assert ("the mouse needs a picture" in title) == (pictures == "words")
