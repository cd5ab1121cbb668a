"""From the setting `model` to something that answers."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from pilotfish.agent.settings import Settings
from pilotfish.model.protocol import Model, ModelError
from pilotfish.tasks.format import Task

ModelFor = Callable[[Task | None], Model]
"""The model that plays a task; None is an instruction without a task file."""


def open_model(settings: Settings) -> ModelFor:
    """Load what `settings.model` names. Raises `ModelError` with the mend when it is not there.

    The weights are loaded once; every task gets the same model, except that a solution belongs to its task.
    """
    if settings.model == "solution":
        return _solution
    if difflib.get_close_matches(settings.model, ["solution"]) and not Path(settings.model).exists():
        raise ModelError(f"there is no model {settings.model!r}; the nearest is 'solution'.")
    from pilotfish.model.engine import Engine

    engine = Engine(settings.model, attention=settings.attention)
    return lambda task: engine


def _solution(task: Task | None) -> Model:
    from pilotfish.agent.solution import solution_model

    if task is None:
        raise ModelError("An instruction has no reference solution; choose a task file or another --model.")
    return solution_model(task)


def model_name(settings: Settings) -> str:
    """What reports call the model: `nano`, `solution`, or the name of the checkpoint's folder."""
    return settings.model if settings.model in ("nano", "solution") else Path(settings.model).name
