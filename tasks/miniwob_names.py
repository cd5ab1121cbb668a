"""The names of the MiniWoB++ tasks, of which class each is, and which of them may only be measured.

Held out: the tasks of `HELD_OUT` with any seed, and every task with a seed of `FIRST_MEASURED_SEED` or more.
Training and tuning use neither; figures are reported on the second and, as zero-shot, on the first.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal, get_args

from pilotfish.tasks.reader import TaskError, read_data

SUITE = "miniwob"
FIRST_MEASURED_SEED = 1_000_000

TaskClass = Literal["click", "multi-click", "type", "select", "drag", "scroll", "date", "long"]


def _read() -> tuple[dict[str, TaskClass], frozenset[str]]:
    data = read_data(Path(__file__).with_name("miniwob.yaml"))
    classes: dict[str, TaskClass] = {
        name: kind for kind in get_args(TaskClass) for name in data["classes"][kind]
    }
    return dict(sorted(classes.items())), frozenset(data["held-out"])


MINIWOB_TASKS, HELD_OUT = _read()
"""`MINIWOB_TASKS`: task name to class, by name. `HELD_OUT`: names measured zero-shot."""


def may_train_on(name: str, seed: int) -> bool:
    """Whether an episode of this task and seed may be used for anything but measuring."""
    return check_name(name) not in HELD_OUT and seed < FIRST_MEASURED_SEED


def measured_seed(episode: int) -> int:
    """The seed of the n-th measured episode, n >= 0."""
    if episode < 0:
        raise TaskError(f"Episode {episode} is negative; count episodes from 0.")
    return FIRST_MEASURED_SEED + episode


def check_name(name: str) -> str:
    """The name, if there is such a task; else `TaskError` with near names."""
    if name in MINIWOB_TASKS:
        return name
    near = difflib.get_close_matches(name, MINIWOB_TASKS, n=3, cutoff=0.5)
    hint = f"the nearest are {', '.join(near)}" if near else "see `pilotfish bench miniwob --list`"
    raise TaskError(f"MiniWoB++ has no task '{name}'; {hint}.")
