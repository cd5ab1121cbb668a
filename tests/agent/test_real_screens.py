"""The recorder on real programs in a sandbox: what rests, what never does, what covers what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest
import pytest_asyncio

from pilotfish.agent.damage import Rect
from pilotfish.agent.recorder import CaptureError, Observed, Recorder
from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tools.base import Screen, ToolContext
from pilotfish.tools.computer import ComputerTool
from pilotfish.tools.typing_check import PAINTED

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

WIDTH, HEIGHT = 640, 480
WHOLE = Rect(0, 0, WIDTH, HEIGHT)
BUTTON = """<!doctype html><body style="margin:0"><button style="width:100vw;height:100vh;transition:{0}"
onclick="this.style.background = '#0f0'; this.textContent = 'pressed'">press</button>"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box() -> AsyncIterator[Sandbox]:
    async with Sandbox.open(SandboxSpec(width=WIDTH, height=HEIGHT)) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def click(box: Sandbox) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Clicks into the middle, and says as an action that the screen may react."""
    tool = ComputerTool()
    context = ToolContext(box, Screen(box.display.name, 0, 0, WIDTH, HEIGHT))

    async def act() -> bool:
        return (await tool.run(tool.Args(action="left_click", coordinate=(500, 500)), context)).ok

    yield act
    await tool.close()


async def seen(box: Sandbox, html: str, act: Callable[[], Awaitable[bool]]) -> Observed:
    """A clip of an action on a page, after the page has come to rest or could."""
    box.files.write_text("page.html", html)
    page = await box.browser.open("page.html")
    await page.evaluate(PAINTED)
    async with Recorder(box.display.name, WHOLE, camera=box.framebuffer) as recorder:
        await recorder.clip()
        return await recorder.clip(act)


async def test_a_click_is_seen_to_its_end(box: Sandbox, click: Callable[[], Awaitable[bool]]) -> None:
    clip = await seen(box, BUTTON.format("none"), click)
    assert clip.word == "settled"
    assert clip.clip.frames[3][5, 5].tolist() != clip.clip.frames[0][5, 5].tolist()
    rgb = box.framebuffer.grab(0, 0, WIDTH, HEIGHT)[:, :, 2::-1]
    assert np.array_equal(clip.clip.frames[3], rgb), "the last frame is what is there"


async def test_an_animation_is_waited_for(box: Sandbox, click: Callable[[], Awaitable[bool]]) -> None:
    clip = await seen(box, BUTTON.format("background 0.6s"), click)
    assert clip.word == "settled"
    assert clip.clip.frames[3][5, 5].tolist() == [0, 255, 0]
    assert clip.clip.times_s[3] > 0.6


async def test_a_spinner_that_never_rests_ends_at_the_cap(
    box: Sandbox, click: Callable[[], Awaitable[bool]]
) -> None:
    html = """<style>@keyframes turn { to { transform: rotate(360deg) } }
    div { width: 200px; height: 200px; margin: 99px; background: linear-gradient(red, blue);
    animation: turn 1s linear infinite }</style><div></div>"""
    await seen(box, html, click)
    async with Recorder(box.display.name, WHOLE, cap_s=0.8, camera=box.framebuffer) as recorder:
        clips = [await recorder.clip(click) for _ in range(5)]
    assert all(clip.clip.times_s[3] < 2.5 for clip in clips)
    # On a busy machine the browser itself may stand still for a while, which is rest.
    assert "unsettled" in [clip.word for clip in clips]


async def test_a_click_that_does_nothing_is_told(box: Sandbox, click: Callable[[], Awaitable[bool]]) -> None:
    assert (await seen(box, "<body style='background:#123'>", click)).word == "unchanged"


async def test_a_blinking_caret_does_not_keep_a_real_text_field_from_settling(
    box: Sandbox, click: Callable[[], Awaitable[bool]]
) -> None:
    html = "<textarea autofocus style='position:fixed;inset:0;font-size:24px'>text</textarea>"
    assert (await seen(box, html, click)).clip.settled


async def test_a_window_over_another_is_what_is_seen(box: Sandbox) -> None:
    box.files.write_text("page.html", "<body style='background:#f00'>")
    await (await box.browser.open("page.html")).evaluate(PAINTED)
    async with Recorder(box.display.name, WHOLE, camera=box.framebuffer) as recorder:
        under = (await recorder.clip()).clip.frames[3]
        assert under[100, 100].tolist() == [255, 0, 0]
        terminal = await box.run(["xterm", "-bg", "#00ff00", "-geometry", "60x20+50+50"])
        for _ in range(100):
            over = (await recorder.clip()).clip.frames[3]
            if over[150, 300].tolist() == [0, 255, 0]:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("the terminal was never seen")
        await terminal.kill()
        for _ in range(100):
            if np.array_equal((await recorder.clip()).clip.frames[3], under):
                return
            await asyncio.sleep(0.05)
    pytest.fail("what was under the terminal was not seen again")


async def test_a_picture_that_a_program_has_changed_is_told_and_not_shown() -> None:
    small = Rect(0, 0, 64, 64)
    async with (
        Sandbox.open(SandboxSpec(width=64, height=64)) as box,
        Recorder(box.display.name, small, camera=box.framebuffer) as recorder,
    ):
        await recorder.clip()
        await box.shell.run("truncate -s 1000 /run/pilotfish-screen/Xvfb_screen0")
        with pytest.raises(CaptureError, match="a program inside has changed it") as caught:
            await recorder.clip()
        assert "\n" not in str(caught.value)
