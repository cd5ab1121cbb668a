"""Scripted experts for MiniWoB++ tasks: they read the document and act with mouse and keyboard only.

An expert is an async generator of `Step`s over a `Screen`; it looks again after every step, so it goes on
correctly after a deliberate slip. `EXPERTS` maps task names to experts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pilotfish.tasks.episodes.pages import Screen, Unreachable
from pilotfish.tasks.episodes.steps import Expert, Step, Steps, click, key, scroll, type_text

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


def _search(pattern: str, text: str) -> str:
    return _match(pattern, text)[0]


def _match(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text)
    if found is None:
        raise Unreachable(f"no {pattern!r} in {text!r}")
    return tuple(found.groups())


@expert("click-test")
async def click_test(s: Screen) -> Steps:
    yield click(await s.target(first("#subbtn")))


@expert("click-test-2")
async def click_test_2(s: Screen) -> Steps:
    yield click(await s.target(find("#area button", "ONE")))


@expert("click-button")
async def click_button(s: Screen) -> Steps:
    yield click(await s.target(find("#area button", quoted(s.utterance)[0])))


@expert("click-link")
async def click_link(s: Screen) -> Steps:
    yield click(await s.target(find("#area .alink", quoted(s.utterance)[0])))


@expert("click-dialog")
async def click_dialog(s: Screen) -> Steps:
    yield click(await s.target(first(".ui-dialog-titlebar-close")))


@expert("focus-text")
async def focus_text(s: Screen) -> Steps:
    yield click(await s.target(first("#tt")))


@expert("click-tab")
async def click_tab(s: Screen) -> Steps:
    yield click(await s.target(find("#area li a", _search(r"(Tab #\d)", s.utterance))))


@expert("enter-text")
async def enter_text(s: Screen) -> Steps:
    yield click(await s.target(first("#tt")))
    yield type_text(quoted(s.utterance)[0])
    yield click(await s.target(first("#subbtn")))


@expert("focus-text-2")
async def focus_text_2(s: Screen) -> Steps:
    number = _search(r"(\d)(?:st|nd|rd|th) input", s.utterance)
    yield click(await s.target(first(f"#tt{number}")))


@expert("enter-text-dynamic")
async def enter_text_dynamic(s: Screen) -> Steps:
    async for step in enter_text(s):
        yield step


@expert("enter-password")
async def enter_password(s: Screen) -> Steps:
    password = quoted(s.utterance)[0]
    for field in ("#password", "#verify"):
        yield click(await s.target(first(field)))
        yield type_text(password)
    yield click(await s.target(first("#subbtn")))


@expert("login-user")
async def login_user(s: Screen) -> Steps:
    user, password = quoted(s.utterance)[:2]
    yield click(await s.target(first("#username")))
    yield type_text(user)
    yield click(await s.target(first("#password")))
    yield type_text(password)
    yield click(await s.target(first("#subbtn")))


@expert("click-checkboxes", "click-checkboxes-large", "click-option")
async def click_boxes(s: Screen) -> Steps:
    wanted = _search(r"Select (.*) and click", s.utterance).split(", ")
    for text in wanted:
        if text != "nothing":
            label = find("#area label", text)
            if not await s.js(f"{label}.querySelector('input').checked"):
                yield click(await s.target(f"{label}.querySelector('input')"))
    yield click(await s.target(first("#subbtn")))


@expert("click-checkboxes-soft")
async def click_checkboxes_soft(s: Screen) -> Steps:
    asked = _search(r"similar to (.*) and click", s.utterance).split(", ")
    groups = f"SYNONYMS.filter((g)=>{json.dumps(asked)}.some((w)=>g.includes(w))).flat()"
    wanted = await s.js(
        f"pf.all('#area label').map((l)=>pf.clean(l.textContent)).filter((t)=>{groups}.includes(t))"
    )
    for text in wanted:
        yield click(await s.target(f"{find('#area label', text)}.querySelector('input')"))
    yield click(await s.target(first("#subbtn")))


@expert("click-button-sequence")
async def click_button_sequence(s: Screen) -> Steps:
    for text in ("ONE", "TWO"):
        yield click(await s.target(find("#area button", text)))


@expert("click-widget")
async def click_widget(s: Screen) -> Steps:
    yield click(await s.target(first(f'[data-type="{quoted(s.utterance)[0]}"]')))


@expert("unicode-test")
async def unicode_test(s: Screen) -> Steps:
    text = quoted(s.utterance)[0]
    if any(ord(c) > 0x2FFF for c in text):
        raise Unreachable("no font here shows these characters")
    yield click(await s.target(find("#area button", text)))


@expert("grid-coordinate")
async def grid_coordinate(s: Screen) -> Steps:
    place = _search(r"(\(-?\d,-?\d\))", s.utterance)
    yield click(await s.target(f"document.getElementById({json.dumps(place)})"))


@expert("identify-shape")
async def identify_shape(s: Screen) -> Steps:
    kind = await s.js(
        "(()=>{const e=document.querySelector('#area_svg').firstElementChild;"
        "return {rect:'rectangle',circle:'circle',polygon:'triangle'}[e.tagName]"
        "||(/[0-9]/.test(e.textContent)?'digit':'letter')})()"
    )
    yield click(await s.target(first(f'[data-type="{kind}"]')))


@expert("click-shape")
async def click_shape(s: Screen) -> Steps:
    yield click(await s.target("pf.matches.find(([,fits])=>fits)[0].svg_shape.node()"))


@expert("count-shape")
async def count_shape(s: Screen) -> Steps:
    count = await s.js("pf.matches.filter(([,fits])=>fits).length")
    yield click(await s.target(find("#count-buttons button", str(count))))


@expert("click-collapsible")
async def click_collapsible(s: Screen) -> Steps:
    yield click(await s.target(first("#area h3")))
    yield click(await s.target(first("#subbtn")))


@expert("click-tab-2-easy")
async def click_tab_2_easy(s: Screen) -> Steps:
    async for step in click_link(s):
        yield step


@expert("navigate-tree")
async def navigate_tree(s: Screen) -> Steps:
    name = quoted(s.utterance)[0]
    for _ in range(6):
        # Open the outermost closed folder on the way to the wanted item, until that is visible.
        following = await s.js(
            f"(()=>{{const goal=pf.byText('#tree span',{json.dumps(name)});const shown=goal.find(pf.shown);"
            "if(shown)return [0,pf.all('#tree span').indexOf(shown)];if(!goal.length)return null;"
            "const way=[];for(let "
            "e=goal[0].closest('ul').closest('li');e;e=e.parentElement.closest('li'))way.unshift(e);"
            "const shut=way.find((e)=>e.classList.contains('expandable'));"
            "return shut?[1,pf.all('#tree span').indexOf(shut.querySelector('span'))]:null})()"
        )
        if following is None:
            raise Unreachable(name)
        yield click(await s.target(f"pf.all('#tree span')[{following[1]}]"))
        if following[0] == 0:
            return


@expert("search-engine")
async def search_engine(s: Screen) -> Steps:
    rank = int(_search(r"the (\d)(?:st|nd|rd|th)", s.utterance)) - 1
    yield click(await s.target(first("#search-text")))
    yield type_text(quoted(s.utterance)[0])
    yield click(await s.target(first("#search")))
    if rank >= 3:
        yield click(await s.target(find("#pagination a", str(rank // 3 + 1))))
    yield click(await s.target(f"pf.all('#page-content a')[{rank % 3}]"))


@expert("use-autocomplete-nodelay")
async def use_autocomplete(s: Screen) -> Steps:
    start, *end = quoted(s.utterance)
    yield click(await s.target(first("#tags")))
    yield type_text(start)
    fits = f"(t)=>t.startsWith({json.dumps(start)})&&t.endsWith({json.dumps(end[0] if end else '')})"
    item = f"pf.all('.ui-menu-item').find((e)=>({fits})(pf.clean(e.textContent)))"
    yield click(await s.target(item))
    yield click(await s.target(first("#subbtn")))


@expert("read-table")
async def read_table(s: Screen) -> Steps:
    name = _search(r"value of (.*) into", s.utterance)
    value = await s.js(f"{find('#tab td:first-child', name)}.nextElementSibling.textContent")
    yield click(await s.target(first("#tt")))
    yield type_text(value)
    yield click(await s.target(first("#subbtn")))


@expert("simple-arithmetic")
async def simple_arithmetic(s: Screen) -> Steps:
    problem = await s.js("document.querySelector('#math-problem').textContent")
    left, sign, right = _match(r"(\d+) ([-+x]) (\d+) =", problem)
    a, b = int(left), int(right)
    yield click(await s.target(first("#math-answer")))
    yield type_text(str({"+": a + b, "-": a - b, "x": a * b}[sign]))
    yield click(await s.target(first("#subbtn")))


@expert("choose-list")
async def choose_list(s: Screen) -> Steps:
    # Keyboard only: an open list is a window of its own, which cannot be drawn frame by frame.
    yield key("Tab")
    yield type_text(_search(r"Select (.*) from the list", s.utterance))
    yield click(await s.target(first("#area button")))


@expert("click-scroll-list")
async def click_scroll_list(s: Screen) -> Steps:
    wanted = _search(r"Select (.*) from the scroll", s.utterance).split(", ")
    for i, text in enumerate(wanted):
        option = find("#options option", text)
        for _ in range(6):
            offset = await s.js(f"pf.beyond({option},{first('#options')})")
            if not offset:
                break
            yield scroll(await s.target(first("#options")), "down" if offset > 0 else "up", 1)
        step = click(await s.target(option))
        yield step if i == 0 else Step({**step.action, "text": "ctrl"}, step.box)
    yield click(await s.target(first("#area button")))
