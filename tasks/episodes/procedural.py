"""Endless pages of our own: random widgets, words, fonts and layouts, each with a task and its expert.

A page is one HTML text whose script watches for the goal, sets `window.__pfGoal` and shows a plain message; the
expert's last action is `done`.
"""

from __future__ import annotations

import html
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.pages import Screen, Unreachable
from pilotfish.tasks.episodes.steps import Expert, Steps, click, done, type_text

FONTS = (
    "Arial",
    "Arial",
    "sans-serif",
    "serif",
    "monospace",
    "DejaVu Sans",
    "DejaVu Serif",
    "DejaVu Sans Mono",
    "DejaVu Sans Condensed",
    "Liberation Sans",
    "Liberation Serif",
    "Nimbus Roman",
)
# The script every page begins with: `reach` shows that the goal is reached, for real and for good.
RUNTIME = """
window.__pfGoal = false;
const $ = (id) => document.getElementById(id);
const reach = (message, place, replace) => {
  window.__pfGoal = true;
  const note = document.createElement('div');
  note.textContent = message;
  note.style.cssText = 'padding:3px 4px;font-weight:bold;' + place;
  if (replace) document.body.replaceChildren(note); else document.body.prepend(note);
};
"""


@dataclass
class Scene:
    """A page with its task. `html` is the whole document."""

    task: str
    seed: int
    instruction: str
    html: str
    expert: Expert

    async def show(self, screen: Screen) -> None:
        """Put the page on the screen, in place of whatever was there."""
        code = "document.open();document.write(%s);document.close();__pf.seed(%d);scrollTo(0,0)"
        await screen.page.evaluate(f"(()=>{{{code % (json.dumps(self.html), self.seed * 7919 + 1)}}})()")
        await screen.reset_mouse()


@dataclass
class Draft:
    """A page being written: blocks of HTML, handlers, and ids handed out in order."""

    rng: random.Random
    blocks: list[str] = field(default_factory=list)
    script: list[str] = field(default_factory=list)
    count: int = 0

    def new_id(self) -> str:
        self.count += 1
        return f"w{self.count}"

    def style(self) -> str:
        """An inline style for one widget: often none."""
        rng = self.rng
        if rng.random() < 0.55:
            return ""
        dark = rng.random() < 0.4
        back, ink = palette(rng, dark)
        parts = [f"background:{back}", f"color:{ink}"]
        if rng.random() < 0.6:
            parts.append(f"border:{rng.randint(1, 2)}px solid {rng.choice(['#888', '#444', '#bbb', ink])}")
        if rng.random() < 0.6:
            parts.append(f"border-radius:{rng.randint(0, 9)}px")
        if rng.random() < 0.5:
            parts.append(f"padding:{rng.randint(1, 6)}px {rng.randint(2, 12)}px")
        return ";".join(parts)


def palette(rng: random.Random, dark: bool) -> tuple[str, str]:
    """A background and an ink that can be read on it."""
    hue, saturation = rng.randrange(360), rng.randrange(0, 90)
    if dark:
        return (
            f"hsl({hue},{saturation}%,{rng.randrange(12, 42)}%)",
            f"hsl({hue},{saturation // 3}%,{rng.randrange(88, 101)}%)",
        )
    return (
        f"hsl({hue},{saturation}%,{rng.randrange(84, 101)}%)",
        f"hsl({rng.randrange(360)},{saturation // 2}%,{rng.randrange(0, 26)}%)",
    )


def escape(text: str) -> str:
    """HTML text."""
    return html.escape(text, quote=True)


def message(rng: random.Random, name: str = "") -> str:
    """JavaScript that shows the goal's message."""
    text = rng.choice(
        ["Saved", "Done", "Thank you", "Success", "OK, done", "Finished", "Completed", "All set"]
    )
    if name and rng.random() < 0.4:
        text = f"Thank you, {name}"
    place = ""
    if rng.random() < 0.5:
        back, ink = palette(rng, rng.random() < 0.4)
        place = f"background:{back};color:{ink};"
    return f"reach({json.dumps(text)},{json.dumps(place)},{str(rng.random() < 0.5).lower()})"


# ---- widgets: each adds a block and returns the id of what is clicked ---------------------------------


def button(draft: Draft, text: str) -> str:
    rng, name = draft.rng, draft.new_id()
    tag = rng.choice(["button", "button", "button", "input", "div"])
    style = draft.style()
    if tag == "input":
        draft.blocks.append(f'<input type="button" id="{name}" value="{escape(text)}" style="{style}">')
    elif tag == "div":
        back, ink = palette(rng, rng.random() < 0.6)
        look = f"display:inline-block;cursor:pointer;background:{back};color:{ink};padding:{rng.randint(2, 5)}px {rng.randint(4, 10)}px;border-radius:{rng.randint(0, 6)}px"
        draft.blocks.append(
            f'<div role="button" data-pf="button" id="{name}" style="{look}">{escape(text)}</div>'
        )
    else:
        draft.blocks.append(f'<button id="{name}" style="{style}">{escape(text)}</button>')
    return name


def link(draft: Draft, text: str) -> str:
    rng, name = draft.rng, draft.new_id()
    before = words.sentence(rng, rng.randint(1, 6)) if rng.random() < 0.6 else ""
    after = " ".join(words.word(rng) for _ in range(rng.randint(1, 6))) if rng.random() < 0.6 else ""
    draft.blocks.append(f'<p>{escape(before)} <a id="{name}" href="#">{escape(text)}</a> {escape(after)}</p>')
    draft.script.append(f"$('{name}').addEventListener('click', (e) => e.preventDefault());")
    return name


def row(draft: Draft, text: str) -> str:
    rng, name = draft.rng, draft.new_id()
    icon = rng.choice(["", "", "★ ", "☰ ", "✉ ", "⚙ ", "▸ ", "● ", "✓ ", "♥ "])
    line = "border-bottom:1px solid #bbb;" if rng.random() < 0.6 else ""
    tail = (
        f'<span style="float:right">{rng.choice(["›", "…", str(rng.randint(1, 99))])}</span>'
        if rng.random() < 0.3
        else ""
    )
    draft.blocks.append(
        f'<div id="{name}" data-pf="row" data-name="{escape(text)}" style="cursor:pointer;padding:{rng.randint(1, 5)}px;{line}">{icon}{escape(text)}{tail}</div>'
    )
    return name


def heading(draft: Draft, text: str) -> None:
    tag = draft.rng.choice(["h2", "h3", "h4", "p", "b"])
    draft.blocks.append(f"<{tag} style='margin:3px 0'>{escape(text)}</{tag}>")


def prose(draft: Draft) -> None:
    draft.blocks.append(f"<p>{escape(words.sentence(draft.rng, draft.rng.randint(3, 14)))}</p>")


def text_field(draft: Draft, text: str, kind: str = "text") -> str:
    """A labelled input; returns the id of the input."""
    rng, name = draft.rng, draft.new_id()
    width = rng.randint(50, 140)
    value = ""
    style = draft.style()
    size = f"width:{width}px;max-width:96%"
    if kind == "textarea":
        field_html = (
            f'<textarea id="{name}" style="{size};height:{rng.randint(22, 44)}px;{style}"></textarea>'
        )
    else:
        field_html = f'<input type="{kind}" id="{name}" value="{value}" style="{size};{style}">'
    match rng.randrange(4):
        case 0:
            draft.blocks.append(f'<div><label for="{name}">{escape(text)}</label><br>{field_html}</div>')
        case 1:
            draft.blocks.append(f'<div><label for="{name}">{escape(text)}:</label> {field_html}</div>')
        case 2:
            marked = field_html.replace("<input ", f'<input placeholder="{escape(text)}" ', 1).replace(
                "<textarea ", f'<textarea placeholder="{escape(text)}" ', 1
            )
            draft.blocks.append(f"<div>{marked}</div>")
        case _:
            draft.blocks.append(f"<div><label>{escape(text)} {field_html}</label></div>")
    return name


def option_box(draft: Draft, text: str, kind: str, group: str) -> str:
    """A checkbox or radio button with its label; returns the id of the box."""
    name = draft.new_id()
    box = f'<input type="{kind}" id="{name}" name="{group}">'
    label = f'<label for="{name}">{escape(text)}</label>'
    order = f"{box}{label}" if draft.rng.random() < 0.85 else f"{label} {box}"
    draft.blocks.append(f"<div>{order}</div>")
    return name


CLICKABLE: dict[str, Callable[[Draft, str], str]] = {"button": button, "link": link, "item": row}


def clutter(draft: Draft, texts: list[str]) -> None:
    """Widgets that are only in the way."""
    for text in texts:
        match draft.rng.randrange(6):
            case 0:
                heading(draft, text)
            case 1:
                prose(draft)
            case 2:
                text_field(draft, text)
            case 3:
                option_box(draft, text, "checkbox", "x")
            case 4:
                link(draft, text)
            case _:
                button(draft, text)


def page(draft: Draft) -> str:
    """The document of a finished draft, in a random dress."""
    rng = draft.rng
    back, ink = ("white", "black") if rng.random() < 0.4 else palette(rng, rng.random() < 0.25)
    size = rng.choice([8, 9, 10, 10, 11, 12, 13, 14, 16, 18])
    gap = rng.randint(0, 6)
    css = (
        f"body{{margin:{rng.randint(0, 8)}px;width:{rng.randint(146, 160)}px;background:{back};color:{ink};"
        f'font:{size}px "{rng.choice(FONTS)}";line-height:{rng.uniform(1.0, 1.45):.2f}}}'
        f"p{{margin:{gap}px 0}}body>*{{margin-bottom:{gap}px}}"
        f"button,input,select,textarea{{font-size:{rng.choice([size, size, max(8, size - 1), 11])}px}}"
    )
    if rng.random() < 0.5:
        css += "button,input,select,textarea{font-family:inherit}"
    if "hsl" in back and rng.random() < 0.8:
        css += f"a{{color:{ink}}}"
    top = f"<div style='height:{rng.randint(0, 60)}px'></div>" if rng.random() < 0.3 else ""
    body = "\n".join(draft.blocks)
    script = RUNTIME + "\n".join(draft.script)
    return f"<!doctype html><meta charset=utf-8><style>{css}</style><body>{top}{body}<script>(()=>{{{script}}})()</script>"


def element(name: str) -> str:
    """JavaScript for the element with this id."""
    return f"document.getElementById('{name}')"


# ---- tasks ------------------------------------------------------------------------------------------

CLICK_WORDS = {
    "button": (
        'Click on the "{0}" button.',
        'Click the "{0}" button.',
        'Press "{0}".',
        "Press {0}.",
        'Click on "{0}".',
        "Click {0}.",
        'Press the button "{0}".',
        "Push the {0} button.",
        'Click button "{0}".',
        'Click the button labelled "{0}".',
    ),
    "link": (
        'Click on the link "{0}".',
        'Click the link "{0}".',
        'Follow the "{0}" link.',
        'Click on "{0}".',
        'Open the link "{0}".',
        'Go to "{0}".',
    ),
    "item": (
        'Select "{0}".',
        "Select {0}.",
        'Click on "{0}".',
        'Open "{0}".',
        'Choose "{0}" in the list.',
        "Pick {0}.",
    ),
}


def click_scene(rng: random.Random, seed: int) -> Scene:
    """Click one named thing among others."""
    draft = Draft(rng)
    kind = rng.choices(list(CLICKABLE), (6, 3, 3))[0]
    count = rng.randint(1, 8)
    texts = words.distinct_labels(count + 3, rng)
    target_at = rng.randrange(count)
    target = ""
    for i in range(count):
        if i == target_at:
            target = CLICKABLE[kind](draft, texts[i])
        elif rng.random() < 0.7:
            CLICKABLE[kind](draft, texts[i])
        else:
            clutter(draft, [texts[i]])
    if rng.random() < 0.4:
        draft.blocks.insert(0, f"<h3 style='margin:2px 0'>{escape(texts[-1])}</h3>")
    draft.script.append(f"$('{target}').addEventListener('click', () => {{{message(rng)}}});")
    instruction = rng.choice(CLICK_WORDS[kind]).format(texts[target_at])

    async def expert(s: Screen) -> Steps:
        yield click(await s.target(element(target)))
        yield done()

    return Scene("page-click", seed, instruction, page(draft), expert)


FILL_WORDS = (
    'Enter "{value}" into the {field} field',
    'Type "{value}" into "{field}"',
    'Enter "{value}" into {field}',
    'Fill in "{value}" as {field}',
    'Write "{value}" in the field "{field}"',
    'Set {field} to "{value}"',
    'Put "{value}" in the {field} box',
)


def fill_scene(rng: random.Random, seed: int) -> Scene:
    """Fill one to three named fields, then press a button."""
    draft = Draft(rng)
    asked = rng.choices((1, 2, 3), (6, 3, 1))[0]
    extra = rng.randint(0, 2)
    texts = words.distinct_labels(asked + extra + 3, rng, 2)
    fields = []
    for i in range(asked + extra):
        kind = rng.choices(("text", "password", "textarea"), (8, 1, 1))[0]
        fields.append((text_field(draft, texts[i], kind), texts[i], words.entry(rng)))
        if rng.random() < 0.15:
            prose(draft)
    wanted = rng.sample(fields, asked)
    caption = rng.choice(["Submit", "Save", "OK", "Send", "Login", "Go", "Apply", texts[-1]])
    submit = button(draft, caption)
    if rng.random() < 0.3:
        clutter(draft, [texts[-2]])
    test = " && ".join(f"$('{name}').value === {json.dumps(value)}" for name, _, value in wanted)
    draft.script.append(
        f"$('{submit}').addEventListener('click', () => {{ if ({test}) {message(rng, wanted[0][2])}; }});"
    )
    parts = [rng.choice(FILL_WORDS).format(value=value, field=text) for _, text, value in wanted]
    parts[1:] = [part[0].lower() + part[1:] for part in parts[1:]]
    ending = rng.choice(
        [" and press {0}.", ' and click "{0}".', ", then press {0}.", ' and click the "{0}" button.']
    )
    instruction = ", ".join(parts) + ending.format(caption)

    async def expert(s: Screen) -> Steps:
        for name, _, value in wanted:
            yield click(await s.target(element(name)))
            yield type_text(value)
        yield click(await s.target(element(submit)))
        yield done()

    return Scene("page-fill", seed, instruction, page(draft), expert)


def check_scene(rng: random.Random, seed: int) -> Scene:
    """Tick some boxes (or one radio button), then press a button."""
    draft = Draft(rng)
    count = rng.randint(2, 6)
    radio = rng.random() < 0.35
    texts = words.distinct_labels(count + 2, rng, 2)
    boxes = [
        (option_box(draft, texts[i], "radio" if radio else "checkbox", "g"), texts[i]) for i in range(count)
    ]
    wanted = rng.sample(boxes, 1 if radio else rng.randint(1, min(3, count)))
    caption = rng.choice(["Submit", "Save", "OK", "Confirm", texts[-1]])
    submit = button(draft, caption)
    test = " && ".join(
        f"$('{name}').checked === {str((name, text) in wanted).lower()}" for name, text in boxes
    )
    draft.script.append(f"$('{submit}').addEventListener('click', () => {{ if ({test}) {message(rng)}; }});")
    listed = ", ".join(text for _, text in wanted)
    verb = rng.choice(["Select {0}", "Check {0}", "Tick {0}", "Choose {0}"])
    ending = rng.choice([" and press {0}.", ' and click "{0}".', " and click {0}."])
    instruction = verb.format(listed) + ending.format(caption)

    async def expert(s: Screen) -> Steps:
        for name, _ in wanted:
            if not await s.js(f"{element(name)}.checked"):
                yield click(await s.target(element(name)))
        yield click(await s.target(element(submit)))
        yield done()

    return Scene("page-check", seed, instruction, page(draft), expert)


SCENES: dict[str, tuple[Callable[[random.Random, int], Scene], float]] = {
    "page-click": (click_scene, 4),
    "page-fill": (fill_scene, 3),
    "page-check": (check_scene, 2),
}


def make_scene(seed: int, task: str | None = None) -> Scene:
    """The scene of a seed, the same every time; `task` picks one kind. Raises `ValueError` for an unknown kind."""
    rng = random.Random(f"scene:{task}:{seed}")
    if task is None:
        task = rng.choices(list(SCENES), [weight for _, weight in SCENES.values()])[0]
    if task not in SCENES:
        raise ValueError(f"There is no procedural task {task!r}; use one of {', '.join(SCENES)}.")
    return SCENES[task][0](rng, seed)


__all__ = ["SCENES", "Scene", "Unreachable", "make_scene"]
