"""`pilotfish watch` in a real browser while a run is being written, and to those it is not for."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from pilotfish.agent import events as log
from pilotfish.agent.replay.following import Following
from pilotfish.agent.tui.bench import large_run

from .conftest import Looking
from .recorded import SCREEN, recorded, recording, steered

BROWSER = pytest.mark.asyncio(loop_scope="module")


@contextmanager
def watched(folder: Path) -> Iterator[str]:
    """The address that `pilotfish watch` prints; it is ended with Ctrl-C, in good order, and says nothing."""
    command = [sys.executable, "-m", "pilotfish.agent.cli", "watch", str(folder), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            told = json.loads(process.stdout.readline())
            assert told["run"] == folder.name
            yield told["url"]
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == ""
            assert process.wait(60) == 0
        finally:
            process.kill()


@BROWSER
async def test_a_run_is_seen_while_it_goes_on(tmp_path: Path, looking: Looking, phone: Looking) -> None:
    folder = tmp_path / "run"
    with recording(folder) as run, watched(folder) as url:
        for viewer in (looking, phone):
            await viewer.page.goto(url)
            assert await viewer.page.wait_for_selector("text=The run has not begun yet.")
        page = looking.page
        run.start()
        await page.wait_for_selector(".row >> text=start")
        assert await looking.picture_widths() == {SCREEN[0]}
        run.answer(1, {"action": "left_click", "coordinate": [500, 250]})
        await page.wait_for_selector(".row[aria-selected=true] >> text=1. left_click 500 250")
        await page.wait_for_selector(".stage circle")
        assert "not finished" in await page.inner_text("#details")
        run.result(1, 70, text="the button went down")
        await page.wait_for_selector("#details >> text=the button went down")
        await page.keyboard.press("Home")
        assert await page.get_attribute("#follow", "aria-pressed") == "false"
        run.click(2, 10, 10, 90)
        await page.wait_for_selector(".row >> text=2. left_click 10 10")
        assert await looking.chosen() == "start", "who looks at something is left there"
        run.events.append(log.SteppedBack(step=3, to=2, clip=run.clip(70)))
        await page.wait_for_selector(".row.undone >> text=2. left_click 10 10")
        run.end()
        await page.wait_for_selector("#facts >> text=passed")
        await page.keyboard.press("f")
        assert await looking.chosen() == "done: passed, score 1"
        for viewer in (looking, phone):
            await viewer.page.wait_for_selector(".row.end")
            assert await viewer.picture_widths() == {SCREEN[0]}
            assert viewer.errors == []
            origins = {
                asked.partition("#")[0].split("/")[2] for asked in viewer.requests if "http" in asked[:5]
            }
            assert origins == {url.split("/")[2]}
            assert not any(url.partition("#")[2] in asked.partition("#")[0] for asked in viewer.requests)
        assert await phone.page.evaluate("document.documentElement.scrollWidth") == 360
        await page.goto("about:blank")
        await page.goto(url.partition("#")[0] + "#wrong")
        await page.wait_for_selector("text=The token is missing or wrong")
        assert await page.locator(".row").count() == 0


def test_only_its_own_page_with_its_token_is_answered(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", steered)
    secret = tmp_path / "run" / log.FRAMES / "secret.png"
    secret.write_text("not a picture")
    name = next(
        event.clip.frames[0] for event in run.events if isinstance(event, log.Resulted) and event.clip
    )
    with watched(tmp_path / "run") as url, httpx2.Client(base_url=url.partition("#")[0]) as client:
        host = url.split("/")[2]
        good = {"authorization": f"Bearer {url.partition('#')[2]}"}
        assert url.startswith("http://127.0.0.1:")
        assert addresses(int(host.split(":")[1])) == ["0100007F"]

        def ask(path: str, **headers: str) -> int:
            return client.get(path, headers=headers).status_code

        paths = ("/changes", f"/frames/{name}")
        for path in paths:
            answer = client.get(path, headers=good)
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert not [header for header in answer.headers if header.startswith("access-control")]
            assert ask(path) == 401
            assert ask(path, authorization="Bearer wrong") == 401
            for wrong in (
                "evil.test",
                f"evil.test:{host.split(':')[1]}",
                "127.0.0.1",
                "",
                f"{host}.evil.test",
            ):
                assert ask(path, host=wrong, **good) == 421
            assert ask(path, origin="http://evil.test", **good) == 403
            assert ask(path, origin="null", **good) == 403
            two = [*good.items(), ("origin", f"http://{host}"), ("origin", "http://evil.test")]
            assert client.get(path, headers=two).status_code == 403
            assert ask(path, **{"sec-fetch-site": "cross-site"}, **good) == 403
            assert ask(path, **{"sec-fetch-site": "same-origin"}, origin=f"http://{host}", **good) == 200
            assert client.post(path, headers=good).status_code == 405
        assert ask("/", host="evil.test") == 421
        assert ask("/", connection="upgrade", upgrade="websocket") == 200
        assert ask("/", connection="upgrade", upgrade="h2c", host="evil.test") == 421
        with socket.create_connection(("127.0.0.1", int(host.split(":")[1])), 60) as raw:
            raw.sendall(b"no request\r\n\r\n")
            assert raw.recv(12) == b"HTTP/1.1 400"
        shell = client.get("/")
        assert shell.status_code == 200
        assert "Click it." not in shell.text, "the page itself tells nothing of the run"
        assert "connect-src 'self'" in shell.headers["content-security-policy"]
        wrong_names = ("..%2Fevents", "%2e%2e", "nothing", "secret", "a%00b", "\u00b2")
        assert [ask(f"/frames/{wrong}", **good) for wrong in wrong_names] == [404] * len(wrong_names)
        assert ask("/frames/../events.jsonl", **good) == 404
        assert [ask(f"/changes?since={since}", **good) for since in ("x", "-1", "9" * 30)] == [200] * 3


def addresses(port: int) -> list[str]:
    """What is listened on at a port, as the kernel writes it: 127.0.0.1 is 0100007F."""
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    listening = [line.split()[1].split(":") for table in tables for line in table if line.split()[3] == "0A"]
    return [address for address, at in listening if int(at, 16) == port]


def test_a_run_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pilotfish.agent.cli", "watch", str(tmp_path / "no"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "There is no run" in json.loads(done.stdout)["error"]


def test_a_long_log_is_served_from_its_beginning_on(tmp_path: Path) -> None:
    folder = large_run(tmp_path / "run", steps=900, lines=9)
    following = Following(folder)
    assert following.more
    first = following.changes(0)
    assert 0 < len(first["changed"]) < 900
    while following.more:
        following.read()
    rest = following.changes(first["version"])
    assert not rest["more"]
    assert {(n, at) for n, at, _ in (*first["changed"], *rest["changed"])} == {(0, at) for at in range(901)}
    with watched(folder) as url:
        headers = {"authorization": f"Bearer {url.partition('#')[2]}"}
        with httpx2.Client(base_url=url.partition("#")[0], headers=headers, timeout=60) as client:
            version, entries, more = 0, 0, True
            while more:
                news = client.get(f"/changes?since={version}").json()
                version, more = news["version"], news["more"]
                entries = max(entries, *(at for _, at, _ in news["changed"])) if news["changed"] else entries
            assert entries == 900
