"""What is recorded how often: a JSON object of task: weight, and under `sizes` further sizes of screens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pilotfish.tasks.episodes.catalog import SCENES
from pilotfish.tasks.episodes.cdp import View
from pilotfish.tasks.episodes.experts import EXPERTS
from pilotfish.tasks.episodes.pages import check_task

SCENE_TASK = "procedural"
SIZES = "sizes"


@dataclass(frozen=True)
class Size:
    """Another size of screen than MiniWoB++'s: the share of episodes that have it, and of which tasks."""

    view: View
    share: float
    tasks: str  # a pattern as of a shell, such as desk-*

    def takes(self, task: str) -> bool:
        """Whether a task is played on it; those of MiniWoB++ have a size of their own."""
        return (task == SCENE_TASK or task in SCENES) and fnmatchcase(task, self.tasks)


def read_sizes(path: Path | None) -> tuple[Size, ...]:
    """The sizes of screens besides MiniWoB++'s, from `sizes` of a mix; raises `ValueError` for wrong ones."""
    rows = [] if path is None else _read(path).get(SIZES, [])
    if not isinstance(rows, list):
        raise ValueError(f"The {SIZES} of {path} are {rows!r}; write a list.")
    sizes = []
    for row in rows:
        if not isinstance(row, dict) or row.keys() != {"size", "share", "tasks"}:
            raise ValueError(f"{row!r} in {path} is no size; give it size, share and tasks.")
        share = row["share"]
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ValueError(f"The share of {row['size']!r} in {path} is {share!r}; use a number of 0 to 1.")
        sizes.append(Size(View.of(str(row["size"])), float(share), str(row["tasks"])))
        if not any(weight > 0 and sizes[-1].takes(task) for task, weight in read_mix(path).items()):
            raise ValueError(
                f"The tasks {row['tasks']!r} in {path} are none of ours with a weight; name some."
            )
    if sum(size.share for size in sizes) > 1:
        raise ValueError(f"The shares of the {SIZES} in {path} are more than 1 together; give less.")
    return tuple(sizes)


def _read(path: Path) -> dict[str, Any]:
    try:
        mix = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The mix {path} cannot be read ({error}); write a JSON object of task: weight."
        ) from error
    if not isinstance(mix, dict) or not mix:
        raise ValueError(f"The mix {path} is no JSON object of task: weight.")
    return mix


def default_mix() -> dict[str, float]:
    """Every task with an expert once, and as many procedural pages as MiniWoB++ episodes."""
    mix = dict.fromkeys(EXPERTS, 1.0)
    mix[SCENE_TASK] = float(len(mix))
    return mix


def read_mix(path: Path | None) -> dict[str, float]:
    """Task weights from a JSON object; raises `ValueError` for unknown or held-out tasks."""
    if path is None:
        return default_mix()
    mix = {task: weight for task, weight in _read(path).items() if task != SIZES}
    for task, weight in mix.items():
        known = task == SCENE_TASK or task in SCENES or task in EXPERTS
        if not known:
            check_task(task, 0)
            raise ValueError(f"The mix names {task!r}, for which there is no expert.")
        if not isinstance(weight, int | float) or weight < 0:
            raise ValueError(f"The weight of {task!r} is {weight!r}; use a number of at least 0.")
    if not any(mix.values()):
        raise ValueError(f"Every weight in {path} is 0; give at least one task a weight.")
    return {task: float(weight) for task, weight in mix.items()}
