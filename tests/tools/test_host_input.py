"""The computer tool on a person's own desktop: where clicks land, and what is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from Xlib import X
from Xlib.display import Display
from Xlib.ext import xtest

from pilotfish.sandbox import HostDesktop
from pilotfish.tools.base import Screen, ToolContext, ToolResult, validate
from pilotfish.tools.computer import ComputerTool
from pilotfish.tools.host_input import STILL_S

from ..waiting import until, wait_for


class Hands:
    """The computer tool with one monitor as its screen."""

    def __init__(self, host: HostDesktop) -> None:
        self.host = host
        self.tool = ComputerTool()

    async def __call__(self, action: str, **arguments: object) -> ToolResult:
        args = validate(self.tool, {"action": action, **arguments})
        assert not isinstance(args, ToolResult), args
        one = self.host.monitor()
        screen = Screen(self.host.name, one.x, one.y, one.width, one.height, shared=True)
        return await self.tool.run(args, ToolContext(screen=screen))

    @property
    def process_id(self) -> int:
        (driver,) = self.tool._drivers.values()
        assert driver.process_id is not None
        return driver.process_id


@pytest_asyncio.fixture
async def hands(desktop: Any) -> AsyncIterator[Hands]:
    async with HostDesktop.open() as host:
        found = Hands(host)
        yield found
        await found.tool.close()


def start(*argv: str) -> subprocess.Popen[bytes]:
    """A program on the desktop."""
    return subprocess.Popen(argv, env={**os.environ, "LC_ALL": "C.UTF-8", "XMODIFIERS": "@im=none"})


@pytest.mark.parametrize(
    ("monitor", "x", "y", "width", "height"),
    [("LEFT", 0, 0, 1000, 900), ("MID", 1000, 0, 1000, 900), ("RIGHT", 2000, 50, 1000, 800)],
)
async def test_clicks_land_on_the_monitor(
    desktop: Any, monitor: str, x: int, y: int, width: int, height: int
) -> None:
    stops: list[str] = []
    async with HostDesktop.open(monitor, stops.append) as host:
        window = desktop.cover()
        hands = Hands(host)
        try:
            for (gx, gy), pixel in {
                (0, 0): (x, y),
                (1000, 0): (x + width - 1, y),
                (0, 1000): (x, y + height - 1),
                (1000, 1000): (x + width - 1, y + height - 1),
                (500, 500): (x + width // 2, y + height // 2),
            }.items():
                result = await hands("left_click", coordinate=[gx, gy])
                assert (result.ok, result.text) == (True, "ok")
                assert window.presses() == [pixel]
                await asyncio.sleep(0.15)
            assert (await hands("cursor_position")).text == "ok; the cursor is at [500, 500]"
            result = await hands("zoom", region=[0, 0, 1000, 1000])
            assert result.image is not None
            assert result.image.shape == (height, width, 3)
        finally:
            await hands.tool.close()
            window.close()
    assert stops == []


async def test_text_arrives_whole_and_the_keyboard_map_is_as_before(
    desktop: Any, hands: Hands, tmp_path: Path
) -> None:
    before = desktop.keymap()
    text = 'Spaß <a> "b" 测试中文 Ы 🙂 éàü ŵ ქ'
    file = tmp_path / "typed"
    line = f"stty -echo; head -n 1 > {file}"
    xterm = start("xterm", "-u8", "-geometry", "80x24+1100+100", "-e", "sh", "-c", line)
    try:
        wait_for(lambda: _window_of(desktop, xterm.pid) is not None)
        await asyncio.sleep(0.5)
        assert (await hands("left_click", coordinate=[200, 200])).ok
        result = await hands("type", text=text + "\n")
        assert (result.ok, result.text) == (True, "ok")
        wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
        assert file.read_text() == text + "\n"
    finally:
        xterm.terminate()
        xterm.wait()
    await hands.tool.close()
    assert desktop.keymap() == before
    assert not desktop.is_anything_down()


async def test_kill_9_while_typing_leaves_nothing(desktop: Any, hands: Hands) -> None:
    window = desktop.cover()
    before = desktop.keymap()
    try:
        await hands("mouse_move", coordinate=[500, 500])
        typing = asyncio.ensure_future(hands("type", text="测试中文 Straße " * 100))
        await until(window.events)
        os.kill(hands.process_id, signal.SIGKILL)
        result = await typing
        assert not result.ok
        assert "ended while it was used" in result.text
        assert desktop.keymap() != before
        assert (await hands("mouse_move", coordinate=[400, 500])).ok
        assert not desktop.is_anything_down()
        assert desktop.keymap() == before
    finally:
        window.close()


async def test_a_stop_ends_a_long_text_at_once(desktop: Any) -> None:
    window = desktop.cover()
    stopped_s = []
    async with HostDesktop.open(None, lambda why: stopped_s.append(time.monotonic())) as host:
        hands = Hands(host)
        typing = asyncio.ensure_future(hands("type", text="All work and no play. " * 500))
        await until(window.events)
        desktop.hand_moves(0, 0)
        result = await typing
        ended_s = time.monotonic()
        assert not result.ok
        assert "emergency stop" in result.text
        await until(lambda: stopped_s)  # the display tells the typing process of the stop before us
        print(f"a long text ended {(ended_s - stopped_s[0]) * 1000:.0f} ms after the stop")
        assert not desktop.is_anything_down()
        again = await hands("left_click", coordinate=[500, 500])
        assert (again.ok, "emergency stop" in again.text) == (False, True)
        window.events()
        await asyncio.sleep(0.2)
        assert window.events() == [], "nothing is typed afterwards"
        await hands.tool.close()
    window.close()


async def test_without_the_guard_nothing_is_done(desktop: Any, hands: Hands) -> None:
    window = desktop.cover()
    try:
        assert (await hands("left_click", coordinate=[500, 500])).ok
        assert hands.host._guard is not None
        hands.host._guard.kill()
        await hands.host._guard.wait()
        window.events()
        for action, arguments in (("left_click", {"coordinate": [1, 1]}), ("type", {"text": "a"})):
            result = await hands(action, **arguments)
            assert (result.ok, "emergency stop" in result.text) == (False, True)
        assert window.events() == []
        assert hands.host.stopped == "The emergency stop was ended from outside."
    finally:
        window.close()


# ---- what the person does meanwhile


async def test_a_modifier_that_the_person_holds_stays_and_nothing_is_typed(
    desktop: Any, hands: Hands
) -> None:
    window = desktop.cover()
    try:
        desktop.hand_presses("Control_L")
        window.events()
        result = await hands("type", text="q")
        assert not result.ok
        assert "the user holds the key Control_L, so nothing was done" in result.text
        assert window.events() == []
        assert desktop.keys_down() == [desktop.code("Control_L")]
        soon = asyncio.ensure_future(hands("type", text="q"))
        await asyncio.sleep(0.5)
        desktop.hand_releases("Control_L")
        assert (await soon).ok
        typed = [event for event in window.events() if event.kind == "key"]
        assert [(event.code, event.state & X.ControlMask) for event in typed] == [(ord("q"), 0)]
    finally:
        desktop.hand_releases("Control_L")
        window.close()


async def test_a_button_that_the_person_holds_is_waited_for(desktop: Any, hands: Hands) -> None:
    desktop.hand_button(1, press=True)
    result = await hands("left_click", coordinate=[500, 500])
    assert "the user holds a button of the mouse" in result.text
    assert desktop.root.query_pointer().mask & X.Button1Mask
    desktop.hand_button(1, press=False)
    assert (await hands("left_click", coordinate=[500, 500])).ok


async def test_a_moving_mouse_is_waited_for(desktop: Any, hands: Hands) -> None:
    window = desktop.cover()
    try:
        assert (await hands("mouse_move", coordinate=[500, 500])).ok
        moving = asyncio.ensure_future(hands("left_click", coordinate=[100, 100]))
        presses, still_s = [], 0.0
        for step in range(30):
            moved_s = time.monotonic()
            desktop.hand_moves(1200 + step, 300)
            await asyncio.sleep(0.02)
            presses += window.presses()
            # A busy machine may hold the hand itself still for so long that it seems to have let go.
            still_s = max(still_s, time.monotonic() - moved_s)
            assert not presses or still_s > STILL_S / 2
        assert (await moving).ok
        assert presses + window.presses() == [(1100, 90)]
    finally:
        window.close()


async def test_a_pointer_that_the_person_took_away_is_told(desktop: Any, hands: Hands) -> None:
    window = desktop.cover()
    try:
        await hands("mouse_move", coordinate=[500, 500])
        desktop.hand_moves(1234, 321)
        result = await hands("left_click")
        assert not result.ok
        assert "the user has moved the pointer, so nothing was done; say where by `coordinate`" in result.text
        assert window.presses() == []
        dragging = asyncio.ensure_future(
            hands("left_click_drag", start_coordinate=[200, 200], coordinate=[800, 800])
        )
        await until(window.presses)
        desktop.hand_moves(1111, 222)
        result = await dragging
        assert result.ok
        assert "the user moved the pointer meanwhile" in result.text
        assert [(event.x, event.y) for event in window.events() if event.kind == "release"] == [(1800, 720)]
    finally:
        window.close()


async def test_the_clipboard_is_not_touched(desktop: Any, hands: Hands) -> None:
    owner = desktop.cover()
    try:
        for name in ("CLIPBOARD", "PRIMARY"):
            owner.window.set_selection_owner(owner.display.intern_atom(name), X.CurrentTime)
        owner.display.sync()
        assert (await hands("type", text="测试 paste nothing")).ok
        for name in ("CLIPBOARD", "PRIMARY"):
            assert owner.display.get_selection_owner(owner.display.intern_atom(name)) == owner.window
    finally:
        owner.close()


async def test_caps_lock_is_on_again_when_killed(desktop: Any, hands: Hands) -> None:
    window = desktop.cover()
    lock = desktop.code("Caps_Lock")
    try:
        for kind in (X.KeyPress, X.KeyRelease):
            xtest.fake_input(desktop.display, kind, lock)
        desktop.display.sync()
        assert desktop.root.query_pointer().mask & X.LockMask
        typing = asyncio.ensure_future(hands("type", text="abcdefgh" * 200))
        await until(lambda: any(event.code == ord("a") for event in window.events()))
        assert not desktop.root.query_pointer().mask & X.LockMask
        os.kill(hands.process_id, signal.SIGKILL)
        await typing
        await hands("mouse_move", coordinate=[500, 500])
        assert desktop.root.query_pointer().mask & X.LockMask
    finally:
        if desktop.root.query_pointer().mask & X.LockMask:
            for kind in (X.KeyPress, X.KeyRelease):
                xtest.fake_input(desktop.display, kind, lock)
        desktop.display.sync()
        window.close()


# ---- the terminal of the run


def _window_of(desktop: Any, process: int) -> Any:
    """The client window that a process made, or None."""
    fresh = Display(desktop.name)
    try:
        clients = fresh.screen().root.get_full_property(
            fresh.intern_atom("_NET_CLIENT_LIST"), X.AnyPropertyType
        )
        for number in [] if clients is None else clients.value:
            window = fresh.create_resource_object("window", number)
            made_by = window.get_full_property(fresh.intern_atom("_NET_WM_PID"), X.AnyPropertyType)
            if made_by is not None and list(made_by.value) == [process]:
                return number
        return None
    finally:
        fresh.close()


def _is_shown(desktop: Any, process: int) -> bool:
    """Whether the window of a process is on the screen, which it is some time after it is listed."""
    number = _window_of(desktop, process)
    if number is None:
        return False
    fresh = Display(desktop.name)
    try:
        attributes = fresh.create_resource_object("window", number).get_attributes()
        return bool(attributes.map_state == X.IsViewable)
    finally:
        fresh.close()


async def test_the_terminal_of_the_run_is_out_of_bounds(
    desktop: Any, hands: Hands, monkeypatch: Any, tmp_path: Path
) -> None:
    """An xterm stands for the terminal: WINDOWID, which it sets for what runs in it, is handed over."""
    told, typed = tmp_path / "windowid", tmp_path / "typed"
    line = f"echo $WINDOWID > {told}.part; mv {told}.part {told}; cat > {typed}"
    xterm = start("xterm", "-geometry", "60x20+1050+50", "-e", "sh", "-c", line)
    other = start("xterm", "-geometry", "60x20+1500+450", "-e", "cat")
    try:
        wait_for(told.exists)
        wait_for(lambda: _is_shown(desktop, other.pid) and _is_shown(desktop, xterm.pid), 60)
        await asyncio.sleep(0.3)
        monkeypatch.setenv("WINDOWID", told.read_text().strip())
        click = await hands("left_click", coordinate=[150, 150])
        assert (click.ok, "out of bounds, so nothing was done" in click.text) == (False, True)
        assert (await hands("left_click", coordinate=[600, 650])).ok
        assert (await hands("type", text="x")).ok
        desktop.hand_moves(1150, 150)
        desktop.hand_button(1, press=True)
        desktop.hand_button(1, press=False)
        wait_for(lambda: _active(desktop) == _window_of(desktop, xterm.pid))
        assert (await hands("type", text="y\n")).ok
        assert _active(desktop) == _window_of(desktop, other.pid)
        await asyncio.sleep(0.3)
        assert typed.read_text() == ""
    finally:
        for program in (xterm, other):
            program.terminate()
            program.wait()


def _active(desktop: Any) -> int:
    fresh = Display(desktop.name)
    try:
        found = fresh.screen().root.get_full_property(
            fresh.intern_atom("_NET_ACTIVE_WINDOW"), X.AnyPropertyType
        )
        return int(found.value[0]) if found is not None else 0
    finally:
        fresh.close()
