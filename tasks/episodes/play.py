"""Play one episode: let an expert act on a screen and keep every frame, label and step."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pilotfish.tasks.episodes.catalog import make_scene
from pilotfish.tasks.episodes.cdp import PageError
from pilotfish.tasks.episodes.experts import EXPERTS
from pilotfish.tasks.episodes.pages import Frame, MiniWob, Screen, Unreachable
from pilotfish.tasks.episodes.shards import Episode
from pilotfish.tasks.episodes.steps import Expert, Step

MAX_STEPS = 24
# Tasks whose page must be loaded anew for each episode: state of the last one would show in the next.
RELOADED: frozenset[str] = frozenset()
# Tasks that a click on an empty spot does not end or change.
FORGIVING = frozenset(
    {
        "click-checkboxes",
        "click-checkboxes-large",
        "click-checkboxes-soft",
        "click-collapsible",
        "click-option",
        "enter-password",
        "enter-text",
        "enter-text-dynamic",
        "find-word",
        "form-sequence-2",
        "login-user",
        "multi-layouts",
        "read-table",
        "search-engine",
        "simple-algebra",
        "simple-arithmetic",
        "text-transform",
        "visual-addition",
        "use-autocomplete-nodelay",
    }
)
SLIP_SHARE = 0.05
FONTS = (
    "DejaVu Sans",
    "DejaVu Serif",
    "Liberation Sans",
    "Liberation Serif",
    "DejaVu Sans Mono",
    "Nimbus Roman",
)


@dataclass(frozen=True)
class Options:
    """How episodes are played.

    augment: now and then another font, zoom or place of the page, and slips.
    watched: the share of episodes whose clicks are also pictured with the button held down.
    """

    augment: bool = True
    watched: float = 0.0


def begun(screen: Screen, task: str, seed: int, instruction: str) -> Episode:
    """An episode of which nothing is recorded yet."""
    size = screen.view.pixel_width, screen.view.pixel_height
    return Episode(task, seed, instruction, success=False, width=size[0], height=size[1])


def add_frame(episode: Episode, frame: Frame) -> int:
    """Append a frame with its labels; returns its index."""
    episode.frames.append(frame.png)
    episode.widgets.append([(w[0], w[1], w[2], w[3], w[4], w[5]) for w in frame.widgets])
    xy = frame.xy
    episode.letters.append([(c, xy[2 * i], xy[2 * i + 1]) for i, c in enumerate(frame.chars)])
    return len(episode.frames) - 1


def augmentation(rng: random.Random) -> str:
    """CSS that now and then changes the font, the zoom or the place of a page; mostly none."""
    if rng.random() > 0.2:
        return ""
    match rng.randrange(3):
        case 0:
            return f'*{{font-family:"{rng.choice(FONTS)}"!important}}'
        case 1:
            return f"#wrap{{zoom:{rng.uniform(0.9, 1.05):.3f}}}"
        case _:
            return f"body{{margin:{rng.uniform(0, 4):.1f}px 0 0 {rng.uniform(0, 8):.1f}px!important}}"


async def slip(screen: Screen) -> Step | None:
    """A deliberate slip that does no harm: a click on an empty spot, or a move of the mouse to one."""
    spot = await screen.blank_point()
    kind = screen.rng.choice(["left_click", "left_click", "mouse_move"])
    return None if spot is None else Step({"action": kind, "coordinate": spot}, None, train=False)


async def follow(screen: Screen, expert: Expert, episode: Episode, options: Options, slips: bool) -> None:
    """Carry out an expert's steps, a frame before each; now and then a slip comes first."""
    watch = screen.rng.random() < options.watched
    if slips and options.augment and screen.rng.random() < SLIP_SHARE:
        first = await slip(screen)
        if first is not None:
            await take(screen, episode, first, watch)
    async for step in expert(screen):
        if len(episode.steps) >= MAX_STEPS:
            raise Unreachable("too many steps")
        await take(screen, episode, step, watch)


async def take(screen: Screen, episode: Episode, step: Step, watch: bool) -> None:
    """Record the screen and the step, then carry the step out."""
    row = {"frame": add_frame(episode, await screen.capture()), **record(step)}
    episode.steps.append(row)
    seen = await screen.act(step.action, watch)
    if seen is not None:
        row["mid"] = len(episode.frames)
        episode.frames.append(seen)
        episode.widgets.append([])
        episode.letters.append([])


def record(step: Step) -> dict[str, object]:
    """A step as the shard holds it."""
    return {"action": step.action, "train": step.train, "box": step.box}


async def play_miniwob(
    screen: Screen, web: MiniWob, task: str, seed: int, options: Options, *, fresh: bool = True
) -> Episode:
    """Play one MiniWoB++ episode; `success` says whether the page rewarded it."""
    screen.rng = random.Random(f"{task}:{seed}")
    style = augmentation(screen.rng) if options.augment else ""
    await web.start(screen, task, seed, style, fresh)
    episode = begun(screen, task, seed, screen.utterance)
    try:
        await follow(screen, EXPERTS[task], episode, options, slips=task in FORGIVING)
    except (Unreachable, PageError):
        return episode
    episode.success = (await web.reward(screen) or 0) > 0
    return episode


async def play_scene(screen: Screen, seed: int, options: Options, task: str | None = None) -> Episode:
    """Play one procedural page; the page itself says whether its goal is reached."""
    scene = make_scene(seed, task)
    screen.rng = random.Random(f"scene:{seed}")
    episode = begun(screen, scene.task, seed, scene.instruction)
    try:
        await scene.show(screen)
        await follow(screen, scene.expert, episode, options, slips=True)
    except (Unreachable, PageError):
        return episode
    episode.success = await reached(screen)
    return episode


async def reached(screen: Screen) -> bool:
    """Whether the goal of the procedural page that is shown is reached."""
    return bool(await screen.page.evaluate("window.__pfGoal === true"))
