"""Chromium on the display: exact to the pixel, nothing of its own on the page, flat over many pages."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec

from .host import open_fds
from .test_display import grab, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

PAGE = "<title>t</title><body style='margin:0;background:rgb{color};{style}'></body>"
GREEN, BLUE = (0, 200, 0), (0, 0, 200)


def show(box: Sandbox, color: tuple[int, int, int], style: str = "") -> str:
    box.files.write_text("page.html", PAGE.format(color=color, style=style))
    return "page.html"


async def count_processes(box: Sandbox) -> int:
    return int((await box.shell.run("ps -eo pid= | wc -l")).output)


async def test_page_fills_the_display_exactly(desk: Sandbox) -> None:
    for color in (GREEN, BLUE):
        page = await desk.browser.open(show(desk, color))
        await until(lambda color=color: bool((grab(desk) == color).all()))  # type: ignore[misc]
        assert (page.width, page.height, page.device_scale_factor) == (672, 448, 1)
        assert await page.evaluate("[innerWidth, innerHeight, screenX, screenY, devicePixelRatio]") == [
            672,
            448,
            0,
            0,
            1,
        ]
    pixels = grab(desk)
    assert tuple(pixels[0, 0]) == tuple(pixels[447, 671]) == BLUE


async def test_scaled_page(desk: Sandbox) -> None:
    page = await desk.browser.open(show(desk, GREEN), viewport=(336, 224), device_scale_factor=2)
    await until(lambda: bool((grab(desk) == GREEN).all()))
    assert await page.evaluate("[innerWidth, innerHeight, devicePixelRatio]") == [336, 224, 2]


async def test_small_page_in_the_corner(desk: Sandbox) -> None:
    await desk.shell.run("xsetroot -solid black")
    page = await desk.browser.open(show(desk, GREEN), viewport=(332, 214), fill_display=False)
    await until(lambda: bool((grab(desk)[:214, :332] == GREEN).all()))
    pixels = grab(desk)
    assert not (pixels[214:] == GREEN).all(axis=2).any()
    assert not (pixels[:, 332:] == GREEN).all(axis=2).any()
    assert await page.evaluate("[innerWidth, innerHeight]") == [332, 214]


async def test_window_with_tabs(desk: Sandbox) -> None:
    page = await desk.browser.open(show(desk, GREEN), app_window=False)
    await until(lambda: tuple(grab(desk)[447, 671]) == GREEN)
    assert tuple(grab(desk)[0, 0]) != GREEN
    assert (await page.evaluate("innerHeight")) < 448


async def test_scrollbars_are_hidden_on_request_only(desk: Sandbox) -> None:
    tall = show(desk, GREEN, "height:3000px")
    shown = await desk.browser.open(tall)
    assert await shown.evaluate("document.documentElement.clientWidth") < 672
    hidden = await desk.browser.open(tall, hide_scrollbars=True)
    assert await hidden.evaluate("document.documentElement.clientWidth") == 672


async def test_viewports_that_do_not_fit(desk: Sandbox) -> None:
    with pytest.raises(
        SandboxError, match="viewport 700x100 does not fit the display, choose at most 672x448"
    ):
        await desk.browser.open("page.html", viewport=(700, 100))
    with pytest.raises(SandboxError, match="viewport 100x100 does not fill the display, which is 336x224"):
        await desk.browser.open("page.html", viewport=(100, 100), device_scale_factor=2)
    with pytest.raises(SandboxError, match="device_scale_factor is 0"):
        await desk.browser.open("page.html", device_scale_factor=0)


async def test_where_pages_come_from(tmp_path: Path) -> None:
    (tmp_path / "a b.html").write_text("<p>shown</p>")
    async with Sandbox.open(SandboxSpec(width=320, height=240, read_only={tmp_path: "/opt/pages"})) as box:
        box.files.write_text("own/ä#1.html", "<p>own</p>")
        text = "document.body.innerText"
        for name, words in (
            (tmp_path / "a b.html", "shown"),
            ("/opt/pages/a b.html", "shown"),
            ("file:///opt/pages/a%20b.html", "shown"),
            ("own/ä#1.html", "own"),
            ("/workspace/own/ä#1.html", "own"),
            (box.workspace / "own/ä#1.html", "own"),
            ("data:text/html,<p>data</p>", "data"),
        ):
            page = await box.browser.open(name)
            assert await page.evaluate(text) == words
        for name in ("missing.html", "http://127.0.0.1:9/", "https://example.com/", Path(__file__)):
            with pytest.raises(SandboxError, match=r"^page '.*' could not be opened: .*ERR_") as refusal:
                await box.browser.open(name)
            assert "\n" not in str(refusal.value)
        assert await (await box.browser.open("own/ä#1.html")).evaluate(text) == "own"
        with pytest.raises(SandboxError, match="the page could not run a script: "):
            await page.evaluate("nonsense(")


async def test_thirty_pages_are_flat(desk: Sandbox) -> None:
    counts = []
    for number in range(30):
        page = await desk.browser.open(show(desk, (number, 0, 0)))
        await page.evaluate("document.cookie = 'a=1'; localStorage.setItem('a', '1')")
        if number >= 5:
            counts.append((await count_processes(desk), open_fds()))
    # Chromium keeps or drops a spare process now and then; what must not be is growth.
    assert max(processes for processes, _ in counts[-5:]) <= max(processes for processes, _ in counts[:5]) + 1
    assert max(fds for _, fds in counts[-5:]) <= max(fds for _, fds in counts[:5])


async def test_windows_that_a_page_opens_are_gone_with_the_next(desk: Sandbox) -> None:
    page = await desk.browser.open(show(desk, GREEN))
    async with page.page.context.expect_page():
        await page.evaluate("void window.open('about:blank', '_blank', 'width=200,height=200')")
    await desk.browser.open(show(desk, BLUE))
    await until(lambda: bool((grab(desk) == BLUE).all()))


async def test_downloads_land_in_the_workspace(desk: Sandbox) -> None:
    desk.files.write_text("link.html", "<a id=a download='report.txt' href='data:text/plain,hello'>x</a>")
    page = await desk.browser.open("link.html")
    await page.page.click("#a")
    await until(lambda: desk.files.exists("Downloads/report.txt"))
    assert desk.files.read_text("Downloads/report.txt") == "hello"


async def test_window_that_is_closed(desk: Sandbox) -> None:
    page = await desk.browser.open(show(desk, GREEN))
    await page.page.close()
    await until(lambda: not (grab(desk) == GREEN).all())
    await desk.browser.open(show(desk, BLUE))
    await until(lambda: bool((grab(desk) == BLUE).all()))


async def test_browser_that_dies(desk: Sandbox) -> None:
    page = await desk.browser.open(show(desk, GREEN))
    waiting = asyncio.ensure_future(page.evaluate("new Promise(() => {})"))
    await asyncio.sleep(0.1)
    await desk.shell.run("pkill -9 -o -x chromium")
    with pytest.raises(
        SandboxError, match=r"^the page could not run a script: the browser has ended, call browser"
    ):
        await asyncio.wait_for(waiting, 10)
    await until(lambda: not desk.browser.is_running)
    with pytest.raises(SandboxError, match=r"the browser has ended, call browser.restart\(\)"):
        await page.evaluate("1")
    await desk.browser.restart()
    again = await desk.browser.open(show(desk, BLUE))
    assert await again.evaluate("1 + 1") == 2
    assert desk.browser.is_running


async def test_an_ended_driver_leaves_no_error_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Neither closing nor a killed driver has asyncio print an error that nobody took."""
    async with Sandbox.open(SandboxSpec(browser=True)) as box:
        await box.browser.open("about:blank")
        await (await box.run(["pkill", "-9", "-f", "run-driver"])).wait()
        await box.browser.open("about:blank")
    gc.collect()
    await asyncio.sleep(0)
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


async def test_restart_forgets_and_leaves_no_second_browser(desk: Sandbox) -> None:
    page = await desk.browser.open(show(desk, GREEN))
    await page.evaluate("localStorage.setItem('a', '1')")
    before = await count_processes(desk)
    await desk.browser.restart()
    assert "chromium" not in (await desk.shell.run("ps -eo comm=")).output
    page = await desk.browser.open(show(desk, GREEN))
    assert await page.evaluate("localStorage.getItem('a')") is None
    assert abs(await count_processes(desk) - before) <= 1


async def test_chromium_keeps_its_own_sandbox(desk: Sandbox) -> None:
    await desk.browser.open(show(desk, GREEN))
    look = (
        "for p in $(pgrep -f -- --type=renderer); do "
        "grep -h Seccomp_filters /proc/$p/status; readlink /proc/$p/ns/net /proc/$p/ns/pid; done; "
        "readlink /proc/self/ns/net /proc/self/ns/pid; ps -eo args | grep -c -- '[-]-no-sandbox'"
    )
    lines = (await desk.shell.run(look)).output.splitlines()
    own_net, own_pid, unprotected = lines[-3:]
    assert unprotected == "0"
    # One filter is ours, the other the browser's own.
    assert {line.split()[-1] for line in lines if line.startswith("Seccomp_filters")} == {"2"}
    assert own_net.startswith("net:")
    assert own_pid.startswith("pid:")


@pytest.mark.skipif(not Path("/etc/chromium.d").is_dir(), reason="only Debian's launcher can be told")
async def test_a_browser_started_by_hand_works_too(desk: Sandbox) -> None:
    page = "data:text/html,<p>by hand"
    by_hand = await desk.run(["chromium", "--headless", "--user-data-dir=/tmp/hand", "--dump-dom", page])
    assert await by_hand.wait(30) == 0
    assert "<p>by hand</p>" in by_hand.output
    # Without being told it refuses: within the filter it cannot build a sandbox of its own.
    itself = await desk.run(["/usr/lib/chromium/chromium", "--headless", "--dump-dom", page])
    assert await itself.wait(30) != 0
    assert "No usable sandbox" in itself.output
