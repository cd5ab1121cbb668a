"""What a study is made of: trainings and looks at checkpoints, each with a seed and a result of its own."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.model.folder import find_folder
from pilotfish.model.training.journal import NoNumber
from pilotfish.model.training.settings import TrainingError
from pilotfish.model.training.studies.catalog import (
    SCALES,
    Measure,
    Study,
    Variant,
    measures_of,
    slug,
)
from pilotfish.model.training.studies.measure import Checkpoint, Measured
from pilotfish.model.training.studies.trial import Trial

RESULTS, TRIALS = "results", "trials"
SEQUENCES = 2  # that a checkpoint is shown per seed


@dataclass(frozen=True)
class Plan:
    """What all trainings in a folder share. steps: of each training; text: what Python's sources are here."""

    scale: str
    device: str
    steps: int
    text_tokens: int
    text: str


@dataclass(frozen=True)
class Job(ABC):
    """One thing to do, with one seed."""

    name: str
    seed: int

    @property
    def id(self) -> str:
        """What its files are called."""
        return f"{self.name}-{self.seed}"

    def result(self, out: Path) -> Path:
        """The file that is there when it is done."""
        return out / RESULTS / f"{self.id}.json"

    def folder(self, out: Path) -> Path:
        """Where it works."""
        return out / TRIALS / self.id

    @abstractmethod
    def work(self, plan: Plan) -> float:
        """About how long it takes, in a unit that all jobs of its kind share."""

    @abstractmethod
    def values(self, plan: Plan, out: Path, beside: int) -> dict[str, Any]:
        """Do it, or what is left of it; what is to be kept. Raises `Stopped` when a signal ends it.

        beside: how many jobs there are at once.
        """

    def play(self, plan: Plan, out: Path, beside: int = 1) -> None:
        """Do it and write its result, which appears when it is whole."""
        row = {"seed": self.seed, "beside": beside} | self.values(plan, out, beside)
        path = self.result(out)
        with room(out):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".tmp")
            draft.write_text(json.dumps(row) + "\n", encoding="utf-8")
            draft.replace(path)


@dataclass(frozen=True)
class Training(Job):
    """A variant with a seed, for every study that asks for it."""

    variant: Variant

    def work(self, plan: Plan) -> float:
        # Rows in a step, and as many for launching it, which takes a small model half of the time.
        scale = SCALES[plan.scale]
        rows = sum(phase.share * phase.tasks for phase in self.variant.phases) * scale.task_rows
        launching = scale.text_rows + scale.task_rows
        return launching + scale.text_rows + (rows if self.variant.task != "none" else 0)

    def values(self, plan: Plan, out: Path, beside: int) -> dict[str, Any]:
        scale = SCALES[plan.scale]
        trial = Trial(self.variant, scale, self.seed, plan.steps, self.folder(out), plan.device, beside)
        try:
            trial.train()
        except NoNumber as error:
            return {"failed": str(error)}
        measured = Measured(trial.trained().model, self.variant, scale, plan.device)
        return trial.times() | {"values": measured.all(measures_of(self.variant))}


@dataclass(frozen=True)
class Look(Job):
    """What the attention of a checkpoint does with the agent's screens, or with text."""

    checkpoint: str
    measure: Measure
    what: str

    def work(self, plan: Plan) -> float:
        return 1.0

    def values(self, plan: Plan, out: Path, beside: int) -> dict[str, Any]:
        model = Checkpoint(find_folder(self.checkpoint), plan.device)
        return {"values": {self.measure: model.measured(self.measure, self.what, self.seed, SEQUENCES)}}


@dataclass(frozen=True)
class Line:
    """A line of a study's table: what it is called there, and its jobs, one per seed."""

    label: str
    jobs: tuple[Job, ...]


def lines(study: Study, checkpoints: tuple[str, ...], seeds: int) -> list[Line]:
    """What a study compares: its variants, or checkpoints."""
    if not checkpoints:
        return [
            Line(one.name, tuple(Training(one.arm, seed, one) for seed in range(seeds)))
            for one in study.variants
        ]
    measure = study.measures[0]
    found = []
    for name in checkpoints:
        own = find_folder(name).name
        for what in ("screens",) if measure == "maps" else ("screens", "text"):
            called = slug(f"{own}-{measure}-{what}")
            jobs = tuple(Look(called, seed, name, measure, what) for seed in range(seeds))
            found.append(Line(f"{own}, {what}", jobs))
    return found


@contextlib.contextmanager
def room(out: Path) -> Iterator[None]:
    """One sentence where a study's folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{out} cannot be written ({error.strerror}); free some room. What is finished stays, and "
            "--resume goes on."
        ) from error
