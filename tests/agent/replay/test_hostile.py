"""Runs that are hostile, damaged or huge: the page shows what there is, and nothing of it does anything."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotfish.agent import events as log
from pilotfish.agent.replay import write_replay

from .conftest import Looking
from .recorded import SCREEN, Recording, recorded

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<!--<script>--><style>*{display:none}</style>{}${1}<!--frames--><!--script-->\u202e\u2028\x1b[2J\x00\u200b"
)
SHOWN = HOSTILE.translate(
    {0x202E: "\\u202e", 0x2028: "\\u2028", 0x1B: "\\x1b", 0: "\\x00", 0x200B: "\\u200b"}
)


def hostile(run: Recording) -> None:
    """Every text, name and place is hostile."""
    run.start(HOSTILE)
    marks = dict.fromkeys(("coordinate", "start_coordinate", "region", "scroll_amount"), HOSTILE)
    run.answer(
        1, {"action": HOSTILE, "scroll_direction": "__proto__", "text": HOSTILE, **marks}, text=HOSTILE
    )
    run.result(1, 2, text=HOSTILE)
    odd: dict[str, Any] = {"action": "left_click", "coordinate": [1e308, -5], "region": [None, {}, [], "x"]}
    run.answer(2, odd)
    run.result(2, 3)
    run.answer(3, {"action": ["left_click"], "coordinate": [[1], [2]], "text": {"a": 1}, HOSTILE: HOSTILE})
    run.result(3, 4)
    run.answer(
        4, {"command": "replace", "edits": [HOSTILE, {"old_text": HOSTILE, "new_text": 3}]}, name="edit"
    )
    run.result(4, 5)
    run.events.append(log.Spoken(step=5, text=HOSTILE))
    run.events.append(log.Planned(step=5, items=[log.PlanItem(title=HOSTILE)]))
    run.events.append(log.Resulted(step=9, call_id=HOSTILE, ok=False, text=HOSTILE))
    run.events.append(log.Decided(step=9, call_id="nobody's", verdict="deny", reason=HOSTILE))
    run.end(reason=HOSTILE)


async def walk(looking: Looking, path: Path) -> str:
    """Everything that the page says while one goes through it."""
    page = await looking.open(path)
    count = int(await page.evaluate("rows.length"))
    said = [await page.inner_text("header")]
    for _ in range(count):
        said.append(await page.text_content("#details") or "")
        await page.keyboard.press("ArrowRight")
    assert count > 1
    return "\n".join(said)


async def test_hostile_text_is_shown_and_does_nothing(tmp_path: Path, looking: Looking) -> None:
    path = write_replay(recorded(tmp_path, hostile))
    said = await walk(looking, path)
    page = looking.page
    assert await page.title() == "Pilotfish replay"
    assert await page.text_content("#title") == SHOWN
    assert said.count(SHOWN) > 10
    assert not any(char in said for char in "\u202e\u2028\x1b\x00\u200b")
    await page.fill("#search", "onerror=")
    await page.wait_for_selector("#found:has-text(' of ')")
    await page.evaluate("fillPrint()")
    assert (
        await page.locator("#details img, #rows img, #print script, #details script, #details style").count()
        == 0
    )
    looking.check(path)


async def test_a_damaged_run_shows_what_is_left(tmp_path: Path, looking: Looking) -> None:
    def write(run: Recording) -> None:
        run.start()
        run.click(1, 500, 500, 20)
        run.click(2, 500, 500, 30)
        run.click(3, 500, 500, 40)
        names = ("../../../etc/passwd", "__proto__", "constructor", '"><script>')
        clip = log.ClipData(frames=names, times_s=(0, 0, 0, 0), settled=True, word="settled")
        run.answer(4, {"action": "wait"})
        run.events.append(log.Resulted(step=4, call_id="c4", ok=True, text="", clip=clip))

    run = recorded(tmp_path, write)
    clips = [event.clip for event in run.events if isinstance(event, log.Resulted) and event.clip]
    run.frames.path(clips[0].frames[3]).unlink()
    broken = run.frames.path(clips[1].frames[3])
    broken.write_bytes(broken.read_bytes()[:-20])
    run.frames.path(clips[2].frames[3]).write_text("<svg onload='document.title=1'/>")
    with (tmp_path / log.EVENTS).open("a") as file:
        file.write(
            '{"v": 1, "type": "from_the_future", "text": "<b>"}\n[[[[\n{"v": 99}\n{"v": 1, "type": "answ'
        )
    run = log.read_run(tmp_path)
    assert len(run.warnings) == 4
    path = write_replay(run)
    page = await looking.open(path)
    assert "'from_the_future' is not known" in await page.inner_text("#warnings")
    for step, why in ((1, "missing"), (2, "damaged"), (3, "damaged"), (4, "missing")):
        await page.locator(".row", has_text=f"{step}. ").click()
        await page.locator("h1").click()  # the list takes the keys for itself
        for _ in range(3):
            await page.keyboard.press("ArrowDown")
        assert await page.inner_text(".gap") == f"This frame is {why}."
    assert "not finished" not in await page.inner_text("#details")
    looking.check(path)


async def test_a_run_that_was_killed_or_is_empty_shows(tmp_path: Path, looking: Looking) -> None:
    def killed(run: Recording) -> None:
        run.start()
        run.answer(1, {"action": "left_click", "coordinate": [500, 500]})

    path = write_replay(recorded(tmp_path / "killed", killed))
    page = await looking.open(path)
    await page.keyboard.press("End")
    assert "not finished" in await page.inner_text("#details")
    assert await page.locator(".stage circle").count(), "the action is drawn on the last frame there was"
    looking.check(path)

    def empty(run: Recording) -> None:
        run.events.append(log.RunStarted(run="r", pilotfish="1", command="code", model="m"))

    looking.requests.clear()
    path = write_replay(recorded(tmp_path / "empty", empty))
    page = await looking.open(path)
    await page.keyboard.press("ArrowRight")
    assert await page.inner_text("#position") == "nothing to show"
    looking.check(path)


LINES, STEPS, FRAMES = 35_000, 5_000, 2_000


def write_big(folder: Path) -> None:
    """A run of 5,000 steps, a result of 35,000 lines and 2,000 frames, without an fsync for each."""
    folder.mkdir()
    store = log.FrameStore(folder / log.FRAMES)
    pixels = np.zeros((SCREEN[1], SCREEN[0], 3), np.uint8)
    names = []
    for n in range(FRAMES):
        pixels[n // SCREEN[0] % SCREEN[1], n % SCREEN[0]] = n % 255 + 1
        names.append(store.put(pixels))
    first = log.ClipData(frames=(names[0],) * 4, times_s=(0, 0, 0, 0), settled=True, word="settled")
    records: list[log.Event] = [
        log.RunStarted(run="big", pilotfish="1", command="run", model="m"),
        log.EpisodeStarted(episode=0, task="t", instruction="i", screen=SCREEN, clip=first),
    ]
    for step in range(1, STEPS + 1):
        call = log.CallData(id="c", name="computer", arguments={"action": "left_click", "coordinate": [9, 9]})
        records.append(log.Answered(step=step, reasoning=f"thought {step} " * 20, calls=[call]))
        text = "\n".join(f"line {n} of many" for n in range(LINES)) if step == 2_500 else f"result {step}"
        a, b = names[(step - 1) % FRAMES], names[step % FRAMES]
        clip = first.model_copy(update={"frames": (a, a, b, b)})
        records.append(log.Resulted(step=step, call_id="c", ok=step % 7 > 0, text=text, clip=clip))
    lines = (json.dumps(one.model_copy(update={"n": n}).model_dump()) for n, one in enumerate(records, 1))
    (folder / log.EVENTS).write_text("\n".join(lines) + "\n")


async def test_a_huge_run_opens_soon(tmp_path: Path, looking: Looking) -> None:
    write_big(tmp_path / "big")
    path = write_replay(log.read_run(tmp_path / "big"))
    assert path.read_text().count("data:image/png;base64,") == FRAMES
    began = time.monotonic()
    page = await looking.open(path)
    assert await looking.picture_widths() == {SCREEN[0]}
    opened = time.monotonic() - began
    assert await page.locator(".row").count() < 100, "only the lines in view are there"
    await page.keyboard.press("End")
    assert await looking.chosen() == f"{STEPS}. left_click 9 9"
    began = time.monotonic()
    await page.fill("#search", f"line {LINES - 1} of many")
    await page.wait_for_selector("#found:has-text('1 of 5,001')")
    assert await page.evaluate("CSS.highlights.get('found').size") == 1
    found = time.monotonic() - began
    inner = await page.text_content("#details")
    assert f"line {LINES - 1} of many" in (inner or "")
    await page.fill("#search", "")
    await page.wait_for_selector("#found:not(:has-text('of'))", state="attached")
    timed = """async () => { const all = []; for (let n = 0; n < 50; n += 1) {
        const began = performance.now();
        dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'})); document.body.offsetHeight;
        all.push(performance.now() - began); } return all.sort((a, b) => a - b)[47]; }"""
    key = await page.evaluate(timed)
    print(f"opened in {opened:.2f} s, found in {found:.2f} s, a key in {key:.1f} ms")
    assert opened < 20
    assert found < 20
    assert key < 250
    looking.check(path)


async def test_frames_are_thinned_and_it_says_so(tmp_path: Path, looking: Looking) -> None:
    def write(run: Recording) -> None:
        run.start()
        for step in range(1, 30):
            run.click(step, 500, 500, 10 * step)

    run = recorded(tmp_path, write)
    whole = write_replay(run, tmp_path / "whole.html").stat().st_size
    path = write_replay(run, max_mib=0.02)
    assert path.stat().st_size < whole
    page = await looking.open(path)
    assert "frames were left out to keep the page below 0.02 MiB" in await page.inner_text("#warnings")
    gaps = 0
    for _ in range(30):
        await page.keyboard.press("ArrowRight")
        gaps += await page.locator(".gap").is_visible()
    assert 0 < gaps < 30
    assert "--max-mib" in await page.evaluate("Object.values(boot.absent)[0]")
    looking.check(path)
