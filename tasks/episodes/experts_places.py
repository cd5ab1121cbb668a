"""Experts for MiniWoB++ tasks of places: points and lines to find, shapes and rows to drag, menus."""

from __future__ import annotations

import asyncio
import json
import math

from pilotfish.tasks.episodes.expert_tools import (
    box_of,
    expert,
    fill,
    find,
    first,
    match,
    middle,
    point,
    quoted,
    scroll_to,
    search,
    until_shown,
)
from pilotfish.tasks.episodes.experts_scrolling import move_slider
from pilotfish.tasks.episodes.pages import Box, Screen, Target
from pilotfish.tasks.episodes.steps import Steps, click, drag

Point = tuple[float, float]


async def _centres(s: Screen, css: str) -> list[Point]:
    boxes = [
        await box_of(s, f"pf.all({json.dumps(css)})[{i}]")
        for i in range(await s.js(f"pf.all('{css}').length"))
    ]
    return [((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in boxes]


def _midpoint(a: Point, b: Point) -> Point:
    return (a[0] + b[0]) / 2, (a[1] + b[1]) / 2


def _on_bisector(vertex: Point, a: Point, b: Point) -> Point:
    """Where the bisector of an angle meets the line between the ends of its sides, or farther out."""
    to_a, to_b = math.dist(vertex, a), math.dist(vertex, b)
    dx, dy = (a[k] + (b[k] - a[k]) * to_a / (to_a + to_b) - vertex[k] for k in (0, 1))
    longer = max(1, 20 / math.hypot(dx, dy))
    return vertex[0] + dx * longer, vertex[1] + dy * longer


def _square_to(vertex: Point, a: Point, box: Box) -> Point:
    """A point at a right angle to the line from the vertex, on the side that has more room."""
    far = math.dist(vertex, a)
    dx, dy = -(a[1] - vertex[1]) / far * 30, (a[0] - vertex[0]) / far * 30
    ends = [(vertex[0] + sign * dx, vertex[1] + sign * dy) for sign in (1, -1)]
    return max(ends, key=lambda p: min(p[0] - box[0], box[2] - p[0], p[1] - box[1], box[3] - p[1]))


async def _place(s: Screen, where: Point) -> Steps:
    # These pages take a click for a place in a picture that begins at 0, 50; where it does begin may differ.
    left, top, _, _ = await box_of(s, first("#area svg"))
    yield click(point(where[0] - left, where[1] - top + 50))
    yield click(await s.target(first("#subbtn")))


@expert("circle-center", remembers=True)
async def circle_center(s: Screen) -> Steps:
    async for step in _place(s, (await _centres(s, "#area circle"))[0]):
        yield step


@expert("find-midpoint", remembers=True)
async def find_midpoint(s: Screen) -> Steps:
    async for step in _place(s, _midpoint(*await _centres(s, "#area circle"))):
        yield step


@expert("bisect-angle", remembers=True)
async def bisect_angle(s: Screen) -> Steps:
    vertex = (await _centres(s, ".init-blue"))[0]
    async for step in _place(s, _on_bisector(vertex, *await _centres(s, ".init-black"))):
        yield step


@expert("right-angle", remembers=True)
async def right_angle(s: Screen) -> Steps:
    vertex, other = [(await _centres(s, css))[0] for css in ("#init-blue", "#init-black")]
    async for step in _place(s, _square_to(vertex, other, await box_of(s, first("#svg-grid")))):
        yield step


@expert("draw-line", remembers=True)
async def draw_line(s: Screen) -> Steps:
    (x, y), (x0, y0, x1, y1) = (await _centres(s, "#circ"))[0], await box_of(s, first("svg"))
    if "horizontal" in s.utterance:
        ends = point(max(x0 + 4, x - 30), y), point(min(x1 - 4, x + 30), y)
    else:
        ends = point(x, max(y0 + 4, y - 30)), point(x, min(y1 - 4, y + 30))
    yield drag(*ends)
    yield click(await s.target(first("#controls button")))


@expert("hot-cold", remembers=True)
async def hot_cold(s: Screen) -> Steps:
    x0, y0, x1, y1 = await box_of(s, first("#touch-area"))
    for row in (1, 3):
        for column in (1, 3, 5):
            spot = point(x0 + (x1 - x0) * column / 6, y0 + (y1 - y0) * row / 4)
            yield click(spot, "mouse_move")
            if not await s.js("!!document.querySelector('#signal.ice-cold')"):
                yield click(spot)
                return


@expert("drag-single-shape", remembers=True)
async def drag_single_shape(s: Screen) -> Steps:
    dx, dy = {"left": (-20, 0), "right": (20, 0), "up": (0, -20), "down": (0, 20)}[
        search(r"Drag the item (\w+) then", s.utterance)
    ]
    shape = middle(await s.target(first(".black-shape")))
    yield drag(shape, point(shape.x + dx, shape.y + dy))
    yield click(await s.target(first("#subbtn")))


@expert("drag-shapes", "drag-shapes-2", remembers=True)
async def drag_shapes(s: Screen) -> Steps:
    kind, place = match(r"Drag all (\w+)(?: shapes)? into the (\w+) box", s.utterance)
    tag = {"rectangles": "rect", "circles": "circle", "triangles": "polygon"}.get(kind)
    shapes = "pf.all('#area_svg rect:not(#shape-container),#area_svg circle,#area_svg polygon')"
    fits = f"e.tagName==={json.dumps(tag)}" if tag else f"e.getAttribute('fill')==={json.dumps(kind)}"
    wanted = await s.js(f"{shapes}.map((e)=>{fits})")
    boxes = await _centres(s, "#shape-container")
    for i, is_wanted in enumerate(wanted):
        if is_wanted or place == "left":
            shape = middle(await s.target(f"{shapes}[{i}]"))
            yield drag(shape, point(*boxes[0 if is_wanted else 1]))
    yield click(await s.target(first("#subbtn")))


_GRID = {
    f"{row} {column}".replace("center center", "center"): 3 * r + c
    for r, row in enumerate(("top", "center", "bottom"))
    for c, column in enumerate(("left", "center", "right"))
}


@expert("drag-items-grid", remembers=True)
async def drag_items_grid(s: Screen) -> Steps:
    name, where = match(r"Drag (\S+) (.*)\.", s.utterance)
    items = "pf.all('#sortable li')"
    at = (await s.js(f"{items}.map((e)=>pf.clean(e.textContent))")).index(name)
    if where.startswith("to the "):
        goal = _GRID[where.removeprefix("to the ")]
    else:
        goal = at + {"up": -3, "down": 3, "left": -1, "right": 1}[where.split()[0]]
    # An item goes before the one over whose middle it is moved; behind it on the way down or to the right.
    right, down = goal % 3 - at % 3, goal // 3 - at // 3
    over = goal - 1 if right > 0 > down else goal
    start, end = [middle(await s.target(f"{items}[{i}]")) for i in (at, over)]
    past = [5 * ((way > 0) - (way < 0)) for way in (right, down)]
    yield drag(start, Target(end.box, end.x + past[0], end.y + past[1]))


@expert("drag-sort-numbers")
async def drag_sort_numbers(s: Screen) -> Steps:
    items = "pf.all('#sortable li')"
    for place in range(3):
        numbers = await s.js(f"{items}.map((e)=>+e.textContent)")
        at = numbers.index(min(numbers[place:]), place)
        if at != place:
            start, end = [middle(await s.target(f"{items}[{i}]")) for i in (at, place)]
            yield drag(start, Target(end.box, start.x, end.y - 4))
    yield click(await s.target(first("#subbtn")))


@expert("form-sequence", remembers=True)
async def form_sequence(s: Screen) -> Steps:
    goal, rank = match(r"Select (-?\d+) with the slider, click the (\d)", s.utterance)
    async for step in move_slider(s, int(goal)):
        yield step
    yield click(await s.target(first(f"#checkbox-{rank}")))
    yield click(await s.target(first("#subbtn")))


@expert("form-sequence-3", remembers=True)
async def form_sequence_3(s: Screen) -> Steps:
    height = search(r"Choose (.*) from the dropdown", s.utterance)
    yield click(await s.target(first(".selectric")))
    item = find(".selectric-items li", height)
    async for step in scroll_to(s, item, first(".selectric-scroll")):
        yield step
    yield click(await s.target(item))
    yield click(await s.target(find("#buttons button", quoted(s.utterance)[0])))


@expert("click-menu")
async def click_menu(s: Screen) -> Steps:
    # A click on an item with a submenu would choose that item; the pointer alone opens it, after a while.
    path = s.utterance.removeprefix("Select ").split(">")
    for name, below in zip(path, [*path[1:], ""], strict=True):
        item = find("#menu .ui-menu-item-wrapper", name)
        if not below:
            yield click(await s.target(item))
            return
        if await s.js(f"pf.shown({find('#menu .ui-menu-item-wrapper', below)})"):
            continue
        yield click(await s.target(item), "mouse_move")
        async for step in until_shown(s, find("#menu .ui-menu-item-wrapper", below)):
            yield step


@expert("click-menu-2")
async def click_menu_2(s: Screen) -> Steps:
    asked = (
        json.dumps(quoted(s.utterance)[1])
        if "labeled" in s.utterance
        else "Object.keys(PROBLEM_SET).find((k)=>document.querySelector('#query .'+PROBLEM_SET[k]))"
    )
    item = f"pf.byText('#menu li>div',{asked})[0]"
    if not await s.js("pf.shown(document.querySelector('#menu'))"):
        yield click(await s.target(first("#open-menu")))
    if not await s.js(f"pf.shown({item})"):
        yield click(await s.target(find("#menu li>div", "Playback")))
        async for step in until_shown(s, item):
            yield step
    yield click(await s.target(item))


@expert("click-pie", "click-pie-nodelay", remembers=True)
async def click_pie(s: Screen) -> Steps:
    item = (
        f"pf.all('#divWheel text').find((e)=>pf.clean(e.textContent)==={json.dumps(quoted(s.utterance)[0])})"
    )
    yield click(await s.target("pf.all('#divWheel [id*=spreader]')[0]"))
    before: Box | None = None
    for _ in range(30):  # it unfolds by itself
        now = await box_of(s, item)
        if now == before and now[2] > now[0]:
            break
        before = now
        await asyncio.sleep(0.1)
        await s.page.draw()
    yield click(await s.target(item))


@expert("generate-number")
async def generate_number(s: Screen) -> Steps:
    kind, bound = match(r"(less than|greater than|odd|even)\D*(\d*)", s.utterance)
    for _ in range(20):
        shown = await s.js("document.querySelector('#display-number').textContent")
        number = int(shown) if shown.strip().lstrip("-").isdecimal() else None
        if number is not None and (
            number < int(bound)
            if kind == "less than"
            else number > int(bound)
            if kind == "greater than"
            else number % 2 == (kind == "odd")
        ):
            break
        yield click(await s.target(first("#generate")))
    yield click(await s.target(first("#submit")))


@expert("number-checkboxes")
async def number_checkboxes(s: Screen) -> Steps:
    number = quoted(s.utterance)[0]
    boxes = "pf.all('#area input[type=checkbox]')"
    wrong = f"{boxes}.filter((e,i)=>e.checked!==!!PATTERNS[{number}].flat()[i])"
    while await s.js(f"{wrong}.length"):
        yield click(await s.target(f"{wrong}[0]"))
    yield click(await s.target(first("#subbtn")))


@expert("read-table-2")
async def read_table_2(s: Screen) -> Steps:
    for n in (1, 2):
        label = await s.js(f"document.querySelector('#ll{n}').dataset.key")
        value = await s.js(f"{find('#tab td:first-child', label)}.nextElementSibling.textContent")
        async for step in fill(s, first(f"#tt{n}"), value):
            yield step
    yield click(await s.target(first("#subbtn")))
