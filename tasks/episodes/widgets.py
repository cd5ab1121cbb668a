"""Widgets of procedural pages: each adds HTML to a draft and returns the id of what a person acts on."""

from __future__ import annotations

import html
import json
import random
from dataclasses import dataclass, field

from pilotfish.tasks.episodes import words

ICONS = "★ ☆ ☰ ✉ ⚙ ▸ ● ✓ ♥ ♦ ♣ ♠ ✎ ✂ ☎ ⌂ ☼ ☾ ♫ ⚑ ⚠ ∞ → ← ↑ ↓ ↻ + − × ÷ # @ & ?"
CLOSERS = ("×", "x", "✕", "X", "✖")


def escape(text: str) -> str:
    """HTML text."""
    return html.escape(text, quote=True)


def palette(rng: random.Random, dark: bool) -> tuple[str, str]:
    """A background and an ink that can be read on it."""
    hue, saturation = rng.randrange(360), rng.randrange(0, 90)
    if dark:
        back = f"hsl({hue},{saturation}%,{rng.randrange(12, 42)}%)"
        return back, f"hsl({hue},{saturation // 3}%,{rng.randrange(88, 101)}%)"
    back = f"hsl({hue},{saturation}%,{rng.randrange(84, 101)}%)"
    return back, f"hsl({rng.randrange(360)},{saturation // 2}%,{rng.randrange(0, 26)}%)"


@dataclass
class Draft:
    """A page being written: blocks of HTML, the script, and ids handed out in order.

    `needed` are the ids a person must see at once; a page that does not show them is not played.
    """

    rng: random.Random
    blocks: list[str] = field(default_factory=list)
    script: list[str] = field(default_factory=list)
    needed: list[str] = field(default_factory=list)
    count: int = 0

    def new_id(self) -> str:
        """A fresh element id."""
        self.count += 1
        return f"w{self.count}"

    def add(self, block: str) -> None:
        """Append a block."""
        self.blocks.append(block)

    def on(self, name: str, code: str, event: str = "click") -> None:
        """Run JavaScript when something happens to an element."""
        self.script.append(f"$('{name}').addEventListener('{event}', (event) => {{{code}}});")

    def style(self, chance: float = 0.45) -> str:
        """An inline style for one widget: often none."""
        rng = self.rng
        if rng.random() > chance:
            return ""
        back, ink = palette(rng, rng.random() < 0.4)
        parts = [f"background:{back}", f"color:{ink}"]
        if rng.random() < 0.6:
            parts.append(f"border:{rng.randint(1, 2)}px solid {rng.choice(['#888', '#444', '#bbb', ink])}")
        if rng.random() < 0.6:
            parts.append(f"border-radius:{rng.randint(0, 9)}px")
        if rng.random() < 0.5:
            parts.append(f"padding:{rng.randint(1, 6)}px {rng.randint(2, 12)}px")
        return ";".join(parts)


def reach(rng: random.Random, name: str = "") -> str:
    """JavaScript that marks the goal as reached and shows a plain message."""
    text = rng.choice(
        [
            "Saved",
            "Done",
            "Thank you",
            "Success",
            "OK, done",
            "Finished",
            "Completed",
            "All set",
            "Done!",
            "Sent",
        ]
    )
    if name and rng.random() < 0.4:
        text = f"Thank you, {name}"
    place = ""
    if rng.random() < 0.5:
        back, ink = palette(rng, rng.random() < 0.4)
        place = f"background:{back};color:{ink};"
    return f"reach({json.dumps(text)},{json.dumps(place)},{rng.randrange(3)})"


def button(draft: Draft, text: str) -> str:
    """A push button of one of several makes."""
    rng, name = draft.rng, draft.new_id()
    make = rng.choice(["button", "button", "button", "input", "div"])
    if make == "input":
        block = f'<input type="button" id="{name}" value="{escape(text)}" style="{draft.style()}">'
    elif make == "div":
        back, ink = palette(rng, rng.random() < 0.6)
        look = (
            f"display:inline-block;cursor:pointer;background:{back};color:{ink};"
            f"padding:{rng.randint(2, 5)}px {rng.randint(4, 10)}px;border-radius:{rng.randint(0, 6)}px"
        )
        block = f'<div role="button" data-pf="button" id="{name}" style="{look}">{escape(text)}</div>'
    else:
        icon = rng.choice(ICONS.split()) + " " if rng.random() < 0.12 else ""
        block = (
            f'<button id="{name}" data-name="{escape(text)}" '
            f'style="{draft.style()}">{icon}{escape(text)}</button>'
        )
    draft.add(block if rng.random() < 0.6 else f"<div>{block}</div>")
    return name


def link(draft: Draft, text: str) -> str:
    """A link, alone or inside a sentence."""
    rng, name = draft.rng, draft.new_id()
    before = words.sentence(rng, rng.randint(1, 6)) if rng.random() < 0.6 else ""
    after = " ".join(words.word(rng) for _ in range(rng.randint(1, 6))) if rng.random() < 0.6 else ""
    draft.add(f'<p>{escape(before)} <a id="{name}" href="#">{escape(text)}</a> {escape(after)}</p>')
    draft.on(name, "event.preventDefault()")
    return name


def row(draft: Draft, text: str) -> str:
    """A line of a list that can be clicked."""
    rng, name = draft.rng, draft.new_id()
    icon = rng.choice(ICONS.split()) + " " if rng.random() < 0.5 else ""
    line = "border-bottom:1px solid #bbb;" if rng.random() < 0.6 else ""
    tail = ""
    if rng.random() < 0.3:
        tail = f'<span style="float:right">{rng.choice(["›", "…", str(rng.randint(1, 99))])}</span>'
    look = f"cursor:pointer;padding:{rng.randint(1, 5)}px;{line}"
    draft.add(
        f'<div id="{name}" data-pf="row" data-name="{escape(text)}" '
        f'style="{look}">{icon}{escape(text)}{tail}</div>'
    )
    return name


def tile(draft: Draft, text: str) -> str:
    """A square with an icon above its name."""
    rng, name = draft.rng, draft.new_id()
    back, ink = palette(rng, rng.random() < 0.4)
    size = rng.randint(34, 52)
    look = (
        f"display:inline-block;cursor:pointer;width:{size}px;overflow:hidden;text-align:center;vertical-align:top;"
        f"background:{back};color:{ink};margin:2px;padding:2px;border-radius:{rng.randint(0, 8)}px"
    )
    icon = f'<div style="font-size:{rng.randint(14, 22)}px">{rng.choice(ICONS.split())}</div>'
    draft.add(
        f'<div id="{name}" data-pf="icon" data-name="{escape(text)}" '
        f'style="{look}">{icon}{escape(text)}</div>'
    )
    return name


def heading(draft: Draft, text: str) -> None:
    """A heading; nothing happens when it is clicked."""
    tag = draft.rng.choice(["h2", "h3", "h4", "p", "b"])
    draft.add(f"<{tag} style='margin:3px 0'>{escape(text)}</{tag}>")


def prose(draft: Draft) -> None:
    """A sentence or two of plain text."""
    draft.add(f"<p>{escape(words.sentence(draft.rng, draft.rng.randint(3, 14)))}</p>")


def text_field(draft: Draft, text: str, kind: str = "text", value: str = "") -> str:
    """A labelled field (`text`, `password`, `textarea`); returns the id of the field itself."""
    rng, name = draft.rng, draft.new_id()
    look = f"width:{rng.randint(50, 140)}px;max-width:96%;{draft.style()}"
    layout = rng.randrange(4)
    hint = f' placeholder="{escape(text)}"' if layout == 2 and not value else ""
    if kind == "textarea":
        look += f";height:{rng.randint(22, 44)}px"
        box = (
            f'<textarea id="{name}"{hint} data-name="{escape(text)}" '
            f'style="{look}">{escape(value)}</textarea>'
        )
    else:
        box = (
            f'<input type="{kind}" id="{name}"{hint} data-name="{escape(text)}" value="{escape(value)}" '
            f'style="{look}">'
        )
    caption = escape(text)
    if hint:
        draft.add(f"<div>{box}</div>")
    elif layout == 0:
        draft.add(f'<div><label for="{name}">{caption}</label><br>{box}</div>')
    elif layout == 1:
        draft.add(f'<div><label for="{name}">{caption}:</label> {box}</div>')
    else:
        draft.add(f"<div><label>{caption} {box}</label></div>")
    return name


def option_box(draft: Draft, text: str, kind: str, group: str) -> str:
    """A checkbox or radio button with its label; returns the id of the box."""
    name = draft.new_id()
    box = f'<input type="{kind}" id="{name}" name="{group}">'
    caption = f'<label for="{name}">{escape(text)}</label>'
    if draft.rng.random() < 0.4:
        inner = f'<label><input type="{kind}" id="{name}" name="{group}">{escape(text)}</label>'
    else:
        inner = f"{box}{caption}" if draft.rng.random() < 0.85 else f"{caption} {box}"
    draft.add(f"<div>{inner}</div>")
    return name


def clutter(draft: Draft, texts: list[str]) -> None:
    """Widgets that are only in the way, one for each text."""
    for text in texts:
        match draft.rng.randrange(8):
            case 0:
                heading(draft, text)
            case 1:
                prose(draft)
            case 2:
                text_field(draft, text)
            case 3:
                option_box(draft, text, draft.rng.choice(["checkbox", "radio"]), "x")
            case 4:
                link(draft, text)
            case 5:
                row(draft, text)
            case _:
                button(draft, text)


def element(name: str) -> str:
    """JavaScript for the element with this id."""
    return f"document.getElementById('{name}')"
