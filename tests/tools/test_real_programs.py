"""The computer tool on real programs: where clicks land, what is let go, displays side by side."""

import asyncio
import os
import signal
import time

import numpy as np
import pytest

from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tools.base import Screen, ToolContext
from pilotfish.tools.computer import ComputerTool
from pilotfish.tools.grid import pixel_to_grid
from pilotfish.tools.typing_check import PAINTED

pytestmark = pytest.mark.timeout(90)

# Keeps what reaches it: where presses and releases of buttons and keys were, in CSS pixels.
PAGE = """<!doctype html><body style="margin:0;height:100vh"><script>
const seen = []
for (const kind of ["mousedown", "mouseup", "keydown", "keyup"])
    addEventListener(kind, at => seen.push([kind, at.key || at.button, at.clientX, at.clientY]))
</script>"""


class Desk:
    """A sandbox with the computer tool on all of its display."""

    def __init__(self, box):
        self.box = box
        self.tool = ComputerTool()
        self.screen = Screen(box.display.name, 0, 0, box.display.width, box.display.height)

    async def try_to(self, action, screen=None, **arguments):
        args = self.tool.Args(action=action, **arguments)
        return await self.tool.run(args, ToolContext(self.box, screen or self.screen))

    async def act(self, action, **arguments):
        result = await self.try_to(action, **arguments)
        assert result.ok, result.text
        return result

    async def page(self, html, **look):
        self.box.files.write_text("page.html", html)
        page = await self.box.browser.open("page.html", **look)
        await page.evaluate(PAINTED)
        return page

    def picture(self):
        """RGB pixels of the display."""
        return self.box.framebuffer.grab(0, 0, self.screen.width, self.screen.height)[:, :, 2::-1]

    async def has(self, name):
        """Wait until a window of this class has the keyboard."""
        active = "xprop -id $(xprop -root _NET_ACTIVE_WINDOW | sed 's/.*# //') WM_CLASS 2>&1"
        await self.says(f"{active} | grep -io -m 1 {name} | head -n 1 | tr A-Z a-z", name)

    async def says(self, command, words):
        """Wait until a command says this."""
        for _ in range(200):
            said = (await self.box.shell.run(command, timeout_s=10)).output
            if said.strip() == words.strip():
                return
            await asyncio.sleep(0.05)
        pytest.fail(f"{command} says {said!r}, not {words!r}")


async def until(condition):
    deadline = time.monotonic() + 15
    while not await condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


@pytest.fixture
async def open_desk():
    """Opens desks of a size; they are closed at the end."""
    desks = []

    async def opened(width=800, height=600):
        desk = Desk(await Sandbox.start(SandboxSpec(width=width, height=height)))
        desks.append(desk)
        return desk

    yield opened
    for desk in desks:
        await desk.tool.close()
        await desk.box.close()


async def test_what_is_seen_at_a_place_is_clicked_at_that_place(open_desk):
    """2560x1440 is larger than what models are shown at once: the grid is what keeps both in one space."""
    desk = await open_desk(2560, 1440)
    spot = "position:fixed;left:2100px;top:1290px;width:24px;height:16px;background:#f0f"
    page = await desk.page(PAGE.replace("<script>", f'<div id="spot" style="{spot}"></div><script>', 1))
    await until(lambda: asyncio.to_thread(lambda: (desk.picture() == (255, 0, 255)).all(axis=2).any()))
    rows, columns = np.nonzero((desk.picture() == (255, 0, 255)).all(axis=2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (1290, 1305, 2100, 2123)
    place = pixel_to_grid((int(columns.mean()), int(rows.mean())), desk.screen)
    await desk.act("left_click", coordinate=place)

    async def clicked():
        return len(await page.evaluate("seen")) == 2

    await until(clicked)
    _, _, x, y = (await page.evaluate("seen"))[0]
    assert abs(x - 2112) <= 3
    assert abs(y - 1298) <= 2
    assert await page.evaluate("([x, y]) => document.elementFromPoint(x, y).id", [x, y]) == "spot"


@pytest.mark.parametrize(("scale", "css"), [(1, (400, 300)), (2, (200, 150)), (1.25, (320, 240))])
async def test_the_middle_is_the_middle_whatever_the_pixel_ratio(open_desk, scale, css):
    desk = await open_desk()
    page = await desk.page(PAGE, device_scale_factor=scale)
    await desk.act("left_click", coordinate=[500, 500])

    async def clicked():
        return len(await page.evaluate("seen")) == 2

    await until(clicked)
    assert tuple((await page.evaluate("seen"))[0][2:]) == pytest.approx(css, abs=1)


async def test_a_display_that_shrank_between_look_and_click_is_told(open_desk):
    desk = await open_desk()
    # What xrandr can do to this display: another mode, smaller.
    await desk.box.shell.run(
        "xrandr --newmode small 0 640 0 0 0 480 0 0 0; xrandr --addmode screen small; "
        "xrandr --output screen --mode small"
    )
    await desk.says("xdpyinfo | awk '/dimensions/ {print $2}'", "640x480")
    result = await desk.try_to("left_click", coordinate=[900, 500])
    assert not result.ok
    assert result.text == (
        "computer: pixel (720, 300) is not on the display any more, which is 640x480 now; look at the screen."
    )
    assert (await desk.try_to("left_click", coordinate=[500, 500])).ok


async def test_a_zoom_is_cut_from_the_display_at_full_resolution(open_desk):
    desk = await open_desk(1920, 1080)
    await desk.page(
        "<body style='margin:0;background:repeating-linear-gradient(90deg,#000 0 1px,#fff 1px 2px)'>"
    )
    await until(lambda: asyncio.to_thread(lambda: len(np.unique(desk.picture()[500, :100])) == 2))
    result = await desk.act("zoom", region=[500, 500, 600, 600])
    assert result.image.shape == (108 * 10, 192 * 10, 3)
    lines = result.image[5, ::10]
    assert np.array_equal(lines, desk.picture()[540, 960:1152])
    assert (lines[0::2] != lines[1::2]).all()


async def test_an_input_process_killed_in_a_drag_lets_go_in_the_page(open_desk):
    desk = await open_desk()
    page = await desk.page(PAGE)
    await desk.act("left_mouse_down", coordinate=[250, 500])
    hold = asyncio.ensure_future(desk.try_to("hold_key", text="ctrl+shift", duration=9))

    async def held():
        return len(await page.evaluate("seen")) >= 3

    await until(held)
    (driver,) = desk.tool._drivers.values()
    os.kill(driver.process_id, signal.SIGKILL)
    result = await hold
    assert not result.ok
    assert "ended while it was used" in result.text
    await desk.act("mouse_move", coordinate=[750, 500])

    async def released():
        seen = [(kind, what) for kind, what, *_ in await page.evaluate("seen")]
        return {("mouseup", 0), ("keyup", "Control"), ("keyup", "Shift")} <= set(seen)

    await until(released)


async def test_displays_side_by_side_get_each_their_own(open_desk):
    desks = [await open_desk(640, 480) for _ in range(3)]
    texts = ["first 测试\n", "second ß\n", "third 😀\n"]
    for desk in desks:
        await desk.box.run(["xterm", "-u8", "-e", "sh", "-c", "touch ready; cat > typed"])
        await desk.box.shell.run("until [ -e ready ]; do sleep 0.02; done", timeout_s=20)
        await desk.act("left_click", coordinate=[500, 500])
    # One tool serves them all, as one run's may; all at once.
    tool = desks[0].tool
    await asyncio.gather(
        *(
            tool.run(tool.Args(action="type", text=text * 20), ToolContext(desk.box, desk.screen))
            for desk, text in zip(desks, texts, strict=True)
        )
    )
    for desk, text in zip(desks, texts, strict=True):
        await desk.says("cat typed", (text * 20).strip())


async def test_half_a_display_is_a_screen_of_its_own(open_desk):
    desk = await open_desk()
    page = await desk.page(PAGE)
    right = Screen(desk.screen.display, 400, 0, 400, 600)
    assert (await desk.try_to("left_click", right, coordinate=[500, 500])).ok

    async def clicked():
        return len(await page.evaluate("seen")) == 2

    await until(clicked)
    assert (await page.evaluate("seen"))[0][2:] == [600, 300]
    assert (await desk.try_to("cursor_position", right)).text == "ok; the cursor is at [500, 500]"
    left = await desk.try_to("cursor_position", Screen(desk.screen.display, 0, 0, 400, 600))
    assert not left.ok
    assert "outside the screen" in left.text


async def test_a_calculator_by_keys(open_desk):
    desk = await open_desk()
    await desk.box.run(["galculator"])
    await desk.says(
        "xprop -id $(xprop -root _NET_ACTIVE_WINDOW | sed 's/.*# //') WM_CLASS 2>&1 | grep -o galculator",
        "galculator",
    )
    await desk.act("type", text="98-56\n")
    await desk.act("key", text="ctrl+c")
    await desk.says("xsel -b -o | cat", "42")


async def test_an_editor_by_keys(open_desk):
    """mousepad: shift selects, the clipboard of the sandbox moves, the file is saved."""
    desk = await open_desk()
    desk.box.files.write_text("note.txt", "alpha beta\ngamma\n")
    await desk.box.run(["mousepad", "--disable-server", "note.txt"])
    await desk.has("mousepad")
    await desk.act("key", text="ctrl+Home")
    await desk.act("key", text="ctrl+shift+Right")
    await desk.act("key", text="ctrl+x")
    await desk.says("xsel -b -o | cat", "alpha")
    await desk.act("key", text="ctrl+End")
    await desk.act("key", text="ctrl+v")
    await desk.act("type", text=" <end>")
    await desk.act("key", text="ctrl+s")
    await desk.says("cat note.txt", " beta\ngamma\nalpha <end>")
