"""Pages that look like applications: a theme, a layout of their own, and ends that say little.

Unlike the pages of procedural.py they answer as applications do, with a word beside the button whatever was
entered, so that a model has to know by itself when its task is done. `judge` in their scripts says whether
the last thing done reached the goal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.pages import Screen
from pilotfish.tasks.episodes.procedural import Scene
from pilotfish.tasks.episodes.stages import FONTS
from pilotfish.tasks.episodes.steps import Expert, Steps, click, done
from pilotfish.tasks.episodes.widgets import Draft, element, escape, palette

RUNTIME = """
window.__pfGoal = false;
const $ = (id) => document.getElementById(id);
const judge = (ok) => { window.__pfGoal = !!ok; };
const say = (text) => { $('say').textContent = text; };
const show = (id, on) => $(id).classList.toggle('hide', !on);
"""


@dataclass(frozen=True)
class Theme:
    """Colours, letters (CSS pixels) and shapes of a page."""

    back: str
    ink: str
    panel: str
    line: str
    bar: str
    on_bar: str
    accent: str
    on_accent: str
    font: str
    size: int
    radius: int
    height: int


def theme(rng: random.Random, sizes: Sequence[int] = (10, 11, 11, 12, 13)) -> Theme:
    """A random one, a third of them dark."""
    dark = rng.random() < 0.35
    if dark:
        hue = rng.randrange(360)
        back, panel, ink = f"hsl({hue},25%,15%)", f"hsl({hue},25%,22%)", f"hsl({hue},20%,92%)"
        line = f"hsl({hue},20%,40%)"
    else:
        back = rng.choice(("#fff", "#fff", "#fafafa", palette(rng, dark=False)[0]))
        panel, ink, line = (
            "#fff",
            rng.choice(("#111", "#222", "#333", "#1b2a3a")),
            rng.choice(("#999", "#bbb")),
        )
    bar, on_bar = palette(rng, dark=rng.random() < 0.5)
    accent, on_accent = palette(rng, dark=rng.random() < 0.75)
    radius, height = rng.choice((0, 2, 4, 4, 8, 14)), rng.randint(20, 28)
    size = rng.choice(sizes)
    return Theme(
        back, ink, panel, line, bar, on_bar, accent, on_accent, rng.choice(FONTS), size, radius, height
    )


@dataclass
class Site(Draft):
    """A page of an application being written; widgets are given as their id and their HTML."""

    theme: Theme = field(init=False)
    labels: str = field(init=False)
    make: str = field(init=False)

    def __post_init__(self) -> None:
        rng = self.rng
        self.theme = theme(rng)
        self.labels = rng.choice(("above", "inside", "beside"))
        self.make = rng.choice(("native", "native", "filled", "outlined"))

    def title(self, text: str) -> None:
        """A heading, now and then as a bar over the whole width."""
        t, rng = self.theme, self.rng
        if rng.random() < 0.4:
            look = (
                f"margin:-8px -12px 8px;padding:6px 12px;background:{t.bar};color:{t.on_bar};font-weight:bold"
            )
        else:
            look = f"margin:0 0 6px;font-size:{t.size + rng.randint(0, 3)}px"
        self.add(f'<div style="{look}">{escape(text)}</div>')

    def button(self, text: str, width: str = "", *, mark: str = "") -> tuple[str, str]:
        """A push button; `width` is CSS, `mark` its name where the text is a sign."""
        t, name = self.theme, self.new_id()
        look = f"height:{t.height}px;font:inherit;padding:0 5px;{f'width:{width};' if width else ''}"
        if self.make != "native":
            look += f"border-radius:{t.radius}px;"
        if self.make == "filled":
            look += f"background:{t.accent};color:{t.on_accent};border:0;"
        elif self.make == "outlined":
            look += f"background:{t.panel};color:{t.ink};border:1px solid {t.line};"
        said = f' data-name="{escape(mark)}"' if mark else ""
        return name, f'<button id="{name}"{said} style="{look}">{escape(text)}</button>'

    def field(self, text: str, value: str = "", kind: str = "text") -> tuple[str, str]:
        """A text field with its label where this page has them."""
        t, name = self.theme, self.new_id()
        inside = self.labels == "inside" and not value
        beside = self.labels == "beside"
        look = (
            f"box-sizing:border-box;width:{80 if beside else 140}px;height:{t.height - 2}px;font:inherit;"
            f"padding:0 5px;border:1px solid {t.line};border-radius:{min(t.radius, 8)}px;"
            f"background:{t.panel};color:inherit"
        )
        hint = f' placeholder="{escape(text)}"' if inside else ""
        box = (
            f'<input type="{kind}" id="{name}"{hint} data-name="{escape(text)}" value="{escape(value)}" '
            f'autocomplete="off" style="{look}">'
        )
        if inside:
            return name, f'<div style="margin-bottom:6px">{box}</div>'
        if beside:
            row = "display:flex;justify-content:space-between;align-items:center;margin-bottom:5px"
            return name, f'<div style="{row}"><label for="{name}">{escape(text)}</label>{box}</div>'
        return name, f'<div style="margin-bottom:5px"><label for="{name}">{escape(text)}</label>{box}</div>'

    def option(self, text: str, kind: str, group: str, *, on: bool = False) -> tuple[str, str]:
        """A checkbox or radio button with its label behind it."""
        t, name = self.theme, self.new_id()
        state = " checked" if on else ""
        return name, (
            f'<label style="display:block;min-height:{max(t.height - 4, t.size + 7)}px">'
            f'<input type="{kind}" id="{name}" name="{group}"{state} style="vertical-align:middle;'
            f'margin:0 6px 0 0;width:{t.size + 3}px;height:{t.size + 3}px">{escape(text)}</label>'
        )

    def answer(self) -> str:
        """Where the page says its word."""
        rng = self.rng
        colour = rng.choice((self.theme.ink, self.theme.ink, "#2a8a2a", "#d8604a"))
        return f'<span id="say" style="margin-left:{rng.randint(0, 8)}px;color:{colour}"></span>'

    def document(self) -> str:
        """The whole page."""
        t = self.theme
        css = (
            f"html{{background:{t.back}}}body{{margin:0;position:relative;box-sizing:border-box;width:168px;"
            f"height:210px;overflow:hidden;padding:8px 12px;background:{t.back};color:{t.ink};"
            f'font:{t.size}px "{t.font}",sans-serif}}p{{margin:4px 0}}.hide{{display:none!important}}'
            f"a{{color:inherit}}td{{padding:2px 3px 2px 0}}.on{{background:{t.accent}!important;"
            f"color:{t.on_accent}!important}}.past{{text-decoration:line-through;opacity:.6}}"
        )
        script = RUNTIME + "\n".join(self.script)
        return (
            f'<!doctype html><meta charset="utf-8"><style>{css}</style><body>{"".join(self.blocks)}'
            f"<script>(()=>{{{script}}})()</script>"
        )


def publish(
    task: str, seed: int, site: Site, instruction: str, expert: Expert, *, remembers: bool = False
) -> Scene:
    """The scene of a finished page."""
    return Scene(task, seed, instruction, site.document(), unless_done(expert), site.needed, remembers)


def unless_done(expert: Expert) -> Expert:
    """An expert that looks first whether the goal is reached: it may be asked anew at any time."""

    async def look(s: Screen) -> Steps:
        if await s.js("window.__pfGoal"):
            yield done()
            return
        async for step in expert(s):
            yield step

    return look


def demands(rng: random.Random, parts: Sequence[str]) -> str:
    """Several things to do in one instruction, in their order."""
    parts = [part[:1].lower() + part[1:] for part in parts]
    if len(parts) == 1:
        text = parts[0]
    else:
        *firsts, last = parts
        match rng.randrange(4):
            case 0:
                text = f"{', '.join(firsts)}, and {last}"
            case 1:
                text = f"{', '.join(firsts)} and {last}"
            case 2:
                text = f"first {', then '.join(firsts)}, then {last}"
            case _:
                text = f"{', '.join(firsts)}, then {last}"
    if rng.random() < 0.07:
        text = "please " + text
    return text[:1].upper() + text[1:] + ("" if rng.random() < 0.08 else ".")


def plain(rng: random.Random, text: str) -> str:
    """How an instruction names what the screen calls `text`: in quotes, as it is, or in small letters."""
    return rng.choice((f'"{text}"', f'"{text}"', text, text.lower() if text.istitle() else text))


def some(rng: random.Random, known: Sequence[str], count: int, most: int = 2) -> list[str]:
    """Different labels, mostly from a list of likely ones."""
    found = {text.lower(): text for text in rng.sample(list(known), min(count, len(known)))}
    if rng.random() < 0.3:
        found = {text.lower(): text for text in words.distinct_labels(count, rng, most)}
    while len(found) < count:
        text = words.label(rng, most)
        found.setdefault(text.lower(), text)
    return list(found.values())[:count]


def person(rng: random.Random) -> str:
    """A first name and a family name."""
    return f"{rng.choice(words.NAMES)} {words.word(rng).capitalize()}"


def equal(state: dict[str, bool | str]) -> str:
    """JavaScript: whether boxes are ticked and fields filled as told."""
    return (
        f"Object.entries({json.dumps(state)}).every(([id, v]) => "
        "typeof v === 'boolean' ? $(id).checked === v : ($(id).value ?? $(id).textContent) === v)"
    )


async def click_if(s: Screen, name: str, condition: str) -> Steps:
    """Click an element if a condition, in which it is called `e`, holds."""
    if await s.js(f"(()=>{{const e={element(name)};return {condition}}})()"):
        yield click(await s.target(element(name)))
