"""What experts share: the registry, how elements are named, how instructions are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pilotfish.tasks.episodes.pages import Screen, Unreachable
from pilotfish.tasks.episodes.steps import Expert, Steps, scroll

EXPERTS: dict[str, Expert] = {}


def expert(*tasks: str) -> Callable[[Expert], Expert]:
    """Register the decorated function as the expert of these tasks."""

    def register(function: Expert) -> Expert:
        for task in tasks:
            EXPERTS[task] = function
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


async def scroll_to(s: Screen, target: str, frame: str) -> Steps:
    """Turn the wheel over a scrolling box, one click at a time, until an element in it is shown whole."""
    for _ in range(16):
        where = await s.js(f"pf.beyond({target},{frame})")
        if not where:
            return
        yield scroll(await s.target(frame), "down" if where > 0 else "up", 1)
    raise Unreachable(f"scrolling does not show {target}")
