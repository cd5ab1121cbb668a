"""Two runs beside each other in one page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.agent.replay import write_replay
from pilotfish.agent.replay.compare import beside, parting
from pilotfish.agent.replay.page import all_entries, told

from .conftest import Looking
from .recorded import SCREEN, Recording, recorded, steered

PAIRS = pytest.mark.asyncio(loop_scope="module")


def one(run: Recording) -> None:
    run.start()
    run.click(1, 500, 250, 40)
    run.click(2, 100, 100, 60)
    run.click(3, 100, 100, 80)
    run.end()


def other(run: Recording) -> None:
    run.start()
    run.click(1, 500, 250, 40)
    run.click(2, 100, 100, 61)
    run.click(3, 900, 100, 80)
    run.click(4, 100, 900, 90, ok=False)
    run.end()


def test_steps_of_one_number_stand_beside_each_other(tmp_path: Path) -> None:
    a, b = told(recorded(tmp_path / "a", one)), told(recorded(tmp_path / "b", other))
    rows = beside(a, b)
    assert rows == [
        (0, 0, ""),
        (1, 1, ""),
        (2, 2, "screen"),
        (3, 3, "action"),
        (None, 4, "only one"),
        (4, 5, "screen"),
    ]
    assert parting(rows) == 2
    assert parting(beside(a, a)) is None


def test_every_entry_is_in_one_row_in_its_order(tmp_path: Path) -> None:
    a, b = told(recorded(tmp_path / "a", steered)), told(recorded(tmp_path / "b", one))
    rows = beside(a, b)
    assert [row[0] for row in rows if row[0] is not None] == list(range(len(all_entries(a))))
    assert [row[1] for row in rows if row[1] is not None] == list(range(len(all_entries(b))))
    for i, j, _ in rows:
        if i is not None and j is not None:
            assert (all_entries(a)[i].kind, all_entries(a)[i].step) == (
                all_entries(b)[j].kind,
                all_entries(b)[j].step,
            )
    assert [row[2] for row in beside(a, a) if row[2]] == []


@PAIRS
async def test_the_page_shows_both_and_where_they_part(tmp_path: Path, looking: Looking) -> None:
    path = write_replay(recorded(tmp_path / "a", one), other=recorded(tmp_path / "b", other))
    page = await looking.open(path)
    assert await page.locator(".stage img").count() == 2
    assert await looking.picture_widths() == {SCREEN[0]}
    await page.click("#to-parting")
    assert await looking.chosen() == "2. left_click 100 100 (0.93)"
    assert "The runs part here." in await page.inner_text(".difference")
    assert "the screens differ" in await page.inner_text(".difference")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("d")
    await looking.until("document.querySelector('canvas[role=img]') !== null")
    words = await page.get_attribute("canvas[role=img]", "aria-label")
    assert words is not None
    assert words.startswith("Difference: ")
    pixels = "canvas => [canvas.width, canvas.height]"
    assert await page.eval_on_selector("canvas[role=img]", pixels) == [*SCREEN]
    await page.keyboard.press("d")
    assert await page.locator("canvas[role=img]").count() == 0 or not await page.is_visible(
        "canvas[role=img]"
    )
    await page.keyboard.press("ArrowRight")
    assert "The actions differ." in await page.inner_text(".difference")
    await page.keyboard.press("ArrowRight")
    ended = "A ended after step 3 (done: passed, score 1)."
    assert await page.locator(".gap:visible").inner_text() == ended
    assert ended in await page.inner_text("#details")
    await page.select_option("#filter", "differs")
    assert await page.locator(".row .what").count() == 4
    head, *lines = [line.split("\t") for line in (await page.inner_text(".costs")).split("\n")]
    costs = {line[0]: dict(zip(head[1:], line[1:], strict=True)) for line in lines}
    assert [costs["tokens in"][name] for name in ("in all A", "in all B", "B − A")] == ["90", "120", "30"]
    looking.check(path)


@PAIRS
async def test_both_are_readable_on_a_phone(tmp_path: Path, phone: Looking) -> None:
    path = write_replay(recorded(tmp_path / "a", one), other=recorded(tmp_path / "b", steered))
    page = await phone.open(path)
    for _ in range(4):
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await page.tap("#after")
    phone.check(path)


def test_the_command_compares_runs_by_name(tmp_path: Path) -> None:
    for name, write in (("a", one), ("b", other)):
        recorded(tmp_path / "runs" / name, write)

    def replay(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pilotfish.agent.cli", "replay", *words, "--json"]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)

    done = replay("a", "--with", "b", "--max-mib", "0.001", "--out", "page.html")
    assert json.loads(done.stdout)["path"] == "page.html", done.stderr
    text = (tmp_path / "page.html").read_text()
    assert '"parting": 2' in text
    assert "below 0.001 MiB" in text
    refused = replay("a", "--with", "b", "--check")
    assert (refused.returncode, "leave out --check" in json.loads(refused.stdout)["error"]) == (2, True)
