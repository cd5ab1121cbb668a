"""Two runs of very different length beside each other in one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.agent.replay import write_replay

from .conftest import Looking
from .recorded import Recording, recorded

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHORT, LONG = 3, 60
ENDED = f"A ended after step {SHORT} (done: passed, score 1)."


def run_of(steps: int, *, ends: bool = True) -> Callable[[Recording], None]:
    def write(run: Recording) -> None:
        run.start()
        for number in range(1, steps + 1):
            run.click(number, 10 * number, 100, 2 * number)
        if ends:
            run.end()

    return write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    runs = [recorded(tmp_path / name, run_of(steps)) for name, steps in (("a", SHORT), ("b", LONG))]
    return write_replay(runs[0], other=runs[1])


async def heads(looking: Looking) -> list[str]:
    """The titles of the two columns of details."""
    return await looking.page.locator("#details article h2").all_inner_texts()


async def test_the_shorter_says_where_it_ended(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    assert await page.locator(".row .ends").all_inner_texts() == ["A ends"]
    facts = await page.inner_text("#facts")
    assert facts.startswith("A: 3 steps · run · ")
    assert " — B: 60 steps · run · " in facts
    a, b = [await column.bounding_box() for column in await page.locator(".column").element_handles()][:2]
    assert a is not None
    assert b is not None
    assert (a["y"], a["width"]) == (b["y"], b["width"]), "they stand beside each other"
    for _ in range(SHORT):
        await page.keyboard.press("ArrowRight")
    assert await heads(looking) == [f"{run}: 3. left_click 30 100 (0.93)" for run in "AB"]
    assert "A ends" in await page.locator(".row[aria-selected=true]").inner_text()
    width = "document.querySelector('.column').clientWidth"
    before = await page.evaluate(width)
    await page.keyboard.press("ArrowRight")
    assert await heads(looking) == [ENDED, "B: 4. left_click 40 100 (0.93)"]
    assert await page.locator(".gap:visible").all_inner_texts() == [ENDED]
    assert await page.inner_text("#position") == f"4. left_click 40 100 (0.93), 5 of {LONG + 2} – {ENDED}"
    assert await page.evaluate(width) == before
    await page.keyboard.press("End")
    assert await heads(looking) == ["A: done: passed, score 1", "B: done: passed, score 1"]
    await page.keyboard.press("ArrowLeft")
    assert await heads(looking) == [ENDED, f"B: {LONG}. left_click {10 * LONG} 100 (0.93)"]
    looking.check(path)


@pytest.mark.parametrize("by_time", [False, True])
async def test_scrubber_and_keys_reach_every_step(path: Path, looking: Looking, by_time: bool) -> None:
    page = await looking.open(path)
    if by_time:
        await page.keyboard.press("t")
    places = []
    for number in range(LONG + 1):
        places.append(float(await page.input_value("#scrubber")))
        if number:
            assert (await heads(looking))[1].startswith(f"B: {number}. left_click")
        await page.keyboard.press("ArrowRight")
    assert places == sorted(places)
    box = await page.locator("#scrubber").bounding_box()
    assert box is not None
    await page.mouse.click(box["x"] + box["width"] - 12, box["y"] + box["height"] / 2)
    assert (await heads(looking))[0] in (ENDED, "A: done: passed, score 1")
    await page.mouse.click(box["x"] + 1, box["y"] + box["height"] / 2)
    assert await heads(looking) == ["A: start", "B: start"]
    looking.check(path)


async def test_on_a_phone(path: Path, phone: Looking) -> None:
    page = await phone.open(path)
    for _ in range(SHORT + 1):
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await page.tap("#after")
    assert await page.locator(".gap:visible").all_inner_texts() == [ENDED]
    gap, picture = [
        await page.locator(what).bounding_box() for what in (".gap:visible", ".stage img:visible")
    ]
    assert gap is not None
    assert picture is not None
    assert gap["height"] < 120, "the longer run's picture is not pushed out of sight"
    box = await page.locator("#scrubber").bounding_box()
    assert box is not None
    await page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert (await heads(phone))[0] == ENDED
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    phone.check(path)


async def test_one_that_broke_off_is_told_as_that(tmp_path: Path, looking: Looking) -> None:
    long, short = recorded(tmp_path / "a", run_of(9)), recorded(tmp_path / "b", run_of(2, ends=False))
    path = write_replay(long, other=short)
    page = await looking.open(path)
    await page.keyboard.press("End")
    assert await heads(looking) == ["A: done: passed, score 1", "B broke off after step 2."]
    assert await page.locator(".row .ends").all_inner_texts() == ["B ends"]
    looking.check(path)
