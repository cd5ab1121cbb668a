"""Endless pages of our own: random widgets, words, fonts and layouts, each with a task and its expert.

A page is one HTML text whose script watches for the goal, sets `window.__pfGoal` and shows a plain message;
the expert's last action is `done`. The kinds of task are in scenes_*.py, their list in catalog.py.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from pilotfish.tasks.episodes.pages import VIEW, Screen, Unreachable
from pilotfish.tasks.episodes.stages import Stage
from pilotfish.tasks.episodes.steps import Expert
from pilotfish.tasks.episodes.widgets import Draft, escape, palette

FONTS = (
    ("Arial", 5),
    ("sans-serif", 2),
    ("serif", 1),
    ("monospace", 1),
    ("DejaVu Sans", 1),
    ("DejaVu Serif", 1),
    ("DejaVu Sans Mono", 1),
    ("DejaVu Sans Condensed", 1),
    ("Liberation Serif", 1),
    ("Liberation Mono", 1),
    ("Nimbus Sans", 1),
    ("Nimbus Roman", 1),
)
# The script every page begins with: `reach` shows that the goal is reached, for real and for good.
RUNTIME = """
window.__pfGoal = false;
const $ = (id) => document.getElementById(id);
const reach = (message, look, where) => {
  if (window.__pfGoal) return;
  window.__pfGoal = true;
  const note = document.createElement('div');
  note.textContent = message;
  note.style.cssText = 'padding:3px 4px;font-weight:bold;' + look;
  if (where === 0) document.body.replaceChildren(note);
  else if (where === 1) document.body.prepend(note);
  else {
    note.style.cssText += ';position:fixed;left:0;top:0;width:160px;z-index:99';
    if (!look) note.style.background = '#dfd';
    document.body.append(note);
  }
  scrollTo(0, 0);
};
"""


@dataclass
class Scene:
    """A page with its task: the whole document, and the ids that must be visible at the start.

    remembers: the expert must not be asked anew in the midst of the task (see `expert_tools.expert`).
    flows: its blocks flow, so that it may be wider. framed: on a larger screen it is a window's content.
    """

    task: str
    seed: int
    instruction: str
    html: str
    expert: Expert
    needed: list[str]
    remembers: bool = True
    flows: bool = False
    framed: bool = True

    async def show(self, screen: Screen) -> None:
        """Put the page on the screen in place of whatever was there; `Unreachable` if it shows too little."""
        html = self.html
        if screen.view != VIEW:
            rng = random.Random(f"stage:{self.task}:{self.seed}")
            stage = Stage(
                rng, screen.view, f"{self.instruction} {html}", flows=self.flows, framed=self.framed
            )
            html = html.replace("<body>", f"{stage.html()}<body>", 1)
        await screen.page.evaluate(
            f"(()=>{{window.__pfGiveUp=null;document.open();document.write({json.dumps(html)});document.close();"
            f"document.activeElement?.blur?.();__pf.seed({self.seed * 7919 + 1});scrollTo(0,0)}})()"
        )
        await screen.reset_mouse()
        ids = json.dumps(self.needed)
        if not await screen.js(f"{ids}.every((id)=>pf.shown(document.getElementById(id)))"):
            raise Unreachable("the page is longer than the screen")


def compose(task: str, seed: int, draft: Draft, instruction: str, expert: Expert) -> Scene:
    """The scene of a finished draft."""
    page = document(draft, instruction)
    return Scene(task, seed, instruction, page, expert, draft.needed, flows=True)


def document(draft: Draft, instruction: str) -> str:
    """The document of a finished draft, in a random dress."""
    rng = draft.rng
    back, ink = ("white", "black") if rng.random() < 0.45 else palette(rng, rng.random() < 0.25)
    size = (
        rng.choice([8, 9, 10, 10, 10, 11, 12, 13, 14, 16, 18])
        if len(draft.blocks) < 6
        else rng.choice([8, 9, 10, 11])
    )
    gap = rng.randint(0, 6)
    font = rng.choices([name for name, _ in FONTS], [weight for _, weight in FONTS])[0]
    css = [
        f"body{{margin:0;width:160px;min-height:210px;background:{back};color:{ink};"
        f'font:{size}px "{font}";line-height:{rng.uniform(1.0, 1.45):.2f}}}',
        f"#main{{padding:{rng.randint(0, 8)}px;{layout(rng)}}}",
        f"p{{margin:{gap}px 0}}#main>*{{margin-bottom:{gap}px}}",
        f"button,input,select,textarea{{font-size:{rng.choice([size, size, max(8, size - 1), 11])}px}}",
        ".hide{display:none!important}",
    ]
    if '"serif"' in css[0] or '"monospace"' in css[0] or '"sans-serif"' in css[0]:
        css[0] = css[0].replace(f'"{font}"', font)
    if rng.random() < 0.5:
        css.append("button,input,select,textarea{font-family:inherit}")
    if back != "white" and rng.random() < 0.8:
        css.append(f"a{{color:{ink}}}")
    if rng.random() < 0.2:
        css.append("button{min-width:70px}")
    page = "white" if rng.random() < 0.7 else "#555"
    css.append(f"html{{background:{back if rng.random() < 0.5 else page}}}")
    top = ""
    if rng.random() < 0.35:
        bar, text = ("#FF0", "black") if rng.random() < 0.5 else palette(rng, rng.random() < 0.3)
        look = f"background:{bar};color:{text};padding:3px;font-size:{rng.choice([9, 10, 10, 11])}px"
        top = f'<div style="{look};min-height:{rng.randint(0, 44)}px">{escape(instruction)}</div>'
    elif rng.random() < 0.25:
        top = f"<div style='height:{rng.randint(0, 50)}px'></div>"
    body = "\n".join(draft.blocks)
    script = RUNTIME + "\n".join(draft.script)
    return (
        f'<!doctype html><meta charset="utf-8"><style>{"".join(css)}</style>'
        f"<body>{top}<div id=main>{body}</div><script>(()=>{{{script}}})()</script>"
    )


def layout(rng: random.Random) -> str:
    """How the blocks of a page are arranged."""
    match rng.randrange(6):
        case 0:
            return "text-align:center"
        case 1:
            return "display:flex;flex-wrap:wrap;gap:4px;align-items:flex-start"
        case 2:
            line = rng.choice(["#ccc", "#888", "#000"])
            return f"margin:{rng.randint(2, 6)}px;border:1px solid {line};border-radius:{rng.randint(0, 8)}px"
        case 3:
            return "display:flex;flex-direction:column;align-items:flex-end" if rng.random() < 0.3 else ""
        case _:
            return ""
