"""What experts share: the registry, how elements are named, how instructions are read."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable

from pilotfish.tasks.episodes.pages import Box, Screen, Target, Unreachable
from pilotfish.tasks.episodes.steps import Expert, Steps, click, key, scroll, type_text, wait

EXPERTS: dict[str, Expert] = {}
REMEMBERING: set[str] = set()
"""Tasks whose experts know more of what they have done than the page shows."""


def expert(*tasks: str, remembers: bool = False) -> Callable[[Expert], Expert]:
    """Register the decorated function as the expert of these tasks.

    remembers: it must not be asked anew in the midst of a task, because it would do again what is done.
    """

    def register(function: Expert) -> Expert:
        for task in tasks:
            EXPERTS[task] = function
            if remembers:
                REMEMBERING.add(task)
        return function

    return register


def quoted(text: str) -> list[str]:
    """The parts of an instruction between double quotes; `Unreachable` when there is none."""
    parts = re.findall(r'"([^"]*)"', text)
    if not parts:
        raise Unreachable(f"nothing quoted in {text!r}")
    return parts


def find(css: str, text: str) -> str:
    """JavaScript for the first element of `css` whose whole text is `text`."""
    return f"pf.byText({json.dumps(css)},{json.dumps(text)})[0]"


def first(css: str) -> str:
    """JavaScript for the first element of `css`."""
    return f"document.querySelector({json.dumps(css)})"


def search(pattern: str, text: str) -> str:
    """The first group of a pattern in a text; `Unreachable` when it is not there."""
    return match(pattern, text)[0]


def match(pattern: str, text: str) -> tuple[str, ...]:
    """All groups of a pattern in a text; `Unreachable` when it is not there."""
    found = re.search(pattern, text)
    if found is None:
        raise Unreachable(f"no {pattern!r} in {text!r}")
    return tuple(found.groups())


async def box_of(s: Screen, element: str) -> Box:
    """Where an element lies, whether it is covered or not."""
    x0, y0, x1, y1 = await s.js(
        f"(()=>{{const r={element}.getBoundingClientRect();return [r.left,r.top,r.right,r.bottom]}})()"
    )
    return x0, y0, x1, y1


def point(x: float, y: float) -> Target:
    """A place in CSS pixels where no element of its own lies."""
    return Target((x - 2, y - 2, x + 2, y + 2), x, y)


def middle(target: Target) -> Target:
    """The same target with its point in the middle of its box, where a drag is to begin or end."""
    x0, y0, x1, y1 = target.box
    return Target(target.box, (x0 + x1) / 2, (y0 + y1) / 2, target.view)


async def fill(s: Screen, field: str, text: str) -> Steps:
    """Make a text field hold a text, whatever it holds and wherever the focus is; nothing where it does."""
    for _ in range(8):
        value, focused, selected = await s.js(f"pf.field({field})")
        if value == text:
            return
        if not focused:
            yield click(await s.target(field))
        elif value and not selected:
            yield key("ctrl+a")
        else:
            yield type_text(text) if text else key("BackSpace")
    raise Unreachable(f"{field} does not take {text!r}")


async def until_shown(s: Screen, item: str) -> Steps:
    """Wait for an element that comes by itself, as long as it may take."""
    for _ in range(4):
        if await s.js(f"pf.shown({item})"):
            return
        yield wait(1)


async def choose_day(s: Screen, month: int, day: int, year: int) -> Steps:
    """Choose a day in the calendar that a click on `#datepicker` opens."""
    if not await s.js("pf.shown(document.querySelector('.ui-datepicker'))"):
        yield click(await s.target(first("#datepicker")))
    for _ in range(16):
        await asyncio.sleep(0.05)  # the page moves the calendar to its place behind the click
        shown = await s.js(
            f"(()=>{{const d={first('td[data-month]')};return d&&[+d.dataset.year,+d.dataset.month+1]}})()"
        )
        if shown == [year, month]:
            yield click(await s.target(f"pf.byText('.ui-datepicker-calendar td a','{day}')[0]"))
            return
        if shown is not None:
            way = "prev" if shown > [year, month] else "next"
            yield click(await s.target(first(f".ui-datepicker-{way}")))
    raise Unreachable(f"the calendar does not come to {month}/{year}")


async def scroll_to(s: Screen, target: str, frame: str, amount: int = 1) -> Steps:
    """Turn the wheel over a scrolling box, `amount` clicks at a time, until an element is shown."""
    begun = 0
    for _ in range(16):
        where = await s.js(f"pf.beyond({target},{frame})")
        if not where:
            return
        begun = begun or where
        if where != begun:  # too far
            amount = 1
        yield scroll(await s.target(frame), "down" if where > 0 else "up", amount)
    raise Unreachable(f"scrolling does not show {target}")
