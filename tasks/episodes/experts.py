"""Scripted experts for MiniWoB++ tasks: they read the document and act with mouse and keyboard only.

An expert is an async generator of `Step`s over a `Screen`; it looks again after every step, so it goes on correctly
after a deliberate slip. `EXPERTS` maps task names to experts.
"""

from __future__ import annotations

import json
import re

from pilotfish.tasks.episodes.pages import Screen, Unreachable
from pilotfish.tasks.episodes.steps import Expert, Steps, click, type_text

EXPERTS: dict[str, Expert] = {}


def _expert(*tasks: str):  # type: ignore[no-untyped-def]
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


@_expert("click-test")
async def click_test(s: Screen) -> Steps:
    yield click(await s.target(first("#subbtn")))


@_expert("click-test-2")
async def click_test_2(s: Screen) -> Steps:
    yield click(await s.target(find("#area button", "ONE")))


@_expert("click-button")
async def click_button(s: Screen) -> Steps:
    yield click(await s.target(find("#area button", quoted(s.utterance)[0])))


@_expert("click-link")
async def click_link(s: Screen) -> Steps:
    yield click(await s.target(find("#area .alink", quoted(s.utterance)[0])))


@_expert("click-dialog")
async def click_dialog(s: Screen) -> Steps:
    yield click(await s.target(first(".ui-dialog-titlebar-close")))


@_expert("focus-text")
async def focus_text(s: Screen) -> Steps:
    yield click(await s.target(first("#tt")))


@_expert("click-tab")
async def click_tab(s: Screen) -> Steps:
    match = re.search(r"Tab #\d", s.utterance)
    if match is None:
        raise Unreachable(s.utterance)
    yield click(await s.target(find("#area li a", match[0])))


@_expert("enter-text")
async def enter_text(s: Screen) -> Steps:
    yield click(await s.target(first("#tt")))
    yield type_text(quoted(s.utterance)[0])
    yield click(await s.target(first("#subbtn")))
