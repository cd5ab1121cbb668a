"""All kinds of procedural task, and the scene of a seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from pilotfish.tasks.episodes import (
    scenes_click,
    scenes_desktop,
    scenes_form,
    scenes_lists,
    scenes_more,
    scenes_site,
)
from pilotfish.tasks.episodes.procedural import Scene

# Kind -> (its maker, its weight among those drawn without a name; with 0 a mix has to name it).
SCENES: dict[str, tuple[Callable[[random.Random, int], Scene], float]] = {
    **scenes_click.SCENES,
    **scenes_form.SCENES,
    **scenes_more.SCENES,
    **scenes_site.SCENES,
    **scenes_lists.SCENES,
    **scenes_desktop.SCENES,
}


def make_scene(seed: int, task: str | None = None) -> Scene:
    """The scene of a seed, always the same; `task` picks one kind, `ValueError` if there is none such."""
    rng = random.Random(f"scene:{task}:{seed}")
    if task is None:
        task = rng.choices(list(SCENES), [weight for _, weight in SCENES.values()])[0]
    if task not in SCENES:
        raise ValueError(f"There is no procedural task {task!r}; use one of {', '.join(SCENES)}.")
    return SCENES[task][0](rng, seed)
