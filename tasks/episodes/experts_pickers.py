"""Experts for MiniWoB++ tasks of several kinds of care: an editor, a game, a colour picker, a calendar."""

from __future__ import annotations

import asyncio
import colorsys
import functools
import json

from pilotfish.tasks.episodes.expert_tools import (
    box_of,
    expert,
    fill,
    first,
    match,
    middle,
    point,
    scroll_to,
    search,
)
from pilotfish.tasks.episodes.pages import Screen, Target, Unreachable
from pilotfish.tasks.episodes.steps import Steps, click, drag, key


@expert("text-editor", remembers=True)
async def text_editor(s: Screen) -> Steps:
    text = first(".ql-editor")
    if "everything" in s.utterance:
        yield click(await s.target(text))
        yield key("ctrl+a")
    else:
        word = json.dumps(search(r"the text (\S+) the", s.utterance))
        x0, y0, x1, y1 = await s.js(
            f"(()=>{{const n={text}.firstChild.firstChild,r=document.createRange(),"
            f"i=(' '+n.data+' ').indexOf(' '+{word}+' ');r.setStart(n,i);r.setEnd(n,i+{word}.length);"
            "const b=r.getBoundingClientRect();return [b.left,b.top,b.right,b.bottom]})()"
        )
        yield drag(point(x0, (y0 + y1) / 2), point(x1, (y0 + y1) / 2))
    await asyncio.sleep(0.2)  # the editor takes notice of a selection after a tenth of a second
    style, colour = match(r"(style|color) (\w+)", s.utterance)
    if style == "color":
        yield click(await s.target(first(".ql-color .ql-picker-label")))
        yield click(
            await s.target(
                f"document.querySelector(`.ql-color [data-value=\"${{COLOR_MAP['{colour}'][0]}}\"]`)"
            )
        )
    else:
        yield click(
            await s.target(first({"bold": ".ql-bold", "italics": ".ql-italic"}.get(colour, ".ql-underline")))
        )
    yield click(await s.target(first("#subbtn")))


_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
Board = tuple[int, ...]  # of nine cells: 1 is ours, -1 the other's


def _completes(board: Board, side: int) -> list[int]:
    """The cells that complete a line for a side."""
    lines = [line for line in _LINES if sum(board[i] for i in line) == 2 * side]
    return [i for line in lines for i in line if not board[i]]


def _put(board: Board, cell: int, side: int) -> Board:
    return (*board[:cell], side, *board[cell + 1 :])


@functools.cache
def _chance(board: Board) -> tuple[float, int]:
    """Our chance to win when it is our turn, and the cell to take."""
    best = (-1.0, -1)
    for cell in (i for i in (4, 0, 2, 6, 8, 1, 3, 5, 7) if not board[i]):
        best = max(
            best, (_after(_put(board, cell, 1), cell in _completes(board, 1)), cell), key=lambda b: b[0]
        )
    return best


def _after(board: Board, won: bool) -> float:
    """Our chance when it is the other's turn, who plays at random in 55 of 100, else to win or to block."""
    free = [i for i in range(9) if not board[i]]
    if won or not free:
        return float(won)
    ends = _completes(board, -1)

    def then(cell: int) -> float:
        after = _put(board, cell, -1)
        return 0.0 if cell in ends or 0 not in after else _chance(after)[0]

    at_random = sum(map(then, free)) / len(free)
    clever = ends or _completes(board, 1)
    return 0.55 * at_random + 0.45 * (then(clever[-1]) if clever else at_random)


@expert("tic-tac-toe")
async def tic_tac_toe(s: Screen) -> Steps:
    for _ in range(5):
        if await s.js("WOB_DONE_GLOBAL"):
            return
        yield click(await s.target(first(f"#ttt-{_chance(tuple(await s.js('gameState')))[1]}")))


@expert("use-colorwheel", "use-colorwheel-2", remembers=True)
async def use_colorwheel(s: Screen) -> Steps:
    if "following" in s.utterance:
        rgb = await s.js(
            f"getComputedStyle({first('#query .cc')}).backgroundColor.match(/\\d+/g).map(Number)"
        )
    else:
        name = json.dumps(search(r"Select (.+) with the color", s.utterance))
        rgb = await s.js(
            f"(()=>{{const c=ui_utils.hexToRgb(ui_utils.colorNameToHex({name}));return [c.r,c.g,c.b]}})()"
        )
    hue, saturation, value = colorsys.rgb_to_hsv(*(part / 255 for part in rgb))
    yield click(await s.target(first("#col")))
    canvas = "document.body.lastElementChild.querySelectorAll('canvas')"
    x0, y0, x1, y1 = await box_of(s, f"{canvas}[0]")
    yield click(point(x0 + (x1 - x0) * (0.02 + 0.96 * hue), y1 - (y1 - y0) * (0.02 + 0.96 * saturation)))
    x0, y0, x1, y1 = await box_of(s, f"{canvas}[1]")
    yield click(point((x0 + x1) / 2, y1 - (y1 - y0) * (0.02 + 0.96 * value)))
    yield click(point(84, 202))  # outside the picker, which closes it and shows what it covers
    yield click(await s.target(first("#subbtn")))


@expert("daily-calendar", remembers=True)
async def daily_calendar(s: Screen) -> Steps:
    length, unit, name, hour, half = match(
        r'Create a (\S+) (\w+) event named "(.*)", between (\d+)(AM|PM) and', s.utterance
    )
    cells = round(float(length) * (2 if unit.startswith("hour") else 1 / 30))
    begin = 2 * (int(hour) % 12 + (12 if half == "PM" else 0))
    taken = await s.js(
        f"[...Array({8 - cells + 1}).keys()].map((k)=>[...Array({cells}).keys()].some((j)=>{{"
        f"const c=document.getElementById('hh-'+({begin}+k+j)).getBoundingClientRect();"
        "return pf.all('.event').map((e)=>e.getBoundingClientRect())"
        ".some((r)=>r.top<c.bottom-1&&r.bottom>c.top+1)}))"
    )
    if False not in taken:
        raise Unreachable("no part of the day is free")
    start = begin + taken.index(False)
    cell, last = (f"document.getElementById('hh-{i}')" for i in (start, start + cells - 1))
    for target, amount in ((last, 2), (cell, 1)):
        async for step in scroll_to(s, target, first("#area"), amount):
            yield step
    top, bottom = middle(await s.target(cell)), middle(await s.target(last))
    yield drag(Target(top.box, top.x, top.y - 4), Target(bottom.box, bottom.x, bottom.y + 4))
    async for step in scroll_to(s, first("#controls .create"), first("#area")):
        yield step
    async for step in fill(s, first("#event-name"), name):
        yield step
    yield click(await s.target(first("#controls .create")))
