"""The `browser` tool where pages hang, crash, ask for ever or close themselves, and the browser is killed."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from typing import Any

import pytest

from pilotfish.sandbox import browser_downloads
from pilotfish.sandbox.pieces import find_chromium
from pilotfish.tools import browser, browser_tabs
from pilotfish.tools.base import ToolResult, validate
from pilotfish.tools.browser import limit_s

from ..waiting import until
from .desk import SITE, Desk

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


async def test_a_page_that_closes_the_last_tab(desk: Desk) -> None:
    await desk.ok("navigate", url=SITE)
    while len((await desk.ok("tabs")).splitlines()) > 1:
        await desk.ok("close_tab")
    page = (await desk.box.browser.tabs())[0]
    await page.evaluate("setTimeout(close)")
    await asyncio.sleep(0.5)
    assert "'Home'" in await desk.ok("navigate", url=SITE)


async def test_a_page_that_asks_for_ever_can_be_left(desk: Desk) -> None:
    trap = int(re.search(r"tab (\d+)", await desk.ok("open_tab", url=f"{SITE}/trap"))[1])  # type: ignore[index]
    assert "'Stay'" in await desk.click("Go")
    assert "or close_tab if the page goes on asking" in await desk.ok("accept_dialog")
    assert "or close_tab if the page goes on asking" in await desk.refused("navigate", url=SITE)
    assert "'Home'" in await desk.ok("open_tab", url=SITE)
    assert f"tab {trap}:" in await desk.ok("tabs")
    assert f"tab {trap}:" not in await desk.ok("close_tab", tab=trap)
    assert "# Home" in await desk.ok("read")
    await desk.ok("navigate", url=f"{SITE}/trap")
    await desk.click("Go")
    await desk.ok("close_tab")
    assert "'Home'" in await desk.ok("navigate", url=SITE)


async def test_more_downloads_than_are_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_downloads, "_KEPT", 3)
    await desk.ok("navigate", url=SITE)
    report = await desk.ref("Report")
    for _ in range(5):
        await desk.ok("click", ref=report)
        await desk.ok("downloads", timeout=10)
    begun = desk.box.browser.downloads.begun
    assert "[saving 'report.csv': see downloads]" in await desk.ok("navigate", url=f"{SITE}/report.csv")
    assert desk.box.browser.downloads.begun == begun + 1
    assert len((await desk.ok("downloads", timeout=10)).splitlines()) == 3


async def test_a_download_that_never_ends(desk: Desk) -> None:
    await desk.ok("navigate", url=SITE)
    await desk.ok("navigate", url=f"{SITE}/endless")
    started = time.monotonic()
    said = await desk.ok("downloads", timeout=1)
    assert time.monotonic() - started < 20
    assert re.search(r"running: /workspace/Downloads/endless\S*, \d+ bytes", said)
    await desk.box.browser.restart()
    assert "the browser had ended and was started again" in await desk.ok("navigate", url=SITE)
    assert "cancelled: /workspace/Downloads/endless" in await desk.ok("downloads")


async def test_pages_that_hang_or_crash(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.ok("navigate", url=f"{SITE}/hang")
    assert "did not answer in time" in await desk.refused("click", ref=await desk.ref("Hang"))
    with monkeypatch.context() as short:
        short.setattr(browser_tabs, "_READ_S", 4.0)
        assert "did not answer in time" in await desk.refused("read")
    assert "'Next'" in await desk.ok("navigate", url=f"{SITE}/next")
    assert "second page" in await desk.ok("read")
    with monkeypatch.context() as short:
        short.setattr(browser, "_LOAD_S", 6.0)
        assert "its tab was replaced" in await desk.refused("navigate", url=f"{SITE}/slow")
    assert "about:blank" in await desk.ok("tabs")
    assert "crash" in await desk.refused("navigate", url="chrome://crash")
    assert "crashed; use navigate" in await desk.refused("read")
    assert "crashed" in await desk.ok("tabs")
    assert "'Home'" in await desk.ok("navigate", url=SITE)
    assert "Home" in await desk.ok("read")


async def test_a_page_that_keeps_the_browser_busy(desk: Desk) -> None:
    async def took(action: str, **arguments: Any) -> ToolResult:
        checked = validate(desk.tool, {"action": action, **arguments})
        assert not isinstance(checked, ToolResult)
        started = time.monotonic()
        result = await desk.tool.run(checked, desk.context)
        assert time.monotonic() - started < limit_s(checked) + 60
        return result

    await took("navigate", url=f"{SITE}/storm")
    await asyncio.sleep(1)
    assert "storm" not in (await took("close_tab")).text
    assert "'Home'" in (await took("navigate", url=SITE)).text
    assert "# Home" in (await took("read")).text


async def test_a_page_whose_frames_come_and_go(desk: Desk) -> None:
    await desk.ok("navigate", url=f"{SITE}/restless")
    assert "here" in await desk.ok("read")


async def test_a_browser_that_is_killed_between_calls(desk: Desk) -> None:
    await desk.ok("navigate", url=SITE)
    await desk.box.shell.run("pkill -9 -o -x chromium")
    await until(lambda: not desk.box.browser.is_running, 20)
    text = await desk.ok("navigate", url=f"{SITE}/next")
    assert "[the browser had ended and was started again: its tabs and pages are gone]" in text
    assert "second page" in await desk.ok("read")


async def test_a_driver_that_is_killed_between_calls(desk: Desk) -> None:
    await desk.ok("navigate", url=SITE)
    await desk.box.shell.run("pkill -9 -f run-driver")
    await until(lambda: not desk.box.browser.is_running, 20)
    assert "started again" in await desk.ok("navigate", url=f"{SITE}/next")
    assert "second page" in await desk.ok("read")


async def test_nothing_listens(desk: Desk) -> None:
    """Neither a page, a program inside nor the host has a port to reach the browser's controls at."""
    await desk.ok("navigate", url=f"{SITE}/port")
    await desk.ok("wait", text="reached", timeout=20)
    assert "reached []" in await desk.ok("read")
    tcp = (await desk.box.shell.run("cat /proc/net/tcp /proc/net/tcp6")).output
    listening = {line.split()[1].rpartition(":")[2] for line in tcp.splitlines() if " 0A " in line}
    assert listening == {f"{8000:04X}"}
    # The same page does reach one that has such a port; the host does not even then.
    controls = ["--headless", "--user-data-dir=/tmp/hand", "--remote-debugging-port=9222", "--no-sandbox"]
    by_hand = await desk.box.run([str(find_chromium().inner), *controls])
    ready = "until (: < /dev/tcp/127.0.0.1/9222) 2>/dev/null; do sleep 0.05; done"
    assert (await desk.box.shell.run(ready, timeout_s=20)).exit_code == 0
    await desk.ok("reload")
    await desk.ok("wait", text="reached", timeout=20)
    assert "reached [9222" in await desk.ok("read")
    with socket.socket() as outside, pytest.raises(ConnectionRefusedError):
        outside.connect(("127.0.0.1", 9222))
    await by_hand.kill()
