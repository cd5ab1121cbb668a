"""Procedural tasks about relations, colours, amounts and things out of sight."""

from __future__ import annotations

import json
import random

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.expert_tools import scroll_to
from pilotfish.tasks.episodes.pages import Screen
from pilotfish.tasks.episodes.procedural import Scene, compose
from pilotfish.tasks.episodes.steps import Steps, click, done
from pilotfish.tasks.episodes.widgets import Draft, button, element, escape, heading, reach

COLOURS = {
    "red": "#e00",
    "green": "#0a0",
    "blue": "#00e",
    "yellow": "#ee0",
    "black": "#000",
    "white": "#fff",
    "orange": "#f80",
    "pink": "#f9b",
    "purple": "#808",
    "grey": "#888",
    "brown": "#840",
    "cyan": "#0dd",
    "magenta": "#f0f",
}
SHAPES = {
    "square": '<rect x="3" y="3" width="18" height="18" fill="{0}" stroke="#777"/>',
    "circle": '<circle cx="12" cy="12" r="10" fill="{0}" stroke="#777"/>',
    "triangle": '<polygon points="12,2 22,21 2,21" fill="{0}" stroke="#777"/>',
}


def row_action_scene(rng: random.Random, seed: int) -> Scene:
    """Press the knob that belongs to a named row."""
    draft = Draft(rng)
    count = rng.randint(2, 6)
    texts = words.distinct_labels(count, rng, 2)
    verb, knobs = rng.choice(
        [
            ("Delete", ("×", "X", "Delete")),
            ("Edit", ("✎", "Edit")),
            ("Add", ("+", "Add")),
            ("Open", ("Open", "▸")),
            ("Like", ("♥", "Like")),
            ("Star", ("☆", "★")),
            ("Reply to", ("Reply", "↩")),
        ]
    )
    knob = rng.choice(knobs)
    at = rng.randrange(count)
    names = [draft.new_id() for _ in texts]
    side = rng.choice(["float:right", "float:right", "float:left;margin-right:4px", ""])
    made = rng.choice(["button", "span"])
    line = rng.choice(["border-bottom:1px solid #ccc;", ""])
    height = rng.randint(16, 24)
    for name, text in zip(names, texts, strict=True):
        look = f"{side};cursor:pointer;" + ("padding:0 3px" if made == "span" else "padding:0 4px")
        draft.add(
            f'<div style="min-height:{height}px;{line}"><{made} id="{name}" data-pf="button" '
            f'data-name="{verb} {escape(text)}" style="{look}">{knob}</{made}> {escape(text)}</div>'
        )
    goal = names[at]
    draft.on(goal, "event.target.parentElement.remove();" + reach(rng) if verb == "Delete" else reach(rng))
    draft.needed.append(goal)
    instruction = rng.choice(
        ['{v} "{t}".', "{v} {t}.", 'Click "{k}" for "{t}".', 'Press the {k} beside "{t}".']
    )
    instruction = instruction.format(v=verb, t=texts[at], k=knob)

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(element(goal)))
        yield done()

    return compose("page-row", seed, draft, instruction, expert)


def colour_scene(rng: random.Random, seed: int) -> Scene:
    """Click a shape by its colour and form."""
    draft = Draft(rng)
    count = rng.randint(3, 12)
    kinds = rng.sample([(c, k) for c in COLOURS for k in SHAPES], count)
    names = [draft.new_id() for _ in kinds]
    size = rng.randint(16, 30)
    cells = "".join(
        f'<svg id="{name}" data-pf="shape" data-name="{colour} {kind}" viewBox="0 0 24 24" width="{size}" '
        f'height="{size}" '
        f'style="cursor:pointer;margin:{rng.randint(1, 6)}px">{SHAPES[kind].format(COLOURS[colour])}</svg>'
        for name, (colour, kind) in zip(names, kinds, strict=True)
    )
    draft.add(f'<div style="background:#f4f4f4;width:146px">{cells}</div>')
    at = rng.randrange(count)
    colour, kind = kinds[at]
    only_colour = sum(c == colour for c, _ in kinds) == 1 and rng.random() < 0.4
    only_kind = sum(k == kind for _, k in kinds) == 1 and rng.random() < 0.5
    what = f"{colour} {'shape' if only_colour else kind}" if not only_kind else kind
    draft.on(names[at], reach(rng))
    draft.needed.append(names[at])
    instruction = rng.choice(
        ["Click on the {0}.", "Click the {0}.", "Select the {0}.", "Choose the {0}."]
    ).format(what)

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(f"{element(names[at])}.firstElementChild"))
        yield done()

    return compose("page-shape", seed, draft, instruction, expert)


def amount_scene(rng: random.Random, seed: int) -> Scene:
    """Bring a counter to a number with its + and - knobs, then confirm."""
    draft = Draft(rng)
    texts = words.distinct_labels(rng.randint(1, 3), rng, 1)
    at = rng.randrange(len(texts))
    start, goal = rng.randint(0, 4), rng.randint(0, 5)
    if goal == start:
        goal += 1
    ids = []
    for i, text in enumerate(texts):
        less, value, more = draft.new_id(), draft.new_id(), draft.new_id()
        ids.append((less, value, more))
        number = start if i == at else rng.randint(0, 5)
        draft.add(
            f'<div>{escape(text)} <button id="{less}" data-name="less {escape(text)}">−</button> '
            f'<span id="{value}" '
            f'style="display:inline-block;min-width:14px;text-align:center">{number}</span> '
            f'<button id="{more}" data-name="more {escape(text)}">+</button></div>'
        )
        draft.on(less, f"$('{value}').textContent = Math.max(0, +$('{value}').textContent - 1)")
        draft.on(more, f"$('{value}').textContent = +$('{value}').textContent + 1")
    caption = rng.choice(["Submit", "OK", "Order", "Save"])
    submit = button(draft, caption)
    less, value, more = ids[at]
    draft.on(submit, f"if ($('{value}').textContent === '{goal}') {reach(rng)}")
    draft.needed += [less, more, submit]
    instruction = rng.choice(
        ["Set {0} to {1} and press {2}.", "Choose {1} of {0}, then press {2}.", "Make {0} {1} and click {2}."]
    )
    instruction = instruction.format(texts[at], goal, caption)

    async def expert(s: Screen) -> Steps:
        for _ in range(abs(goal - start)):
            yield click(await s.target(element(more if goal > start else less)))
        yield click(await s.target(element(submit)))
        yield done()

    return compose("page-amount", seed, draft, instruction, expert)


def scroll_scene(rng: random.Random, seed: int) -> Scene:
    """Find an entry of a list that is longer than its box."""
    draft = Draft(rng)
    count = rng.randint(8, 22)
    texts = words.distinct_labels(count, rng, 2)
    names = [draft.new_id() for _ in texts]
    frame = draft.new_id()
    if rng.random() < 0.4:
        heading(draft, words.label(rng))
    line = rng.choice(["border-bottom:1px solid #ddd;", ""])
    rows = "".join(
        f'<div id="{name}" data-pf="row" '
        f'style="cursor:pointer;padding:{rng.randint(2, 4)}px;{line}">{escape(text)}</div>'
        for name, text in zip(names, texts, strict=True)
    )
    draft.add(
        f'<div id="{frame}" '
        f'style="height:{rng.randint(80, 130)}px;width:{rng.randint(110, 146)}px;overflow-y:scroll;'
        f'border:1px solid #888">{rows}</div>'
    )
    at = rng.randrange(count)
    draft.on(names[at], reach(rng))
    draft.needed.append(frame)
    instruction = rng.choice(
        [
            'Scroll the list and click on "{0}".',
            "Select {0} from the list.",
            'Find "{0}" in the list and click it.',
            "Choose {0}.",
        ]
    ).format(texts[at])

    async def expert(s: Screen) -> Steps:
        async for step in scroll_to(s, element(names[at]), element(frame)):
            yield step
        yield click(await s.target(element(names[at])))
        yield done()

    return compose("page-scroll", seed, draft, instruction, expert)


def switch_scene(rng: random.Random, seed: int) -> Scene:
    """Turn named switches on or off."""
    draft = Draft(rng)
    count = rng.randint(2, 5)
    texts = words.distinct_labels(count, rng, 2)
    names = [draft.new_id() for _ in texts]
    states = [rng.random() < 0.4 for _ in texts]
    for name, text, on in zip(names, texts, states, strict=True):
        draft.add(
            f'<div style="min-height:18px">{escape(text)}<span id="{name}" class="switch" data-pf="checkbox" '
            f'data-name="{escape(text)}" data-on="{int(on)}" '
            f'style="float:right;cursor:pointer;width:26px;height:13px;'
            f'border-radius:7px;border:1px solid #777;position:relative"><i '
            f'style="position:absolute;top:0;width:13px;'
            f"height:13px;border-radius:7px;background:#fff;border:1px solid "
            f'#555;box-sizing:border-box"></i></span></div>'
        )
    colour = rng.choice(["#0a0", "#07f", "#f80", "#333"])
    draft.script.append(
        "const paint = (e) => { const on = e.dataset.on === '1';"
        f"e.style.background = on ? '{colour}' : '#ccc'; e.firstChild.style.left = on ? '13px' : '0'; }};"
        "document.querySelectorAll('.switch').forEach((e) => { paint(e);"
        "e.addEventListener('click', () => { e.dataset.on = e.dataset.on === '1' ? '0' : '1'; paint(e); "
        "check(); }); });"
    )
    at = rng.randrange(count)
    want = not states[at]
    goal = {name: int(on) for name, on in zip(names, states, strict=True)} | {names[at]: int(want)}
    test = f"Object.entries({json.dumps(goal)}).every(([n, v]) => +$(n).dataset.on === v)"
    draft.script.append(f"const check = () => {{ if ({test}) {reach(rng)}; }};")
    draft.needed.append(names[at])
    instruction = rng.choice(["Turn {1} {0}.", 'Switch {1} "{0}".', "Turn {0} {1}."]).format(
        texts[at], "on" if want else "off"
    )

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(element(names[at])))
        yield done()

    return compose("page-switch", seed, draft, instruction, expert)


def pages_scene(rng: random.Random, seed: int) -> Scene:
    """An entry on another page of a list: turn pages, then click it."""
    draft = Draft(rng)
    per, pages = rng.randint(2, 4), rng.randint(2, 3)
    texts = words.distinct_labels(per * pages, rng, 2)
    names = [draft.new_id() for _ in texts]
    after, before = draft.new_id(), draft.new_id()
    at = rng.randrange(per, per * pages)
    rows = "".join(
        f'<p class="entry {"hide" if i >= per else ""}"><a href="#" id="{name}">{escape(text)}</a></p>'
        for i, (name, text) in enumerate(zip(names, texts, strict=True))
    )
    onward, back = rng.choice([("Next", "Previous"), (">", "<"), ("More", "Back"), ("→", "←")])
    draft.add(
        f'<div>{rows}<button id="{before}">{escape(back)}</button> <button '
        f'id="{after}">{escape(onward)}</button></div>'
    )
    draft.script.append(
        f"let page = 0; const turn = (d) => {{ page = Math.min({pages - 1}, Math.max(0, page + d));"
        f"document.querySelectorAll('.entry').forEach((e, i) => e.classList.toggle('hide', Math.floor(i / "
        f"{per}) !== page)); }};"
    )
    draft.on(before, "turn(-1)")
    draft.on(after, "turn(1)")
    draft.on(names[at], "event.preventDefault();" + reach(rng))
    draft.needed.append(after)
    instruction = rng.choice(
        [
            'Turn the pages to find and click on the link "{0}".',
            'Find "{0}" and click it.',
            'Click on the link "{0}" on another page.',
        ]
    ).format(texts[at])

    async def expert(s: Screen) -> Steps:
        for _ in range(at // per):
            yield click(await s.target(element(after)))
        yield click(await s.target(element(names[at])))
        yield done()

    return compose("page-pages", seed, draft, instruction, expert)


SCENES = {
    "page-row": (row_action_scene, 2.0),
    "page-shape": (colour_scene, 1.5),
    "page-amount": (amount_scene, 0.7),
    "page-scroll": (scroll_scene, 1.0),
    "page-switch": (switch_scene, 1.0),
    "page-pages": (pages_scene, 1.0),
}
