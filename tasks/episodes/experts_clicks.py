"""Experts for MiniWoB++ tasks of clicking and simple typing."""

from __future__ import annotations

import json

from pilotfish.tasks.episodes.expert_tools import (
    expert,
    fill,
    find,
    first,
    match,
    quoted,
    scroll_to,
    search,
)
from pilotfish.tasks.episodes.pages import Screen, Unreachable
from pilotfish.tasks.episodes.steps import Step, Steps, click, key, type_text


@expert("click-test")
async def click_test(s: Screen) -> Steps:
    yield click(await s.target(first("#subbtn")))


@expert("click-test-2")
async def click_test_2(s: Screen) -> Steps:
    yield click(await s.target(find("#area button", "ONE")))


@expert("click-button")
async def click_button(s: Screen) -> Steps:
    yield click(await s.target(find("#area button", quoted(s.utterance)[0])))


@expert("click-link", "click-tab-2-easy")
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
    yield click(await s.target(find("#area li a", search(r"(Tab #\d)", s.utterance))))


@expert("enter-text", "enter-text-dynamic")
async def enter_text(s: Screen) -> Steps:
    async for step in fill(s, first("#tt"), quoted(s.utterance)[0]):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("focus-text-2")
async def focus_text_2(s: Screen) -> Steps:
    number = search(r"(\d)(?:st|nd|rd|th) input", s.utterance)
    yield click(await s.target(first(f"#tt{number}")))


@expert("enter-password")
async def enter_password(s: Screen) -> Steps:
    password = quoted(s.utterance)[0]
    for field in ("#password", "#verify"):
        async for step in fill(s, first(field), password):
            yield step
    yield click(await s.target(first("#subbtn")))


@expert("login-user")
async def login_user(s: Screen) -> Steps:
    user, password = quoted(s.utterance)[:2]
    async for step in fill(s, first("#username"), user):
        yield step
    async for step in fill(s, first("#password"), password):
        yield step
    yield click(await s.target(first("#subbtn")))


async def _tick(s: Screen, wanted: list[str]) -> Steps:
    """Tick the boxes with these labels, and no other."""
    named = (
        f"{json.dumps(wanted)}.map((t)=>pf.byText('#area label',t)[0]?.querySelector('input')).filter((i)=>i)"
    )
    stray = "pf.all('#area input[type=checkbox]').filter((i)=>i.checked&&!named.includes(i))"
    wrong = f"((named)=>[...named.filter((i)=>!i.checked),...{stray}])({named})"
    while await s.js(f"{wrong}.length"):
        yield click(await s.target(f"{wrong}[0]"))


@expert("click-checkboxes", "click-checkboxes-large", "click-option")
async def click_boxes(s: Screen) -> Steps:
    wanted = search(r"Select (.*) and click", s.utterance).split(", ")
    async for step in _tick(s, wanted):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("click-checkboxes-soft")
async def click_checkboxes_soft(s: Screen) -> Steps:
    asked = search(r"similar to (.*) and click", s.utterance).split(", ")
    groups = f"SYNONYMS.filter((g)=>{json.dumps(asked)}.some((w)=>g.includes(w))).flat()"
    wanted = await s.js(
        f"pf.all('#area label').map((l)=>pf.clean(l.textContent)).filter((t)=>{groups}.includes(t))"
    )
    async for step in _tick(s, wanted):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("click-button-sequence", remembers=True)
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
    place = search(r"(\(-?\d,-?\d\))", s.utterance)
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


@expert("navigate-tree")
async def navigate_tree(s: Screen) -> Steps:
    # Folders are opened from the top until the name is seen, as someone would who does not know the tree.
    name = json.dumps(quoted(s.utterance)[0])
    spans = "pf.all('#tree span')"
    for _ in range(16):
        goal = await s.js(f"{spans}.findIndex((e)=>pf.clean(e.textContent)==={name}&&pf.shown(e))")
        if goal >= 0:
            yield click(await s.target(f"{spans}[{goal}]"))
            return
        shut = "pf.all('#tree .expandable>span').find(pf.shown)"
        yield click(await s.target(shut))


@expert("search-engine", remembers=True)
async def search_engine(s: Screen) -> Steps:
    rank = int(search(r"the (\d)(?:st|nd|rd|th)", s.utterance)) - 1
    async for step in fill(s, first("#search-text"), quoted(s.utterance)[0]):
        yield step
    yield click(await s.target(first("#search")))
    if rank >= 3:
        yield click(await s.target(find("#pagination a", str(rank // 3 + 1))))
    yield click(await s.target(f"pf.all('#page-content a')[{rank % 3}]"))


@expert("read-table")
async def read_table(s: Screen) -> Steps:
    name = search(r"value of (.*) into", s.utterance)
    value = await s.js(f"{find('#tab td:first-child', name)}.nextElementSibling.textContent")
    async for step in fill(s, first("#tt"), value):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("simple-arithmetic")
async def simple_arithmetic(s: Screen) -> Steps:
    problem = await s.js("document.querySelector('#math-problem').textContent")
    left, sign, right = match(r"(\d+) ([-+x]) (\d+) =", problem)
    a, b = int(left), int(right)
    async for step in fill(s, first("#math-answer"), str({"+": a + b, "-": a - b, "x": a * b}[sign])):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("choose-list", remembers=True)
async def choose_list(s: Screen) -> Steps:
    # Keyboard only: an open list is a window of its own, which cannot be drawn frame by frame.
    yield key("Tab")
    yield type_text(search(r"Select (.*) from the list", s.utterance))
    yield click(await s.target(first("#area button")))


@expert("click-scroll-list", remembers=True)
async def click_scroll_list(s: Screen) -> Steps:
    wanted = search(r"Select (.*) from the scroll", s.utterance).split(", ")
    for i, text in enumerate(wanted):
        option = find("#options option", text)
        async for turn in scroll_to(s, option, first("#options")):
            yield turn
        step = click(await s.target(option))
        yield step if i == 0 else Step({**step.action, "text": "ctrl"}, step.box)
    yield click(await s.target(first("#area button")))
