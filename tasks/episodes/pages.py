"""A page an episode is played on: geometry, MiniWoB++ and procedural starts, actions, labels.

Coordinates of actions are M3's grid (0..1000 of the device pixels of a frame); the page itself works in CSS
pixels. `VIEW` is that of MiniWoB++, 336 x 420 at device scale 2.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.tasks.episodes.cdp import BrowserError, Page, View
from pilotfish.tasks.episodes.keys import MODIFIERS, key_events

VIEW = View()
WHEEL_STEP = 53.0  # CSS pixels a wheel click scrolls in Chromium on X11
WAIT_S = 0.4  # what a `wait` takes here, whatever its duration: these pages need no longer
_SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")

TRAIN_SEEDS = range(900_000)
VALIDATION_SEEDS = range(900_000, 1_000_000)
HELD_OUT_TASKS = frozenset(
    {
        "click-test-transfer",
        "click-checkboxes-transfer",
        "click-dialog-2",
        "click-color",
        "enter-text-2",
        "login-user-popup",
        "multi-orderings",
        "social-media-some",
        "email-inbox-noscroll",
        "use-slider-2",
    }
)
# The click marker and the score board lie outside the task; hidden, they cannot make a page scroll sideways.
HUD_STYLE = "#reward-display,#click-canvas{display:none!important}"

Box = tuple[float, float, float, float]
Action = dict[str, Any]


def to_grid(pixel: int, size: int) -> int:
    """The smallest grid value g with int(g * size / 1000) == pixel, within 0..999."""
    pixel = min(max(pixel, 0), size - 1)
    return min(-(-pixel * 1000 // size), 999)


def from_grid(grid: int, size: int) -> int:
    """The device pixel a grid value names, as M3's reference does it."""
    return min(int(grid * size / 1000), size - 1)


def check_task(task: str, seed: int) -> None:
    """Refuse what evaluation measures: raises `ValueError` for held-out tasks and seeds."""
    if task in HELD_OUT_TASKS:
        raise ValueError(f"The task {task!r} is held out for evaluation; choose another one.")
    if seed not in TRAIN_SEEDS and seed not in VALIDATION_SEEDS:
        raise ValueError(f"The seed {seed} is held out for evaluation; use 0 to {VALIDATION_SEEDS[-1]}.")


@dataclass(frozen=True)
class Target:
    """Something to click: its visible box and a point inside it that reaches it, in CSS pixels of a view."""

    box: Box
    x: float
    y: float
    view: View = VIEW

    @property
    def grid(self) -> list[int]:
        """The point on the model's grid."""
        return grid_point(self.x, self.y, self.view)

    @property
    def device_box(self) -> list[int]:
        """The box in device pixels of the frame."""
        return [round(v * self.view.scale) for v in self.box]


def script_for(view: View) -> str:
    """What runs first in every document that is shown in a view."""
    return f"window.__pfView={json.dumps([view.shown_width, view.shown_height, view.scale])};{_SCRIPT}"


SCRIPT = script_for(VIEW)


def grid_point(x: float, y: float, view: View = VIEW) -> list[int]:
    """A point in CSS pixels on the model's grid."""
    scale = view.scale
    return [to_grid(int(x * scale), view.pixel_width), to_grid(int(y * scale), view.pixel_height)]


def pixel_point(grid: list[int], view: View = VIEW) -> tuple[int, int]:
    """The device pixel that a grid point names."""
    return from_grid(grid[0], view.pixel_width), from_grid(grid[1], view.pixel_height)


def css_point(grid: list[int], view: View = VIEW) -> tuple[float, float]:
    """The CSS position of the device pixel that a grid point names."""
    x, y = pixel_point(grid, view)
    return x / view.scale, y / view.scale


@dataclass
class Frame:
    """One captured screen with its labels (see `shards.Episode`)."""

    png: bytes
    widgets: list[list[Any]]
    chars: list[str]
    xy: list[int]


class Screen:
    """A page with a mouse and a keyboard, as an expert sees it."""

    def __init__(self, page: Page, rng: random.Random, view: View = VIEW) -> None:
        self.page = page
        self.rng = rng
        self.view = view
        self.utterance = ""
        self.fields: dict[str, Any] = {}
        self._held = 0
        self._watch = False
        self._seen: bytes | None = None

    async def js(self, expression: str) -> Any:
        """The JSON value of an expression in the page; `pf` is the helper library of page.js."""
        return await self.page.evaluate(f"(()=>{{const pf=window.__pf;return {expression}}})()")

    async def target(self, expression: str, inset: float = 0) -> Target:
        """A clickable point of the element a JavaScript expression gives; `Unreachable` if there is none."""
        found = await self.js(f"pf.target({expression},{inset})")
        if not found:
            raise Unreachable(f"nothing visible for {expression}")
        x0, y0, x1, y1 = found["box"]
        return Target((x0, y0, x1, y1), found["x"], found["y"], self.view)

    async def capture(self) -> Frame:
        """The screen as it is, with its labels."""
        labels = await self.page.evaluate("__pf.labels()")
        png = await self.page.capture()
        return Frame(png, labels["widgets"], labels["chars"], labels["xy"])

    async def act(self, action: Action, watch: bool = False) -> bytes | None:
        """Carry out one action and let the page come to rest; raises `ValueError` for an unknown action.

        With `watch`, a click gives the picture (PNG) of the moment when the button is held down.
        """
        self._watch, self._seen = watch, None
        await self._perform(action)
        await self.page.evaluate("__pf.settle()")
        return self._seen

    async def _perform(self, action: Action) -> None:
        match action["action"]:
            case "left_click":
                await self._click(action["coordinate"], 1, action.get("text", ""))
            case "double_click":
                await self._click(action["coordinate"], 2)
            case "mouse_move":
                self.move(*css_point(action["coordinate"], self.view))
                await self.page.draw()
            case "left_click_drag":
                await self._drag(action["start_coordinate"], action["coordinate"])
            case "scroll":
                await self._scroll(action)
            case "type":
                await self._keys([event for c in action["text"] for event in key_events(c)])
            case "key":
                await self._keys(key_events(action["text"]))
            case "wait":
                await asyncio.sleep(WAIT_S)
            case "done":
                pass
            case "infeasible":  # a procedural page on which that is right counts it as its goal
                await self.page.evaluate("window.__pfGiveUp?.()")
            case other:
                raise ValueError(f"There is no action {other!r}; use one of the computer tool's actions.")

    async def reset_mouse(self) -> None:
        """Put the pointer somewhere: mostly outside the region, sometimes over the page."""
        view = self.view
        if self.rng.random() < 0.6 and view == VIEW:
            x, y = 240.0, 218.0
        else:
            x, y = self.rng.uniform(0, view.shown_width), self.rng.uniform(0, view.shown_height)
        self.move(x, y)

    def move(self, x: float, y: float, buttons: int = 0) -> None:
        """Move the pointer to a CSS position; seen by the page with the next frame."""
        self._mouse_event("mouseMoved", x, y, "left" if buttons else "none", buttons, 0)

    def _mouse_event(self, kind: str, x: float, y: float, button: str, buttons: int, count: int) -> Any:
        params: dict[str, Any] = {
            "type": kind,
            "x": x,
            "y": y,
            "button": button,
            "buttons": buttons,
            "clickCount": count,
        }
        params["modifiers"] = self._held
        future = self.page.post("Input.dispatchMouseEvent", params)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    async def _click(self, grid: list[int], count: int, held: str = "") -> None:
        x, y = css_point(grid, self.view)
        self._held = MODIFIERS[held][0] if held else 0
        self.move(x, y)
        future = None
        for n in range(1, count + 1):
            self._mouse_event("mousePressed", x, y, "left", 1, n)
            if self._watch and n == 1:
                self._seen = await self.page.capture()
            future = self._mouse_event("mouseReleased", x, y, "left", 0, n)
        self._held = 0
        if future is not None:
            await self._taken(future)

    async def _drag(self, start: list[int], end: list[int]) -> None:
        x0, y0 = css_point(start, self.view)
        x1, y1 = css_point(end, self.view)
        self.move(x0, y0)
        await self._taken(self._mouse_event("mousePressed", x0, y0, "left", 1, 1))
        steps = 6
        for i in range(1, steps + 1):
            self.move(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps, 1)
            await self.page.draw()
        await self._taken(self._mouse_event("mouseReleased", x1, y1, "left", 0, 1))

    async def _scroll(self, action: Action) -> None:
        x, y = css_point(action["coordinate"], self.view)
        amount = WHEEL_STEP * action.get("scroll_amount", 1)
        dx, dy = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[action["scroll_direction"]]
        params = {"type": "mouseWheel", "x": x, "y": y, "deltaX": dx * amount, "deltaY": dy * amount}
        self.move(x, y)
        await self._taken(self.page.post("Input.dispatchMouseEvent", params), 0.004)
        await self.page.draw()

    async def _keys(self, events: list[dict[str, Any]]) -> None:
        futures = [self.page.post("Input.dispatchKeyEvent", event) for event in events]
        for future in futures:
            await self._taken(future)

    async def _taken(self, future: asyncio.Future[dict[str, Any]], patience_s: float = 0.05) -> None:
        """Wait until the page has handled an input event; some are held back until a frame is drawn."""
        for _ in range(100):
            done, _ = await asyncio.wait({future}, timeout=patience_s)
            if done:
                future.result()
                return
            await self.page.draw()
        raise BrowserError("The page did not take an input event while a hundred frames were drawn.")

    async def blank_point(self) -> list[int] | None:
        """A random grid point where a click does nothing, or None when ten tries found none."""
        for _ in range(10):
            x = self.rng.uniform(2, self.view.shown_width - 12)
            y = self.rng.uniform(60, self.view.shown_height - 3)
            if await self.js(f"pf.blank({x:.1f},{y:.1f})"):
                return grid_point(x, y, self.view)
        return None


class Unreachable(Exception):
    """An expert cannot find or reach its target; the episode is dropped."""


class MiniWob:
    """Starts MiniWoB++ episodes from the html folder of the `miniwob` package.

    measures: also those that evaluation keeps for itself, of which nothing may be kept to train on.
    """

    def __init__(self, root: Path, *, measures: bool = False) -> None:
        self._measures = measures
        root = root.resolve()
        html = root / "html" if (root / "html").is_dir() else root
        if not (html / "miniwob" / "click-test.html").is_file():
            raise ValueError(f"{root} holds no MiniWoB++ pages; give the folder of the miniwob package.")
        self._html = html

    def url(self, task: str) -> str:
        """The address of a task's page; raises `ValueError` for an unknown task."""
        path = self._html / "miniwob" / f"{task}.html"
        if not path.is_file():
            raise ValueError(f"MiniWoB++ has no task {task!r}; see the names in {path.parent}.")
        return path.as_uri()

    async def start(self, screen: Screen, task: str, seed: int, style: str = "", fresh: bool = True) -> None:
        """Start an episode; `fresh` loads the page anew, else the page that is shown starts once more."""
        if not self._measures:
            check_task(task, seed)
        if fresh:
            await screen.page.navigate(self.url(task))
        expression = f"__pf.start({seed},{json.dumps(HUD_STYLE + style)})"
        said = await screen.page.evaluate(expression)
        await screen.reset_mouse()
        if isinstance(said, dict):
            screen.utterance, screen.fields = str(said["utterance"]), dict(said.get("fields") or {})
        else:
            screen.utterance, screen.fields = str(said), {}

    @staticmethod
    async def reward(screen: Screen) -> float | None:
        """The undecayed reward when the episode is over, else None."""
        value = await screen.page.evaluate("WOB_DONE_GLOBAL ? WOB_RAW_REWARD_GLOBAL : null")
        return None if value is None else float(value)
