"""The MiniWoB++ tasks as tasks of this project."""

from __future__ import annotations

from typing import Literal

from pilotfish.tasks.environment_fields import MiniwobEnvironment
from pilotfish.tasks.format import Task
from pilotfish.tasks.miniwob_names import FIRST_MEASURED_SEED, MINIWOB_TASKS, SUITE, check_name


def miniwob_task(name: str, seed: int = 0, time_limit: Literal["classic", "untimed"] = "untimed") -> Task:
    """One MiniWoB++ task as a `Task`; raises `TaskError` for an unknown name."""
    environment = MiniwobEnvironment(kind="miniwob", task=check_name(name), seed=seed, time_limit=time_limit)
    return Task(id=name, suite=SUITE, environment=environment)


def miniwob_suite() -> list[Task]:
    """All tasks, by name, with the first measured seed."""
    return [miniwob_task(name, FIRST_MEASURED_SEED) for name in MINIWOB_TASKS]
