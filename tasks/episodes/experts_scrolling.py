"""Experts for MiniWoB++ tasks of scrolling, dragging, choosing dates, and of keys in special places."""

from __future__ import annotations

import json
import re

from pilotfish.tasks.episodes.expert_tools import (
    choose_day,
    expert,
    fill,
    first,
    match,
    quoted,
    scroll_to,
    search,
    until_shown,
)
from pilotfish.tasks.episodes.pages import Screen, Target, Unreachable
from pilotfish.tasks.episodes.steps import Steps, click, drag, key, scroll, type_text


def _shifted(target: Target, dx: float, dy: float) -> Target:
    """The same target with its point moved by CSS pixels."""
    return Target(target.box, target.x + dx, target.y + dy)


async def _to_end(s: Screen, frame: str, direction: str, amount: int = 5) -> Steps:
    """Scroll a box until it can go no further."""
    for _ in range(12):
        at_end = (
            f"{frame}.scrollTop<=0"
            if direction == "up"
            else f"{frame}.scrollTop+{frame}.clientHeight>={frame}.scrollHeight-1"
        )
        if await s.js(at_end):
            return
        yield scroll(await s.target(frame), direction, amount)
    raise Unreachable("the text does not end")


@expert("scroll-text")
async def scroll_text(s: Screen) -> Steps:
    async for step in _to_end(s, first("#text-area"), "down"):
        yield step
    text = await s.js("document.querySelector('#text-area').value")
    async for step in fill(s, first("#answer-input"), re.sub("[^a-zA-Z0-9]", "", text.split()[-1])):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("scroll-text-2")
async def scroll_text_2(s: Screen) -> Steps:
    where = search(r"to the (top|bottom) of", s.utterance)
    async for step in _to_end(s, first("#text-area"), "up" if where == "top" else "down"):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("sign-agreement")
async def sign_agreement(s: Screen) -> Steps:
    if "Scroll" in s.utterance:
        name, _ = quoted(s.utterance)
        async for step in _to_end(s, first("#text-area"), "down", 10):
            yield step
        async for step in fill(s, first("#name"), name):
            yield step
    last = "cancel" if "ancel" in s.utterance else "agree"
    yield click(await s.target(first(f"#{last}")))


@expert("enter-date", remembers=True)
async def enter_date(s: Screen) -> Steps:
    month, day, year = match(r"Enter (\d+)/(\d+)/(\d+) as", s.utterance)
    yield click(await s.target(f"pf.part({first('#tt')},0.03,0.12)"))
    yield type_text(month + day + year)
    yield click(await s.target(first("#subbtn")))


@expert("enter-time", remembers=True)
async def enter_time(s: Screen) -> Steps:
    hour, minute, half = match(r"Enter (\d+):(\d+)\s*([AP]M) as", s.utterance)
    yield click(await s.target(f"pf.part({first('#tt')},0.03,0.12)"))
    yield type_text(hour.zfill(2) + minute + half[0].lower())
    yield click(await s.target(first("#subbtn")))


@expert("copy-paste", "copy-paste-2", remembers=True)
async def copy_paste(s: Screen) -> Steps:
    rank = int(search(r"the (\d)\w\w text area", s.utterance)) if "text area" in s.utterance else 1
    yield click(await s.target(f"pf.all('#area textarea')[{rank - 1}]"))
    yield key("ctrl+a")
    yield key("ctrl+c")
    yield click(await s.target(first("#answer-input")))
    yield key("ctrl+v")
    yield click(await s.target(first("#subbtn")))


@expert("terminal", remembers=True)
async def terminal(s: Screen) -> Steps:
    ending = search(r"extension \.(\S+)$", s.utterance) if "extension ." in s.utterance else ""
    yield click(await s.target(first("#terminal")))
    yield type_text("ls")
    yield key("Return")
    files = await s.js("currentFiles")
    fits = [name for name in files if (name.endswith("." + ending) if ending else "." not in name)]
    yield type_text(f"rm {fits[0]}")
    yield key("Return")


@expert("highlight-text", "highlight-text-2", remembers=True)
async def highlight_text(s: Screen) -> Steps:
    numbered = re.search(r"in the (\d)\w\w paragraph", s.utterance)
    block = f"pf.all('#randomText p')[{int(numbered[1]) - 1}]" if numbered else first("#randomText")
    ends = await s.js(f"pf.ends({block})")
    if not ends:
        raise Unreachable("the text is not shown whole")
    (x0, y0), (x1, y1) = ends
    box = (min(x0, x1), y0, max(x0, x1), y1)
    yield drag(Target(box, x0, y0), Target(box, x1, y1))
    yield click(await s.target(first("#subbtn")))


async def move_slider(s: Screen, goal: int) -> Steps:
    """Drag the page's slider to about a value, then to it exactly by keys."""
    state = "(()=>{const o=$('#slider').slider('option');return [o.min,o.max,o.value,o.orientation]})()"
    low, high, now, lie = await s.js(state)
    flat = lie == "horizontal"
    left, top, width, height = await s.js(
        f"(()=>{{const r={first('#slider')}.getBoundingClientRect();"
        "return [r.left,r.top,r.width,r.height]})()"
    )
    if now != goal:
        share = (goal - low) / (high - low)
        handle = await s.target(first(".ui-slider-handle"))
        x = left + width * share if flat else handle.x
        y = handle.y if flat else top + height * (1 - share)
        yield drag(handle, Target(handle.box, x, y))
    for _ in range(6):
        now = (await s.js(state))[2]
        if now == goal:
            break
        yield key("Right" if now < goal else "Left")


@expert("use-slider", remembers=True)
async def use_slider(s: Screen) -> Steps:
    async for step in move_slider(s, int(search(r"Select (-?\d+) with", s.utterance))):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("drag-box", remembers=True)
async def drag_box(s: Screen) -> Steps:
    small = await s.target(first("#draggableSmall"))
    large = (await s.target(first("#draggableLarge"))).box
    dx = (large[0] + large[2]) / 2 - (small.box[0] + small.box[2]) / 2
    dy = (large[1] + large[3]) / 2 - (small.box[1] + small.box[3]) / 2
    yield drag(small, _shifted(small, dx, dy))
    yield click(await s.target(first("#subbtn")))


@expert("drag-circle", remembers=True)
async def drag_circle(s: Screen) -> Steps:
    way = search(r"Drag the circle (\w+) then", s.utterance)
    circle = await s.target(first("#area circle"))
    far = s.rng.uniform(15, 25)
    dx, dy = {"left": (-far, 0), "right": (far, 0), "up": (0, -far), "down": (0, far)}[way]
    yield drag(circle, _shifted(circle, dx, dy))
    yield click(await s.target(first("#subbtn")))


@expert("drag-items", remembers=True)
async def drag_items(s: Screen) -> Steps:
    name, where = match(r"Drag (\S+) (.*)\.", s.utterance)
    names = await s.js("pf.all('#sortable li').map((e)=>pf.clean(e.textContent))")
    at = names.index(name)
    if "top" in where:
        goal = 0
    elif "bottom" in where:
        goal = len(names) - 1
    elif "by one" in where:
        goal = at + (1 if "down" in where else -1)
    else:
        goal = int(search(r"(\d)", where)) - 1
    start = await s.target(f"pf.all('#sortable li')[{at}]")
    end = (await s.target(f"pf.all('#sortable li')[{goal}]")).box
    middle = (end[1] + end[3]) / 2 + (3 if goal > at else -3)
    yield drag(start, Target(end, start.x, middle))


@expert("choose-date", "choose-date-easy", "choose-date-medium", "choose-date-nodelay")
async def choose_date(s: Screen) -> Steps:
    month, day, year = (int(part) for part in match(r"Select (\d+)/(\d+)/(\d+) as", s.utterance))
    if await s.js(f"{first('#datepicker')}.value") != f"{month:02d}/{day:02d}/{year}":
        async for step in choose_day(s, month, day, year):
            yield step
    yield click(await s.target(first("#subbtn")))


@expert("order-food", remembers=True)
async def order_food(s: Screen) -> Steps:
    names = await s.js("pf.all('.food-item').map((e)=>e.dataset.item.trim())")
    if "one of each" in s.utterance:
        asked = search(r"each item: (.*)$", s.utterance)
        wanted = [i for i, name in enumerate(names) if name in [part.strip() for part in asked.split(",")]]
    else:
        count, kind = match(r"Order (\d+) items that are (\S+)", s.utterance)
        fits = await s.js(
            f"pf.all('.food-item').map((e,i)=>e.querySelector('img[alt={json.dumps(kind)}]')?i:-1).filter((i)=>i>=0)"
        )
        wanted = [fits[0]] * int(count)
    for i in wanted:
        knob = f"pf.all('.food-item')[{i}].querySelector('.add')"
        async for step in scroll_to(s, knob, first("#area"), 2):
            yield step
        yield click(await s.target(knob))
    submit = first("#submit-order button")
    async for step in scroll_to(s, submit, first("#area"), 2):
        yield step
    yield click(await s.target(submit))


@expert("use-autocomplete", "use-autocomplete-nodelay", remembers=True)
async def use_autocomplete(s: Screen) -> Steps:
    start, *end = quoted(s.utterance)
    async for step in fill(s, first("#tags"), start):
        yield step
    fits = f"(t)=>t.startsWith({json.dumps(start)})&&t.endsWith({json.dumps(end[0] if end else '')})"
    item = f"pf.all('.ui-menu-item').find((e)=>({fits})(pf.clean(e.textContent)))"
    async for step in until_shown(s, item):
        yield step
    yield click(await s.target(item))
    yield click(await s.target(first("#subbtn")))


@expert("resize-textarea", remembers=True)
async def resize_textarea(s: Screen) -> Steps:
    what, how = match(r"so that the (width|height) is (smaller|larger)", s.utterance)
    corner = await s.target(first(".ui-resizable-se"))
    far = s.rng.uniform(12, 20) * (1 if how == "larger" else -1)
    yield drag(corner, _shifted(corner, far if what == "width" else 0, far if what == "height" else 0))
    yield click(await s.target(first("#submit")))
