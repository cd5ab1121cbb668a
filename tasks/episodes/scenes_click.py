"""Procedural tasks that are done by clicking named things."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.pages import Screen
from pilotfish.tasks.episodes.procedural import Scene, compose
from pilotfish.tasks.episodes.steps import Steps, click, done
from pilotfish.tasks.episodes.widgets import (
    CLOSERS,
    Draft,
    button,
    clutter,
    element,
    escape,
    heading,
    link,
    option_box,
    palette,
    prose,
    reach,
    row,
    text_field,
    tile,
)

Widget = Callable[[Draft, str], str]


def box(draft: Draft, text: str) -> str:
    """A text field, to be focused."""
    return text_field(draft, text)


KINDS: dict[str, tuple[Widget, float, tuple[str, ...]]] = {
    "button": (
        button,
        7,
        (
            'Click on the "{0}" button.',
            'Click the "{0}" button.',
            'Press "{0}".',
            "Press {0}.",
            'Click on "{0}".',
            "Click {0}.",
            'Press the button "{0}".',
            "Push the {0} button.",
            "Click button {0}.",
            'Click the button labelled "{0}".',
            "Hit {0}.",
            "Press the {0} button.",
        ),
    ),
    "link": (
        link,
        4,
        (
            'Click on the link "{0}".',
            'Click the link "{0}".',
            'Follow the "{0}" link.',
            'Click on "{0}".',
            'Open the link "{0}".',
            'Go to "{0}".',
            "Follow {0}.",
        ),
    ),
    "item": (
        row,
        3,
        (
            'Select "{0}".',
            "Select {0}.",
            'Click on "{0}".',
            'Open "{0}".',
            'Choose "{0}" in the list.',
            "Pick {0}.",
            'Click the row "{0}".',
        ),
    ),
    "icon": (
        tile,
        2,
        ('Open "{0}".', "Open {0}.", 'Click the "{0}" icon.', "Start {0}.", 'Click on "{0}".'),
    ),
    "field": (
        box,
        2,
        (
            'Click into the "{0}" field.',
            'Focus the "{0}" text box.',
            "Focus into the {0} field.",
            'Put the cursor into "{0}".',
        ),
    ),
}


def click_scene(rng: random.Random, seed: int) -> Scene:
    """Click one named thing among others."""
    draft = Draft(rng)
    kind = rng.choices(list(KINDS), [weight for _, weight, _ in KINDS.values()])[0]
    make, _, sayings = KINDS[kind]
    count = rng.randint(1, 9)
    texts = words.distinct_labels(count + 1, rng)
    at = rng.randrange(count)
    if rng.random() < 0.4:
        heading(draft, texts[-1])
    for i in range(count):
        if i == at:
            goal = make(draft, texts[i])
        elif rng.random() < 0.7:
            make(draft, texts[i])
        else:
            clutter(draft, [texts[i]])
    draft.on(goal, reach(rng), "focus" if kind == "field" else "click")
    draft.needed.append(goal)

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(element(goal)))
        yield done()

    return compose("page-click", seed, draft, rng.choice(sayings).format(texts[at]), expert)


def scatter_scene(rng: random.Random, seed: int) -> Scene:
    """Buttons at random places of the page, without a layout."""
    draft = Draft(rng)
    count = rng.randint(1, 7)
    texts = words.distinct_labels(count, rng, 1)
    names = []
    spots = [(x, y) for x in (2, 56, 110) for y in (46, 74, 102, 130, 158, 184)]
    for text, (x, y) in zip(texts, rng.sample(spots, count), strict=True):
        name = draft.new_id()
        names.append(name)
        wide = (
            f"min-width:{rng.randint(14, 48)}px;height:{rng.randint(14, 24)}px" if rng.random() < 0.7 else ""
        )
        left, top = x + rng.randint(-2, 4), y + rng.randint(-4, 4)
        look = f"position:absolute;left:{left}px;top:{top}px;max-width:52px;{wide}"
        draft.add(
            f'<button id="{name}" style="{look};overflow:hidden;padding:1px '
            f'2px;{draft.style(0.3)}">{escape(text)}</button>'
        )
    order = rng.sample(range(count), rng.choices((1, 2, 3), (6, 3, 1))[0] if count > 2 else 1)
    ids = [names[i] for i in order]
    draft.script.append(f"let next = 0; const order = {json.dumps(ids)};")
    for name in names:
        draft.on(
            name, f"next = order[next] === '{name}' ? next + 1 : 0; if (next === order.length) {reach(rng)};"
        )
    draft.needed += ids
    asked = [texts[i] for i in order]
    if len(asked) == 1:
        instruction = rng.choice(
            ['Click button "{0}".', "Click button {0}.", "Press {0}.", 'Click "{0}".']
        ).format(*asked)
    else:
        joint = rng.choice([", then click button {}", ", then {}", " and then {}"])
        instruction = f"Click button {asked[0]}" + "".join(joint.format(text) for text in asked[1:]) + "."

    async def expert(s: Screen) -> Steps:
        for name in ids:
            yield click(await s.target(element(name)))
        yield done()

    return compose("page-scatter", seed, draft, instruction, expert)


def crowd_scene(rng: random.Random, seed: int) -> Scene:
    """A screen full of short labels, one of them to be clicked: many places to read on one picture."""
    draft = Draft(rng)
    columns, pitch = rng.choice(((2, 20), (3, 18), (3, 22), (4, 20)))
    spots = [(4 + 156 * c // columns, y) for c in range(columns) for y in range(46, 196, pitch)]
    count = rng.randint(4, min(20, len(spots)))
    texts = words.distinct_labels(count, rng, 1)
    names = []
    for text, (x, y) in zip(texts, rng.sample(spots, count), strict=True):
        kind = rng.choices(("button", "a", "span"), (5, 3, 2))[0]
        name = draft.new_id()
        look = (
            f"position:absolute;left:{x + rng.randint(-3, 4)}px;top:{y + rng.randint(-3, 3)}px;"
            f"max-width:{156 // columns - 3}px;overflow:hidden;white-space:nowrap;"
            f"font-size:{rng.choice((9, 10, 11, 12, 13))}px;padding:0 {rng.randint(0, 4)}px"
        )
        dress = draft.style(0.25) if kind == "button" else ""
        where = ' href="#"' if kind == "a" else ""
        draft.add(f'<{kind} id="{name}"{where} style="{look};{dress}">{escape(text)}</{kind}>')
        if kind != "span":
            names.append((name, text, kind))
    if not names:
        names.append((draft.new_id(), texts[0] + "s", "button"))
        draft.add(f'<button id="{names[0][0]}">{escape(names[0][1])}</button>')
    for name, _, kind in names:
        if kind == "a":
            draft.on(name, "event.preventDefault()")
    goal, text, kind = rng.choice(names)
    draft.on(goal, reach(rng))
    draft.needed.append(goal)
    sayings = KINDS["link" if kind == "a" else "button"][2]

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(element(goal)))
        yield done()

    return compose("page-crowd", seed, draft, rng.choice(sayings).format(text), expert)


def tab_scene(rng: random.Random, seed: int) -> Scene:
    """Open a tab, or find something behind one."""
    draft = Draft(rng)
    count = rng.randint(2, 4)
    texts = (
        [f"Tab #{i + 1}" for i in range(count)]
        if rng.random() < 0.3
        else words.distinct_labels(count, rng, 1)
    )
    texts = [text[:9] for text in texts]
    back, ink = palette(rng, rng.random() < 0.4)
    tabs = [draft.new_id() for _ in range(count)]
    panels = [draft.new_id() for _ in range(count)]
    start, goal = rng.sample(range(count), 2)
    inner = rng.random() < 0.4
    button_text = words.label(rng, 2)
    inner_id = draft.new_id()
    look = (
        f"display:inline-block;cursor:pointer;padding:{rng.randint(2, 4)}px;margin-right:2px;border:1px "
        f"solid #999"
    )
    heads = "".join(
        f'<span role="tab" id="{tab}" style="{look}">{escape(text)}</span>'
        for tab, text in zip(tabs, texts, strict=True)
    )
    bodies = ""
    for i, panel in enumerate(panels):
        extra = f'<button id="{inner_id}">{escape(button_text)}</button>' if inner and i == goal else ""
        text = escape(words.sentence(rng, rng.randint(4, 16)))
        bodies += (
            f'<div id="{panel}" class="{"" if i == start else "hide"}" '
            f'style="padding:4px"><p>{text}</p>{extra}</div>'
        )
    draft.add(f"<div>{heads}</div><div style='border:1px solid #999'>{bodies}</div>")
    draft.script.append(
        f"const tabs = {json.dumps(tabs)}, panels = {json.dumps(panels)};"
        "const open = (i) => tabs.forEach((t, j) => {"
        f"$(t).style.background = i === j ? '{back}' : ''; $(t).style.color = i === j ? '{ink}' : '';"
        "$(panels[j]).classList.toggle('hide', i !== j); });"
        f"tabs.forEach((t, i) => $(t).addEventListener('click', () => open(i))); open({start});"
    )
    draft.on(inner_id if inner else tabs[goal], reach(rng))
    draft.needed.append(tabs[goal])
    name = texts[goal]
    if inner:
        instruction = rng.choice(
            [
                'Open the "{0}" tab and press "{1}".',
                'Go to the tab "{0}" and click "{1}".',
                "In the {0} tab, press {1}.",
            ]
        ).format(name, button_text)
    else:
        instruction = rng.choice(
            [
                "Open the {0} tab.",
                'Click on the "{0}" tab.',
                "Click on {0}.",
                'Switch to the tab "{0}".',
                "Go to the {0} tab.",
            ]
        ).format(name)

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(element(tabs[goal])))
        if inner:
            yield click(await s.target(element(inner_id)))
        yield done()

    return compose("page-tab", seed, draft, instruction, expert)


def dialog_scene(rng: random.Random, seed: int) -> Scene:
    """A dialog over a page: close it by its x, or answer it."""
    draft = Draft(rng)
    title, *texts = words.distinct_labels(5, rng, 2)
    clutter(draft, texts[:3])
    bar, ink = palette(rng, rng.random() < 0.5)
    frame, closer = draft.new_id(), draft.new_id()
    answers = rng.sample(["OK", "Cancel", "Yes", "No", "Later", texts[-1]], rng.randint(0, 2))
    names = [draft.new_id() for _ in answers]
    x, y, width = rng.randint(2, 40), rng.randint(10, 90), rng.randint(90, 115)
    look = (
        f"position:absolute;left:{x}px;top:{y}px;width:{width}px;background:white;color:black;"
        f"border:1px solid #777;border-radius:{rng.randint(0, 5)}px;box-shadow:1px 1px 4px #0008;z-index:5"
    )
    corner = rng.choice(
        [f"border:1px solid #999;padding:0 {rng.randint(2, 4)}px", "padding:0 3px", "color:red;padding:0 3px"]
    )
    cross = (
        f'<span id="{closer}" data-pf="button" data-name="close" style="float:right;cursor:pointer;{corner}">'
        f"{rng.choice(CLOSERS)}</span>"
    )
    head = f"<div style='background:{bar};color:{ink};padding:2px 4px'>{cross}{escape(title)}</div>"
    row_of = "".join(
        f'<button id="{name}" style="margin:2px">{escape(text)}</button>'
        for name, text in zip(names, answers, strict=True)
    )
    text = escape(words.sentence(rng, rng.randint(3, 10)))
    draft.add(f'<div id="{frame}" style="{look}">{head}<div style="padding:4px">{text}</div>{row_of}</div>')
    choice = rng.randrange(-1, len(answers))
    goal = closer if choice < 0 else names[choice]
    for name in (closer, *names):
        draft.on(name, f"$('{frame}').remove();" + (reach(rng) if name == goal else ""))
    draft.needed.append(goal)
    if choice < 0:
        instruction = rng.choice(
            [
                "Close the dialog.",
                'Close the dialog box by clicking the "x".',
                f'Close the "{title}" window.',
                "Close the popup.",
                f"Dismiss the {title} dialog with its x.",
            ]
        )
    else:
        instruction = rng.choice(
            [
                'Press "{0}" in the dialog.',
                'Click the "{0}" button in the dialog box.',
                "Answer the dialog with {0}.",
                "Press {0}.",
            ]
        ).format(answers[choice])

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(element(goal)))
        yield done()

    return compose("page-dialog", seed, draft, instruction, expert)


def menu_scene(rng: random.Random, seed: int) -> Scene:
    """Menus or sections that open on a click; choose an entry."""
    draft = Draft(rng)
    heads = words.distinct_labels(rng.randint(1, 4), rng, 1)
    accordion = rng.random() < 0.5
    back, ink = palette(rng, rng.random() < 0.5)
    goal_head = rng.randrange(len(heads))
    entries: list[list[tuple[str, str]]] = []
    used = {head.lower() for head in heads}
    parts = []
    head_ids = []
    for i, head in enumerate(heads):
        texts = [t for t in words.distinct_labels(rng.randint(2, 4), rng, 2) if t.lower() not in used] or [
            "Item"
        ]
        used |= {text.lower() for text in texts}
        entries.append([(draft.new_id(), text) for text in texts])
        head_id, list_id = draft.new_id(), draft.new_id()
        head_ids.append(head_id)
        items = "".join(
            f'<div id="{name}" role="menuitem" style="padding:2px 4px;cursor:pointer">{escape(text)}</div>'
            for name, text in entries[i]
        )
        spot = (
            ""
            if accordion
            else "position:absolute;background:white;color:black;border:1px solid #888;z-index:3;"
        )
        look = f"background:{back};color:{ink};cursor:pointer;padding:{rng.randint(1, 4)}px 5px;margin:1px"
        mark = rng.choice(["▸ ", "+ ", "▾ ", ""])
        around = "" if accordion else 'style="display:inline-block"'
        parts.append(
            f'<div {around}><div id="{head_id}" data-pf="button" data-name="{escape(head)}" '
            f'style="{look}">{mark}{escape(head)}</div>'
            f'<div id="{list_id}" class="hide list" style="{spot}">{items}</div></div>'
        )
        draft.on(
            head_id,
            f"const shut = $('{list_id}').classList.contains('hide');"
            "document.querySelectorAll('.list').forEach((l) => l.classList.add('hide'));"
            f"$('{list_id}').classList.toggle('hide', !shut);",
        )
    draft.add("".join(parts))
    if rng.random() < 0.5:
        prose(draft)
    name, text = rng.choice(entries[goal_head])
    draft.on(name, reach(rng))
    draft.needed.append(head_ids[goal_head])
    instruction = rng.choice(
        [
            'Open "{0}" and select "{1}".',
            "Select {0}>{1}.",
            'Choose "{1}" from the "{0}" menu.',
            "Expand {0} and click {1}.",
            'In the {0} menu, click "{1}".',
        ]
    ).format(heads[goal_head], text)

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(element(head_ids[goal_head])))
        yield click(await s.target(element(name)))
        yield done()

    return compose("page-menu", seed, draft, instruction, expert)


def check_scene(rng: random.Random, seed: int) -> Scene:
    """Tick some boxes (or one radio button), then press a button."""
    draft = Draft(rng)
    count = rng.randint(2, 7)
    radio = rng.random() < 0.35
    texts = words.distinct_labels(count + 1, rng, 2)
    kind = "radio" if radio else "checkbox"
    boxes = [(option_box(draft, text, kind, "g"), text) for text in texts[:count]]
    wanted = rng.sample(boxes, 1 if radio else rng.randint(1, min(4, count)))
    caption = rng.choice(["Submit", "Submit", "Save", "OK", "Confirm", texts[-1]])
    submit = button(draft, caption)
    test = " && ".join(
        f"$('{name}').checked === {str((name, text) in wanted).lower()}" for name, text in boxes
    )
    draft.on(submit, f"if ({test}) {reach(rng)}")
    draft.needed += [submit, *(name for name, _ in wanted)]
    listed = ", ".join(text for _, text in wanted)
    verb = rng.choice(["Select {0}", "Select {0}", "Check {0}", "Tick {0}", "Choose {0}", "Mark {0}"])
    ending = rng.choice([" and click {0}.", " and press {0}.", ' and click "{0}".', ", then press {0}."])
    instruction = verb.format(listed) + ending.format(caption)

    async def expert(s: Screen) -> Steps:
        for name, _ in wanted:
            yield click(await s.target(element(name)))
        yield click(await s.target(element(submit)))
        yield done()

    return compose("page-check", seed, draft, instruction, expert)


SCENES = {
    "page-click": (click_scene, 5.0),
    "page-scatter": (scatter_scene, 2.0),
    "page-crowd": (crowd_scene, 6.0),
    "page-tab": (tab_scene, 1.5),
    "page-dialog": (dialog_scene, 1.5),
    "page-menu": (menu_scene, 1.5),
    "page-check": (check_scene, 2.5),
}
