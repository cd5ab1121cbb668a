"""The display: exact, reachable from outside by plain X clients, its own for each sandbox."""

from __future__ import annotations

import asyncio

import mss
import numpy as np
import numpy.typing as npt
import pytest
from Xlib import XK, X
from Xlib.display import Display as XDisplay
from Xlib.ext import xtest

from pilotfish.sandbox import Sandbox, SandboxSpec

from ..waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


def grab(box: Sandbox) -> npt.NDArray[np.uint8]:
    """The display's pixels, RGB [height, width, 3]."""
    with mss.MSS(display=box.display.name) as camera:
        shot = camera.grab(camera.monitors[0])
        return np.frombuffer(shot.rgb, np.uint8).reshape(shot.height, shot.width, 3)


async def test_size_is_exact(desk: Sandbox) -> None:
    assert (desk.display.width, desk.display.height) == (672, 448)
    assert grab(desk).shape == (448, 672, 3)
    result = await desk.shell.run("xdpyinfo | grep -E 'dimensions|depth of root'")
    assert "672x448 pixels" in result.output
    assert "24 planes" in result.output


async def test_what_is_drawn_inside_is_seen_outside(desk: Sandbox) -> None:
    for color, value in (("#123456", (0x12, 0x34, 0x56)), ("#fe0180", (0xFE, 0x01, 0x80))):
        assert (await desk.shell.run(f"xsetroot -solid '{color}' || echo missing")).output == ""
        await until(lambda value=value: bool((grab(desk) == value).all()))  # type: ignore[misc]


async def test_keys_pressed_outside_reach_a_program_inside(desk: Sandbox) -> None:
    # Every one of these is a shortcut of some window manager or other.
    script = "stty raw -echo; head -c 3 > /workspace/keys"
    terminal = await desk.run(["xterm", "-e", "sh", "-c", script])
    connection = XDisplay(desk.display.name)
    try:
        await until(lambda: connection.get_input_focus().focus not in (X.NONE, X.PointerRoot))
        await until(lambda: "xterm" in _focused_class(connection))
        for key, modifier in (("q", None), ("Escape", "Alt_L"), ("Tab", None)):
            codes = [
                connection.keysym_to_keycode(XK.string_to_keysym(name)) for name in (modifier, key) if name
            ]
            for code in codes:
                xtest.fake_input(connection, X.KeyPress, code)
            for code in reversed(codes):
                xtest.fake_input(connection, X.KeyRelease, code)
            connection.sync()
        await asyncio.wait_for(terminal.wait(), 15)
    finally:
        connection.close()
    assert desk.files.read_bytes("keys")[:1] == b"q"
    assert len(desk.files.read_bytes("keys")) == 3


def _focused_class(connection: XDisplay) -> tuple[str, ...]:
    window = connection.get_input_focus().focus
    while window not in (X.NONE, X.PointerRoot):
        if name := window.get_wm_class():
            return tuple(name)
        parent = window.query_tree().parent
        window = parent or X.NONE
    return ()


async def test_two_sandboxes_share_no_display_and_no_clipboard(desk: Sandbox) -> None:
    async with Sandbox.open(SandboxSpec(width=320, height=240)) as other:
        assert other.display.name != desk.display.name
        assert grab(other).shape == (240, 320, 3)
        await desk.shell.run("printf secret | xsel -b -i")
        while (await desk.shell.run("xsel -b -o | cat", timeout_s=10)).output != "secret":
            pass  # the program that keeps it has just been started
        assert (await other.shell.run("xsel -b -o | cat", timeout_s=10)).output == ""
        reach = f"DISPLAY={desk.display.name} xdpyinfo"
        assert (await desk.shell.run(reach)).exit_code == 0
        assert (await other.shell.run(reach)).exit_code == 1
        assert (await other.shell.run("ls -A /tmp/.X11-unix")).output.split()[0] == f"X{other.display.number}"


_KEYLOGGER = """
import ctypes, time
x = ctypes.CDLL("libX11.so.6")
x.XOpenDisplay.restype = ctypes.c_void_p
display = ctypes.c_void_p(x.XOpenDisplay(None))
down = ctypes.create_string_buffer(32)
open("/workspace/listening", "w").close()
for _ in range(3000):
    x.XQueryKeymap(display, down)
    if any(down.raw):
        print("heard")
        break
    time.sleep(0.002)
"""


async def test_programs_of_one_display_hear_each_others_keys(desk: Sandbox) -> None:
    """Documented, not prevented: who needs two programs apart opens two sandboxes."""
    logger = await desk.run(["python3", "-c", _KEYLOGGER])
    await until((desk.workspace / "listening").exists)
    connection = XDisplay(desk.display.name)
    try:
        code = connection.keysym_to_keycode(XK.string_to_keysym("a"))
        xtest.fake_input(connection, X.KeyPress, code)
        connection.sync()
        await logger.wait(20)
        xtest.fake_input(connection, X.KeyRelease, code)
        connection.sync()
    finally:
        connection.close()
    assert logger.output.strip() == "heard"


async def test_windows_get_no_menus_and_no_message_bus(desk: Sandbox) -> None:
    process = await desk.run(["xterm", "-geometry", "20x5"])
    await until(lambda: len(np.unique(grab(desk).reshape(-1, 3), axis=0)) > 3)
    names = (await desk.shell.run("ps -eo comm=")).output
    assert "dbus" not in names
    await process.kill()
    before = grab(desk)
    with_pointer = XDisplay(desk.display.name)
    try:
        xtest.fake_input(with_pointer, X.MotionNotify, x=600, y=400)
        xtest.fake_input(with_pointer, X.ButtonPress, 3)
        xtest.fake_input(with_pointer, X.ButtonRelease, 3)
        with_pointer.sync()
    finally:
        with_pointer.close()
    await asyncio.sleep(0.2)
    assert (grab(desk) == before).all()


@pytest.mark.parametrize(
    ("asked", "given"),
    [("Helvetica", "Liberation Sans"), ("Arial", "Liberation Sans"), ("serif", "DejaVu Serif")],
)
async def test_names_of_fonts_mean_the_same_on_every_machine(box: Sandbox, asked: str, given: str) -> None:
    process = await box.run(["fc-match", "-f", "%{family}", asked])
    await process.wait(20)
    assert process.output == given
