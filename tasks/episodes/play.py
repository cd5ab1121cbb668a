"""Play one episode: let an expert act on a screen and keep every frame, label and step."""

from __future__ import annotations

import random

from pilotfish.tasks.episodes.catalog import make_scene
from pilotfish.tasks.episodes.cdp import PageError
from pilotfish.tasks.episodes.experts import EXPERTS
from pilotfish.tasks.episodes.pages import Frame, MiniWob, Screen, Unreachable
from pilotfish.tasks.episodes.shards import Episode
from pilotfish.tasks.episodes.steps import Expert, Step

MAX_STEPS = 24
# Tasks whose page must be loaded anew for each episode: state of the last one would show in the next.
RELOADED: frozenset[str] = frozenset()
FONTS = (
    "DejaVu Sans",
    "DejaVu Serif",
    "Liberation Sans",
    "Liberation Serif",
    "DejaVu Sans Mono",
    "Nimbus Roman",
)


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


def blank_click(screen: Screen) -> Step:
    """A slip that does no harm: a click near the lower edge, where pages are mostly empty, or a mouse move."""
    rng = screen.rng
    spot = [rng.randint(5, 940), rng.randint(930, 990)]
    return Step({"action": rng.choice(["left_click", "mouse_move"]), "coordinate": spot}, None, train=False)


async def follow(screen: Screen, expert: Expert, episode: Episode, slip: Step | None) -> None:
    """Carry out an expert's steps, a frame before each; a slip comes first and is marked not to be imitated."""
    if slip is not None:
        episode.steps.append({"frame": add_frame(episode, await screen.capture()), **record(slip)})
        await screen.act(slip.action)
    steps = expert(screen)
    async for step in steps:
        if len(episode.steps) >= MAX_STEPS:
            raise Unreachable("too many steps")
        episode.steps.append({"frame": add_frame(episode, await screen.capture()), **record(step)})
        await screen.act(step.action)


def record(step: Step) -> dict[str, object]:
    """A step as the shard holds it."""
    return {"action": step.action, "train": step.train, "box": step.box}


async def play_miniwob(
    screen: Screen, web: MiniWob, task: str, seed: int, *, fresh: bool = True, augment: bool = True
) -> Episode:
    """Play one MiniWoB++ episode; `success` says whether the page rewarded it."""
    screen.rng = random.Random(f"{task}:{seed}")
    style = augmentation(screen.rng) if augment else ""
    await web.start(screen, task, seed, style, fresh)
    episode = Episode(task, seed, screen.utterance, success=False)
    try:
        await follow(screen, EXPERTS[task], episode, None)
    except (Unreachable, PageError):
        return episode
    episode.success = (await web.reward(screen) or 0) > 0
    return episode


async def play_scene(screen: Screen, seed: int, task: str | None = None, *, augment: bool = True) -> Episode:
    """Play one procedural page; the page itself says whether its goal is reached."""
    scene = make_scene(seed, task)
    screen.rng = random.Random(f"scene:{seed}")
    episode = Episode(scene.task, seed, scene.instruction, success=False)
    slip = (
        blank_click(screen) if augment and scene.task != "page-click" and screen.rng.random() < 0.05 else None
    )
    try:
        await scene.show(screen)
        await follow(screen, scene.expert, episode, slip)
    except (Unreachable, PageError):
        return episode
    episode.success = bool(await screen.page.evaluate("window.__pfGoal === true"))
    return episode
