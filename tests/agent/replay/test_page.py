"""The replay page in a real browser: seen, walked through by keys, mouse and finger, searched, printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Page

from pilotfish.agent import events as log
from pilotfish.agent.replay import write_replay

from .conftest import Looking
from .recorded import SCREEN, Recording, recorded, steered

pytestmark = pytest.mark.asyncio(loop_scope="module")

WALK = [
    "start",
    "1. left_click 500 250 (0.93)",
    "2. shell rm -rf build (0.93)",
    "3. left_click_drag 300 300",
    "4. scroll 500 500 (0.93)",
    "stepped back to before step 3",
    "paused",
    "message: Use the other button.",
    "mouse and keyboard taken over",
    "handed back after 4 inputs, 2.5 s",
    "went on",
    "3. edit replace a.py (0.93)",
    "4. zoom (0.93)",
    "5. type hello (0.93)",
    "tests: 1 failed (0.0 s)",
    "6. left_click 900 900 (0.93)",
    "done: passed, score 1",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_replay(recorded(tmp_path, steered))


async def details(page: Page) -> str:
    return await page.inner_text("#details")


async def go_to(page: Page, step: str) -> str:
    await page.locator(".row", has_text=step).last.click()
    return await details(page)


async def test_every_step_is_told_and_its_frames_show(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    told = []
    for _ in WALK:
        told.append(await looking.chosen())
        assert await looking.picture_widths() == {SCREEN[0]}, told[-1]
        await page.keyboard.press("ArrowRight")
    assert told == WALK
    looking.check(path)


async def test_what_a_person_did_is_told(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    denied = await go_to(page, "2. shell")
    assert "the rule shell rm *" in denied
    assert "denied: not now" in denied
    assert (await page.inner_text("#legend")).startswith("denied or not run")
    edited = await go_to(page, "3. left_click_drag")
    assert '"coordinate": [300, 300]' in edited.split("RAN INSTEAD")[1]
    assert "all came back" in await go_to(page, "stepped back")
    assert "Use the other button." in await go_to(page, "message")
    handed_back = await go_to(page, "handed back")
    assert "A person has used it." in handed_back
    assert "clicked at (5, 5)\ntyped 3 characters" in handed_back
    assert '{"tool": "shell", "verdict": "deny"}, kept for later runs too' in await details(page)
    undone = await page.locator(".row.undone .what").all_inner_texts()
    assert undone == [*WALK[3:5]]
    style = "getComputedStyle(document.querySelector('.row.undone')).textDecorationLine"
    assert await page.evaluate(style) == "line-through"
    await page.keyboard.press("u")
    assert await page.locator(".row.undone").count() == 0
    assert "of 15" in await page.inner_text("#position")
    looking.check(path)


async def test_changes_plan_tests_network_and_costs_are_told(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    await go_to(page, "3. edit")
    assert await page.locator(".removed").all_inner_texts() == ["-b = 2\n"]
    assert await page.locator(".added").all_inner_texts() == ["+b = 3"]
    assert await page.locator(".plan li").all_inner_texts() == ["✓ Look", "▶ Mend"]
    await go_to(page, "4. zoom")
    assert await page.locator(".picture").evaluate("one => one.complete && one.naturalWidth") == SCREEN[0]
    assert "refused" in await go_to(page, "5. type")
    await page.click("summary")
    assert await page.locator("details .plan li").first.inner_text() == "✓ Look"
    assert "pytest -q" in await go_to(page, "tests")
    await go_to(page, "6. left_click")
    costs = [line.split("\t") for line in (await page.inner_text(".costs")).split("\n")]
    assert costs[:4] == [
        ["cost", "here", "so far", "in all"],
        ["tokens in", "30", "240", "240"],
        ["of these cached", "20", "160", "160"],
        ["tokens out", "5", "40", "40"],
    ]
    assert ["vision", "0.75 s", "6.00 s", "6.00 s"] in costs
    assert ["calls", "0.50 s", "4.00 s", "4.00 s"] in costs
    assert "240 tokens in (160 cached)" in await page.inner_text("#facts")
    looking.check(path)


async def test_actions_are_drawn_on_the_frame_they_were_decided_on(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    drawn = {}
    for step in ("1. left_click", "3. left_click_drag", "4. scroll", "4. zoom", "5. type"):
        await page.locator(".row", has_text=step).click()
        await page.wait_for_selector(".stage text")
        tags = await page.eval_on_selector_all(".stage svg *", "all => all.map((one) => one.tagName)")
        drawn[step] = {*tags}, await page.locator(".stage text").first.text_content()
    assert drawn["1. left_click"] == ({"circle", "line", "text"}, "left_click")
    assert drawn["3. left_click_drag"] == ({"circle", "line", "polyline", "text"}, "left_click_drag")
    assert drawn["4. scroll"] == ({"circle", "line", "polyline", "text"}, "scroll down 3")
    assert drawn["4. zoom"] == ({"rect", "text"}, "zoom")
    assert drawn["5. type"] == ({"text"}, "type “hello”")
    # The cross is where the click went: the same share of the picture in both directions.
    await page.locator(".row", has_text="1. left_click").click()
    await page.wait_for_selector(".stage circle")
    cross = await page.locator(".stage circle").last.bounding_box()
    picture = await page.locator(".stage img").bounding_box()
    assert cross is not None
    assert picture is not None
    x = (cross["x"] + cross["width"] / 2 - picture["x"]) / picture["width"]
    y = (cross["y"] + cross["height"] / 2 - picture["y"]) / picture["height"]
    assert (round(x, 2), round(y, 2)) == (0.5, 0.25)
    first = await page.get_attribute(".stage img", "src")
    await page.keyboard.press("ArrowDown")
    assert await page.get_attribute(".stage img", "src") != first
    await page.wait_for_selector(".stage circle", state="detached")
    looking.check(path)


async def test_keys_walk_play_and_help(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    for key, step in (("End", WALK[-1]), ("ArrowLeft", WALK[-2]), ("PageUp", WALK[5]), ("n", WALK[6])):
        await page.keyboard.press(key)
        assert await looking.chosen() == step
    await page.keyboard.press("Home")
    await page.select_option("#speed", "16")
    await page.locator("h1").click()
    await page.keyboard.press(" ")
    await looking.until("document.getElementById('position').textContent.startsWith('done')")
    await page.wait_for_selector("#play[aria-pressed=false]")
    await page.keyboard.press("?")
    assert await page.is_visible("#help")
    assert "search in all text" in await page.inner_text("#help")
    await page.keyboard.press("Escape")
    assert not await page.is_visible("#help")
    await page.keyboard.press("/")
    await page.keyboard.type("other button")
    await page.wait_for_selector("#found:has-text('1 of 17')")
    assert await looking.chosen() == WALK[7]
    assert await page.evaluate("CSS.highlights.get('found').size") == 2
    await page.keyboard.press("Escape")
    assert await page.input_value("#search") == ""
    await page.select_option("#filter", "failed")
    assert await page.locator(".row .what").all_inner_texts() == [WALK[4], WALK[14]]
    looking.check(path)


async def test_the_timeline_is_moved_by_keys_and_mouse(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    await page.focus("#scrubber")
    await page.keyboard.press("ArrowRight")
    assert await looking.chosen() == WALK[1]
    assert await page.get_attribute("#scrubber", "aria-valuetext") == f"{WALK[1]}, 2 of 17"
    box = await page.locator("#scrubber").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] / 2, middle)
    await page.mouse.down()
    assert await looking.chosen() == WALK[8]
    await page.mouse.move(box["x"] + box["width"] - 2, middle, steps=4)
    await page.mouse.up()
    assert await looking.chosen() == WALK[-1]
    await page.keyboard.press("t")
    assert await page.get_attribute("#by-time", "aria-pressed") == "true"
    await page.mouse.click(box["x"] + 9, middle)
    assert await looking.chosen() == WALK[0]
    # Something is painted above the slider.
    painted = """canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
        .data.filter((_, n) => n % 4 === 3).some(Boolean)"""
    assert await page.eval_on_selector("#ticks", painted)
    looking.check(path)


async def test_a_phone_shows_it_in_one_column(path: Path, phone: Looking) -> None:
    page = await phone.open(path)
    for _ in WALK:
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        over = """() => [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility()
            && !one.closest('svg, .row, dialog, .skip, .away, .costs')
            && one.getBoundingClientRect().right > 361).map((one) => one.outerHTML.slice(0, 80))"""
        assert await page.evaluate(over) == []
        await page.tap("#after")
    box = await page.locator("#scrubber").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    touch = await page.context.new_cdp_session(page)

    async def finger(kind: str, *x: float) -> None:
        points = [{"x": one, "y": y} for one in x]
        await touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    await finger("touchStart", box["x"] + box["width"] - 5)
    for share in (0.9, 0.75, 0.5):
        await finger("touchMove", box["x"] + share * box["width"])
    await finger("touchEnd")
    assert await phone.chosen() == WALK[8]
    assert await phone.picture_widths() == {SCREEN[0]}
    phone.check(path)


async def test_work_without_a_screen_has_the_room_for_its_texts(tmp_path: Path, looking: Looking) -> None:
    def write(run: Recording) -> None:
        run.events.append(log.RunStarted(run="r", pilotfish="1", command="code", model="m"))
        run.events.append(log.EpisodeStarted(episode=0, task="t", instruction="Mend it."))
        run.answer(1, {"command": "ls"}, name="shell")
        run.events.append(log.Resulted(step=1, call_id="c1", ok=True, text="a.py"))

    path = write_replay(recorded(tmp_path, write))
    page = await looking.open(path)
    await page.keyboard.press("End")
    assert "a.py" in await details(page)
    assert not await page.is_visible("#stages")
    box = await page.locator("#details").bounding_box()
    assert box is not None
    assert box["width"] > 900
    assert await page.evaluate("document.documentElement.scrollWidth") == 1280
    looking.check(path)


async def test_it_can_be_printed_and_read_in_the_dark(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    await page.emulate_media(color_scheme="light", media="print")
    await page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = await page.inner_text("#print")
    assert all(step in printed for step in WALK)
    assert not await page.is_visible("#list")
    await page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert (await page.pdf())[:5] == b"%PDF-"
    looking.check(path)


async def test_everything_that_can_be_used_has_a_name(path: Path, looking: Looking) -> None:
    page = await looking.open(path)
    await page.keyboard.press("ArrowRight")
    tree = await (await page.context.new_cdp_session(page)).send("Accessibility.getFullAXTree")
    used = {"button", "slider", "combobox", "searchbox", "checkbox", "listbox", "option", "image", "link"}
    nodes = [
        node for node in tree["nodes"] if node.get("role", {}).get("value") in used and not node["ignored"]
    ]
    assert len(nodes) > 20
    assert [node for node in nodes if not node.get("name", {}).get("value")] == []


async def test_the_address_names_a_step(path: Path, looking: Looking) -> None:
    await looking.page.goto(f"{path.as_uri()}#3")
    assert await looking.chosen() == WALK[2]
    await looking.page.keyboard.press("End")
    await looking.until("location.hash === '#17'")
