"""Experts for MiniWoB++ tasks of flights, of a circle to draw and of a price to wait for."""

from __future__ import annotations

import asyncio
import json

from pilotfish.tasks.episodes.expert_tools import (
    box_of,
    choose_day,
    expert,
    fill,
    first,
    match,
    point,
    scroll_to,
    search,
    until_shown,
)
from pilotfish.tasks.episodes.pages import Screen, Unreachable
from pilotfish.tasks.episodes.steps import Steps, click, drag, wait


async def _choose_airport(s: Screen, field: str, name: str) -> Steps:
    """Type a city or an airport's code, and take what is offered for it."""
    if name in await s.js(f"{first(field)}.value") and await s.js(f"{first(field)}.value") != name:
        return
    async for step in fill(s, first(field), name):
        yield step
    item = f"pf.all('.ui-menu-item').find((e)=>pf.shown(e)&&e.textContent.includes({json.dumps(name)}))"
    async for step in until_shown(s, item):
        yield step
    yield click(await s.target(item))


@expert("book-flight", "book-flight-nodelay")
async def book_flight(s: Screen) -> Steps:
    what, start, end, date = match(
        r"Book the (\w+) one-way flight from: (.+) to: (.+) on (\d+/\d+/\d+)", s.utterance
    )
    if await s.js(f"pf.shown({first('#menu')})"):
        for field, name in (("#flight-from", start), ("#flight-to", end)):
            async for step in _choose_airport(s, field, name):
                yield step
        if await s.js(f"{first('#datepicker')}.value") != date:
            month, day, year = (int(part) for part in date.split("/"))
            async for step in choose_day(s, month, day, year):
                yield step
        yield click(await s.target(first("#search")))
    css, data = (".flight-price", "price") if what == "cheapest" else (".time-duration", "duration")
    values = await s.js(f"pf.all('.flight {css}').map((e)=>+e.dataset.{data})")
    if not values:
        raise Unreachable("no flights are shown")
    knob = f"pf.all('.flight .flight-price')[{values.index(min(values))}]"
    async for step in scroll_to(s, knob, first("#area"), 2):
        yield step
    yield click(await s.target(knob))


@expert("draw-circle")
async def draw_circle(s: Screen) -> Steps:
    # One drag is a straight line. A short one far from the point is about as round as the page asks for.
    if not await s.js("!!document.querySelector('svg path')"):
        x0, y0, x1, y1 = await box_of(s, first("svg"))
        left, top, right, bottom = await box_of(s, first("#circ"))
        x, y = (left + right) / 2, (top + bottom) / 2
        across = 1 if x < (x0 + x1) / 2 else -1
        down = 1 if y < (y0 + y1) / 2 else -1
        far, half = 20, 14
        yield drag(
            point(x + across * (far - half), y + down * (far + half)),
            point(x + across * (far + half), y + down * (far - half)),
        )
    yield click(await s.target(first("#controls button")))


@expert("stock-market")
async def stock_market(s: Screen) -> Steps:
    limit = float(search(r"less than \$(\d+\.\d+)", s.utterance))
    for _ in range(20):  # the first price comes after a tenth of a second
        if await s.js("document.querySelector('#stock-price').textContent"):
            break
        await asyncio.sleep(0.05)
    for _ in range(20):
        shown = await s.js("document.querySelector('#stock-price').textContent")
        price = float(search(r"\$(\d+\.\d+)", shown))
        if price <= limit - 0.5:  # it moves on while the mouse does
            break
        yield wait(1)
    yield click(await s.target(first("#buy")))
