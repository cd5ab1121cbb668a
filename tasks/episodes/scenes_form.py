"""Procedural tasks that are done by typing."""

from __future__ import annotations

import json
import random

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.expert_tools import fill
from pilotfish.tasks.episodes.pages import Screen
from pilotfish.tasks.episodes.procedural import Scene, compose
from pilotfish.tasks.episodes.steps import Steps, click, done, key
from pilotfish.tasks.episodes.widgets import (
    Draft,
    button,
    clutter,
    element,
    escape,
    heading,
    option_box,
    prose,
    reach,
    text_field,
)

SUBMIT = ("Submit", "Submit", "Save", "OK", "Send", "Login", "Go", "Apply")
FILL = (
    'Enter "{value}" into the {field} field',
    'Type "{value}" into "{field}"',
    'Enter "{value}" into {field}',
    'Fill in "{value}" as {field}',
    'Write "{value}" in the field "{field}"',
    'Set {field} to "{value}"',
    'Put "{value}" in the {field} box',
)
ENDINGS = (
    " and press {0}.",
    ' and click "{0}".',
    ", then press {0}.",
    ' and click the "{0}" button.',
    " and press {0}.",
)


def fill_scene(rng: random.Random, seed: int) -> Scene:
    """Fill one to three named fields, then press a button."""
    draft = Draft(rng)
    asked = rng.choices((1, 2, 3), (6, 3, 1))[0]
    texts = words.distinct_labels(asked + rng.randint(0, 2) + 2, rng, 2)
    if rng.random() < 0.25:
        heading(draft, words.label(rng))
    fields = []
    for text in texts[:-2]:
        kind = rng.choices(("text", "password", "textarea"), (8, 1, 1))[0]
        fields.append((text_field(draft, text, kind), text, words.entry(rng)))
        if rng.random() < 0.12:
            prose(draft)
    wanted = rng.sample(fields, asked)
    caption = rng.choice([*SUBMIT, texts[-1]])
    submit = button(draft, caption)
    if rng.random() < 0.3:
        clutter(draft, [texts[-2]])
    test = " && ".join(f"$('{name}').value === {json.dumps(value)}" for name, _, value in wanted)
    draft.on(submit, f"if ({test}) {reach(rng, wanted[0][2])}")
    draft.needed += [submit, *(name for name, _, _ in wanted)]
    parts = [rng.choice(FILL).format(value=value, field=text) for _, text, value in wanted]
    parts[1:] = [part[0].lower() + part[1:] for part in parts[1:]]
    instruction = ", ".join(parts) + rng.choice(ENDINGS).format(caption)

    async def expert(s: Screen) -> Steps:
        for name, _, value in wanted:
            async for step in fill(s, element(name), value):
                yield step
        yield click(await s.target(element(submit)))
        yield done()

    return compose("page-fill", seed, draft, instruction, expert)


def plain_field_scene(rng: random.Random, seed: int) -> Scene:
    """One field without a name, and a button."""
    draft = Draft(rng)
    value = words.entry(rng)
    if rng.random() < 0.3:
        prose(draft)
    name = draft.new_id()
    left, top = rng.randint(0, 24), rng.randint(0, 24)
    draft.add(
        f'<div style="margin:{top}px 0 0 {left}px"><input type="text" id="{name}" '
        f'style="width:{rng.randint(80, 130)}px;{draft.style(0.3)}"></div>'
    )
    caption = rng.choice(SUBMIT)
    submit = button(draft, caption)
    draft.on(submit, f"if ($('{name}').value === {json.dumps(value)}) {reach(rng, value)}")
    draft.needed += [name, submit]
    instruction = rng.choice(
        [
            'Enter "{0}" into the text field',
            'Type "{0}" into the text box',
            'Write "{0}" in the field',
            'Enter "{0}"',
        ]
    ).format(value) + rng.choice(ENDINGS).format(caption)

    async def expert(s: Screen) -> Steps:
        async for step in fill(s, element(name), value):
            yield step
        yield click(await s.target(element(submit)))
        yield done()

    return compose("page-text", seed, draft, instruction, expert)


def login_scene(rng: random.Random, seed: int) -> Scene:
    """A name and a password, perhaps twice, perhaps with a box to tick."""
    draft = Draft(rng)
    if rng.random() < 0.4:
        heading(draft, rng.choice(["Login", "Sign in", "Welcome", words.label(rng)]))
    user = rng.choice([rng.choice(words.NAMES), rng.choice(words.NAMES).lower(), words.entry(rng)])
    password = words.code(rng, rng.randint(2, 9))
    user_word = rng.choice(["Username", "User", "Name", "Email", "Login name"])
    fields = [(text_field(draft, user_word), user)]
    fields.append(
        (text_field(draft, rng.choice(["Password", "Password", "Secret", "PIN"]), "password"), password)
    )
    if rng.random() < 0.25:
        fields.append(
            (
                text_field(draft, rng.choice(["Verify password", "Repeat password", "Again"]), "password"),
                password,
            )
        )
    stay = (
        option_box(draft, rng.choice(["Remember me", "Stay signed in", "I agree"]), "checkbox", "r")
        if rng.random() < 0.3
        else None
    )
    tick = stay is not None and rng.random() < 0.5
    caption = rng.choice(["Login", "Log in", "Sign in", "Submit", "Enter", "OK"])
    submit = button(draft, caption)
    test = " && ".join(f"$('{name}').value === {json.dumps(value)}" for name, value in fields)
    if stay:
        test += f" && $('{stay}').checked === {str(tick).lower()}"
    draft.on(submit, f"if ({test}) {reach(rng, user)}")
    draft.needed += [submit, *(name for name, _ in fields)]
    twice = " twice" if len(fields) == 3 else ""
    instruction = rng.choice(
        [
            'Enter the username "{u}" and the password "{p}"{t} into the text fields and press {c}.',
            'Log in as "{u}" with the password "{p}"{t}, press {c}.',
            'Type the user "{u}" and the password "{p}"{t}, then click {c}.',
            'Sign in with "{u}" and "{p}"{t} and press {c}.',
        ]
    ).format(u=user, p=password, c=caption, t=twice)
    if tick:
        instruction = instruction.rstrip(".") + rng.choice(
            [", with the box ticked.", " after ticking the box."]
        )

    async def expert(s: Screen) -> Steps:
        for name, value in fields:
            async for step in fill(s, element(name), value):
                yield step
        if stay and tick:
            yield click(await s.target(element(stay)))
        yield click(await s.target(element(submit)))
        yield done()

    return compose("page-login", seed, draft, instruction, expert)


def change_scene(rng: random.Random, seed: int) -> Scene:
    """Replace or clear what is in a field already."""
    draft = Draft(rng)
    texts = words.distinct_labels(rng.randint(1, 3), rng, 2)
    fields = [(text_field(draft, text, "text", words.entry(rng)), text) for text in texts]
    name, text = rng.choice(fields)
    clear = rng.random() < 0.2
    value = "" if clear else words.entry(rng)
    caption = rng.choice([*SUBMIT, "Update"])
    submit = button(draft, caption)
    draft.on(submit, f"if ($('{name}').value === {json.dumps(value)}) {reach(rng)}")
    draft.needed += [name, submit]
    if clear:
        instruction = rng.choice(["Clear the {0} field", 'Empty "{0}"', "Delete the text in {0}"]).format(
            text
        )
    else:
        instruction = rng.choice(
            [
                'Change {0} to "{1}"',
                'Replace the text in "{0}" with "{1}"',
                'Set {0} to "{1}"',
                'Update {0} to "{1}"',
            ]
        ).format(text, value)
    instruction += rng.choice(ENDINGS).format(caption)

    async def expert(s: Screen) -> Steps:
        async for step in fill(s, element(name), value):
            yield step
        yield click(await s.target(element(submit)))
        yield done()

    return compose("page-change", seed, draft, instruction, expert)


def search_scene(rng: random.Random, seed: int) -> Scene:
    """Search with the Return key or a button, then perhaps open a result."""
    draft = Draft(rng)
    query, *results = words.distinct_labels(rng.randint(3, 5), rng, 2)
    box, go, listed = draft.new_id(), draft.new_id(), draft.new_id()
    by_key = rng.random() < 0.5
    caption = rng.choice(["Search", "Go", "Find", "Search"])
    knob = "" if by_key and rng.random() < 0.5 else f'<button id="{go}">{caption}</button>'
    draft.add(
        f'<div><input id="{box}" type="text" data-name="search" placeholder="{rng.choice(["Search", ""])}" '
        f'style="width:85px"> {knob}</div>'
    )
    names = [draft.new_id() for _ in results]
    items = "".join(
        f'<p><a href="#" '
        f'id="{name}">{escape(text)}</a><br>{escape(words.sentence(rng, rng.randint(2, 6)))}</p>'
        for name, text in zip(names, results, strict=True)
    )
    draft.add(f'<div id="{listed}" class="hide">{items}</div>')
    open_result = rng.random() < 0.6
    at = rng.randrange(len(results))
    found = f"if ($('{box}').value === {json.dumps(query)}) {{ $('{listed}').classList.remove('hide');"
    found += "}" if open_result else reach(rng) + "}"
    draft.on(box, f"if (event.key === 'Enter') {found}", "keydown")
    if knob:
        draft.on(go, found)
    draft.on(names[at], "event.preventDefault();" + (reach(rng) if open_result else ""))
    draft.needed.append(box)
    instruction = rng.choice(
        ['Search for "{0}"', 'Enter "{0}" into the search box and search', 'Find "{0}" with the search']
    ).format(query)
    how = rng.choice([" by pressing Return", " with the Enter key", " and press Return"]) if by_key else ""
    what = (
        rng.choice([', then open "{0}".', " and click the result {0}."]).format(results[at])
        if open_result
        else "."
    )
    instruction += how + what

    async def expert(s: Screen) -> Steps:
        async for step in fill(s, element(box), query):
            yield step
        yield key("Return") if by_key else click(await s.target(element(go)))
        if open_result:
            yield click(await s.target(element(names[at])))
        yield done()

    return compose("page-search", seed, draft, instruction, expert)


def read_scene(rng: random.Random, seed: int) -> Scene:
    """Read a value from a table, a list or a notice, and type it into a field."""
    draft = Draft(rng)
    count = rng.randint(2, 6)
    keys = words.distinct_labels(count, rng, 2)
    values = [words.entry(rng) for _ in keys]
    at = rng.randrange(count)
    pairs = list(zip(keys, values, strict=True))
    match rng.randrange(3):
        case 0:
            border = (
                f"border:1px solid "
                f"{rng.choice(['#bbb', '#888', 'transparent'])};padding:{rng.randint(0, 2)}px 2px"
            )
            rows = "".join(
                f'<tr><td style="{border}">{escape(k)}</td><td style="{border}">{escape(v)}</td></tr>'
                for k, v in pairs
            )
            draft.add(
                f'<table style="border-collapse:collapse;width:{rng.randint(110, 146)}px">{rows}</table>'
            )
        case 1:
            rows = "".join(f"<div><b>{escape(k)}:</b> {escape(v)}</div>" for k, v in pairs)
            draft.add(f"<div>{rows}</div>")
        case _:
            rows = "".join(f"<li>{escape(k)}: {escape(v)}</li>" for k, v in pairs)
            draft.add(f"<ul style='padding-left:16px;margin:2px 0'>{rows}</ul>")
    name = draft.new_id()
    draft.add(f'<div><input type="text" id="{name}" style="width:{rng.randint(70, 120)}px"></div>')
    caption = rng.choice(SUBMIT)
    submit = button(draft, caption)
    draft.on(submit, f"if ($('{name}').value === {json.dumps(values[at])}) {reach(rng)}")
    draft.needed += [name, submit]
    instruction = rng.choice(
        [
            "Enter the value of {0} into the text field",
            'Type what stands beside "{0}" into the field',
            "Copy the value of {0} into the box",
            "Enter the {0} shown above",
        ]
    ).format(keys[at]) + rng.choice(ENDINGS).format(caption)

    async def expert(s: Screen) -> Steps:
        async for step in fill(s, element(name), values[at]):
            yield step
        yield click(await s.target(element(submit)))
        yield done()

    return compose("page-read", seed, draft, instruction, expert)


SCENES = {
    "page-fill": (fill_scene, 4.0),
    "page-text": (plain_field_scene, 1.5),
    "page-login": (login_scene, 2.0),
    "page-change": (change_scene, 1.0),
    "page-search": (search_scene, 1.5),
    "page-read": (read_scene, 2.0),
}
