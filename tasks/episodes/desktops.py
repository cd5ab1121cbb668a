"""Windows as a desktop's programs have them, drawn on a page: titles, menus, an editor, a terminal, files.

desktop.js plays them. The active window takes the keys, as on a desktop, without any field of the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from pilotfish.tasks.episodes.pages import Screen
from pilotfish.tasks.episodes.procedural import Scene
from pilotfish.tasks.episodes.sites import unless_done
from pilotfish.tasks.episodes.steps import Expert, Steps, click, key, type_text
from pilotfish.tasks.episodes.widgets import Draft, element, escape

STYLE = (Path(__file__).parent / "desktop.css").read_text(encoding="utf-8")
SCRIPT = (Path(__file__).parent / "desktop.js").read_text(encoding="utf-8")
MENUS = ("File", "Edit", "Search", "View", "Document", "Help")


@dataclass
class Desktop(Draft):
    """A desktop being drawn; each program is given as the id of its window, and what else can be acted on.

    `files` are those the programs begin with; a folder's text is None.
    """

    files: dict[str, str | None] = field(default_factory=dict)
    active: str = ""

    def __post_init__(self) -> None:
        rng = self.rng
        self.size = rng.choice((5, 6, 6, 7, 7, 8, 9))  # CSS pixels of letters: half of those on the screen
        hue = rng.choice((215, 215, 215, rng.randrange(360)))
        self.bar = (
            f"linear-gradient(hsl({hue},45%,{rng.randint(62, 72)}%),hsl({hue},45%,{rng.randint(48, 58)}%))"
        )
        self.wall = rng.choice(("#000", "#000", "#000", "#234", f"hsl({rng.randrange(360)},25%,35%)"))
        self.glow = rng.choice(("#eee", "#8f8"))
        self.mono = rng.choice(("DejaVu Sans Mono", "Liberation Mono"))
        self.font = rng.choice(("DejaVu Sans", "DejaVu Sans", "Arial", "DejaVu Sans Condensed"))

    def window(self, title: str, body: str, box: tuple[int, int, int, int], *, title_id: str = "") -> str:
        """A window at (left, top, width, height) in CSS pixels; returns its id."""
        name = self.new_id()
        left, top, width, height = box
        named = f' id="{title_id}"' if title_id else ""
        self.add(
            f'<div id="{name}" class="window" data-pf="window" data-name="{escape(title)}" '
            f'style="left:{left}px;top:{top}px;width:{width}px;height:{height}px">'
            f'<div class="bar"><u{named}>{escape(title)}</u>'
            f"<s>–</s><s>□</s><s>×</s></div>{body}</div>"
        )
        return name

    def menus(
        self, texts: tuple[str, ...], entries: dict[str, list[str]]
    ) -> tuple[str, dict[str, tuple[str, str]]]:
        """A menu bar, and for each entry of `entries` the id of its head and its own."""
        bar, ids = "", {}
        for text in texts:
            head, listed, items = self.new_id(), self.new_id(), ""
            for entry in entries.get(text, []):
                ids[entry] = (head, self.new_id())
                items += f'<div role="menuitem" id="{ids[entry][1]}">{escape(entry)}</div>'
            drop = f'<div id="{listed}" class="list hide">{items}</div>' if items else ""
            bar += f'<span class="head" data-pf="item" data-name="{text}" id="{head}">{text}{drop}</span>'
        return f'<div class="menus">{bar}</div>', ids

    def editor(
        self, file: str, box: tuple[int, int, int, int]
    ) -> tuple[str, str, dict[str, tuple[str, str]]]:
        """A text editor with a file; the ids of its window and its text, and its File menu's entries."""
        body, title = self.new_id(), self.new_id()
        texts = MENUS if box[2] > 24 * self.size * 0.75 else MENUS[:4]
        bar, ids = self.menus(texts, {"File": ["New", "Open…", "Save", "Save As…", "Close"]})
        name = self.window(file, f'{bar}<div id="{body}" class="text"></div>', box, title_id=title)
        self.script.append(f"editor('{name}', '{body}', '{title}', {json.dumps(file)});")
        head = ids["Save"][0]
        commands = "".join(
            f"'{entry}': () => {{{f'wins.{name}.save()' if text == 'Save' else ''}}},"
            for text, (_, entry) in ids.items()
        )
        self.script.append(f"menu('{head}', $('{head}').lastChild.id, {{{commands}}});")
        return name, body, ids

    def terminal(self, box: tuple[int, int, int, int]) -> tuple[str, str]:
        """A terminal; the ids of its window and its text."""
        rng = self.rng
        body = self.new_id()
        dark = " dark" if rng.random() < 0.4 else ""
        prompt = rng.choice(("user@host:~$ ", "$ ", "me@box:/work$ ", "guest:~$ ", "[me@pc ~]$ "))
        name = self.window(
            rng.choice(("Terminal", "xterm", "bash", "me@box")),
            f'<div id="{body}" class="text{dark}"></div>',
            box,
        )
        lines = max(2, int((box[3] - 2 * self.size) / (1.25 * self.size)) - 2)
        self.script.append(f"terminal('{name}', '{body}', {json.dumps(prompt)}, {lines});")
        return name, body

    def calculator(self, box: tuple[int, int, int, int]) -> tuple[str, str, dict[str, str]]:
        """A calculator; the ids of its window and its display, and those of its knobs by their signs."""
        screen = self.new_id()
        knobs, cells = {}, ""
        for sign in "789/456*123-0.=+C":
            knobs[sign] = self.new_id()
            cells += f'<button id="{knobs[sign]}">{sign}</button>'
        bar, _ = self.menus(("File", "Edit", "View", "Help")[: 4 if box[2] > 60 else 3], {})
        name = self.window(
            "Calculator",
            f'{bar}<div id="{screen}" class="screen"></div><div class="knobs">{cells}</div>',
            box,
        )
        self.script.append(
            f"calculator('{name}', '{screen}', {json.dumps({knob: sign for sign, knob in knobs.items()})});"
        )
        return name, screen, knobs

    def manager(self, box: tuple[int, int, int, int]) -> tuple[str, str, str]:
        """A file manager; the ids of its window, its files and the button that says yes to its question."""
        grid, at, frame, text, box_of_name, yes, no = (self.new_id() for _ in range(7))
        bar, _ = self.menus(("File", "Edit", "View", "Go", "Help")[: 5 if box[2] > 90 else 3], {})
        path = f'<div class="path">{self.rng.choice(("/workspace", "/home/me", "/data/papers"))}</div>'
        ask = (
            f'<div id="{frame}" class="ask hide"><p id="{text}"></p>'
            f'<div id="{box_of_name}" class="field"></div>'
            f'<button id="{no}">Cancel</button> <button id="{yes}">OK</button></div>'
        )
        body = f'{bar}{path}<div id="{grid}" class="grid"></div><div id="{at}" class="status"></div>{ask}'
        name = self.window(self.rng.choice(("workspace", "Files", "papers")), body, box)
        parts = {"frame": frame, "text": text, "field": box_of_name, "yes": yes, "no": no}
        self.script.append(f"manager('{name}', '{grid}', '{at}', {json.dumps(parts)});")
        return name, grid, yes

    def document(self, ended: str) -> str:
        """The whole page; `ended` is JavaScript for whether the goal is reached."""
        look = (
            f'body{{font:{self.size}px "{self.font}";--wall:{self.wall};--bar:{self.bar};--glow:{self.glow};'
            f'--mono:"{self.mono}"}}html{{--wall:{self.wall}}}'
        )
        files = f"Object.assign(files, {json.dumps(self.files)});"
        last = f"state.ended = () => {ended}; raise('{self.active}');"
        script = SCRIPT + files + "\n".join(self.script) + last
        return (
            f'<!doctype html><meta charset="utf-8"><style>{STYLE}{look}</style><body>{"".join(self.blocks)}'
            f"<script>(()=>{{{script};window.__pfWins = wins; window.__pfState = state;}})()</script>"
        )


def show(task: str, seed: int, desktop: Desktop, instruction: str, ended: str, expert: Expert) -> Scene:
    """The scene of a finished desktop."""
    html = desktop.document(ended)
    needed, now_done = desktop.needed, unless_done(expert)
    return Scene(task, seed, instruction, html, now_done, needed, remembers=False, framed=False)


async def focus(s: Screen, window: str, place: str) -> Steps:
    """Click into a window unless the keys go to it already."""
    if not await s.js(f"{element(window)}.classList.contains('active')"):
        yield click(await s.target(element(place)))


async def write(s: Screen, window: str, text: str, before: str = "", *, end: str = "") -> Steps:
    """Make the active window's text `before` and then `text`, whatever it holds; `end` is typed behind it."""
    held, chosen = await s.js(f"(()=>{{const t=window.__pfWins.{window}.t;return [t.value,!!t.all]}})()")
    if held == before + text and not end:
        return
    if held == before and (before == "" or not chosen):
        yield type_text(text + end)
        return
    if not chosen:
        yield key("ctrl+a")
    yield type_text(before + text + end)
