"""Plays a study trial by trial; what is finished is on disk at once, so that it can be stopped anywhere.

OUT holds `plan.json` (what all trials share), `results.jsonl` (a line per finished trial), `trials/` (models,
and where a trial stands), and the table and the picture of what there is.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pilotfish.model.checkpoint import write_json
from pilotfish.model.device import cpu_threads
from pilotfish.model.folder import find_folder
from pilotfish.model.training.journal import NoNumber, read_log
from pilotfish.model.training.settings import TrainingError
from pilotfish.model.training.studies.catalog import SCALES, Study, Variant
from pilotfish.model.training.studies.measure import Checkpoint, Measured, Values
from pilotfish.model.training.studies.report import picture, table
from pilotfish.model.training.studies.trial import Trial

PLAN, RESULTS, TABLE, PICTURE = "plan.json", "results.jsonl", "table.md", "picture.svg"
SEQUENCES = 2  # that a checkpoint is shown per seed
OVERHEAD_S = 3.0  # of a session: building, the first batch, saving


@dataclass(frozen=True)
class Plan:
    """What all trials of a study share. steps: of text, in each; 0 where nothing is trained."""

    study: str
    scale: str
    device: str
    seeds: int
    steps: int
    text_tokens: int
    checkpoints: tuple[str, ...] = ()


class Runner:
    """A study in a folder."""

    def __init__(self, study: Study, plan: Plan, out: Path):
        self.study, self.plan, self.out = study, plan, out

    def run(self) -> None:
        """Every trial that is not finished, seed by seed.

        Raises `Stopped` for a signal, `TrainingError` for what cannot be gone on from.
        """
        if self.plan.device == "cpu":
            torch.set_num_threads(cpu_threads())
        done = {(row["variant"], row["seed"]) for row in read_rows(self.out)}
        for seed in range(self.plan.seeds):
            if self.plan.checkpoints:
                for name in self.plan.checkpoints:
                    self._look_at(name, seed, done)
                continue
            for variant in self.study.variants:
                if (variant.name, seed) not in done:
                    self._add(self._trial(variant, seed))
        self.report()

    def report(self) -> None:
        """Write the table and the picture of the results there are."""
        rows = read_rows(self.out)
        with room(self.out):
            (self.out / TABLE).write_text(table(self.study, self.plan, rows), encoding="utf-8")
            (self.out / PICTURE).write_text(picture(self.study, rows), encoding="utf-8")

    def _trial(self, variant: Variant, seed: int) -> dict[str, Any]:
        scale = SCALES[self.plan.scale]
        folder = self.out / "trials" / f"{variant.name.replace(' ', '-').replace(',', '')}-{seed}"
        trial = Trial(variant, scale, seed, self.plan.steps, folder, self.plan.device)
        row: dict[str, Any] = {"variant": variant.name, "seed": seed}
        say(f"{variant.name}, seed {seed}: {self.plan.text_tokens:,} tokens of text")
        try:
            trial.train()
        except NoNumber as error:
            return row | {"failed": str(error)}
        measured = Measured(trial.trained().model, variant, scale, self.plan.device)
        return row | {"train_s": trial.train_s(), "values": measured.all(self.study.measures)}

    def _look_at(self, name: str, seed: int, done: set[tuple[str, int]]) -> None:
        folder = find_folder(name)
        model: Checkpoint | None = None
        measure = self.study.measures[0]
        for what in ("screens",) if measure == "maps" else ("screens", "text"):
            part = f"{folder.name}, {what}"
            if (part, seed) in done:
                continue
            model = model or Checkpoint(folder, self.plan.device)
            say(f"{part}, seed {seed}")
            values = model.measured(measure, what, seed, SEQUENCES)
            self._add({"variant": part, "seed": seed, "values": values})

    def _add(self, row: dict[str, Any]) -> None:
        with room(self.out), (self.out / RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.report()
        values: Values = row.get("values", {})
        shown = {k: f"{v:.4g}" for k, v in values.items() if isinstance(v, float | int)}
        say(f"  {row.get('failed') or ', '.join(f'{k} {v}' for k, v in shown.items())}")


def begin(
    study: Study,
    out: Path,
    *,
    scale: str,
    device: str,
    seeds: int,
    seconds: float | None,
    text_tokens: int | None,
    checkpoints: tuple[str, ...],
    resume: bool,
) -> Runner:
    """The runner of a new study, or of one to go on with, whose plan is kept.

    Raises `TrainingError` for a folder that holds another study, or one that nobody asked to go on with.
    """
    if (out / PLAN).exists():
        return Runner(study, _plan_to_go_on(study, out, resume, device, seeds, checkpoints), out)
    sizes = SCALES[scale]
    own = sizes.text_rows * sizes.length
    steps = 0
    if not checkpoints:
        if text_tokens is not None:
            steps = -(-text_tokens // own)
        elif seconds is not None:
            steps = steps_within(seconds, study, scale, device, seeds)
        else:
            steps = sizes.steps
    plan = Plan(study.name, scale, device, seeds, steps, steps * own, checkpoints)
    with room(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / PLAN, asdict(plan))
    return Runner(study, plan, out)


def _plan_to_go_on(
    study: Study, out: Path, resume: bool, device: str, seeds: int, checkpoints: tuple[str, ...]
) -> Plan:
    try:
        data = json.loads((out / PLAN).read_text(encoding="utf-8"))
        plan = Plan(**data | {"checkpoints": tuple(data["checkpoints"])})
    except (ValueError, TypeError, KeyError) as error:
        raise TrainingError(f"{out / PLAN} is no plan of a study ({error}); give another --out.") from error
    if plan.study != study.name:
        raise TrainingError(f"{out} holds the study {plan.study!r}, not {study.name!r}; give another --out.")
    if not resume:
        raise TrainingError(
            f"{out} holds this study already; --resume goes on with it, or give another --out."
        )
    asked = {"device": device, "seeds": seeds, "checkpoints": checkpoints}
    for name, value in asked.items():
        if (was := getattr(plan, name)) != value:
            raise TrainingError(f"--{name} is {value!r}, and {was!r} in {out}; give that, or another --out.")
    return plan


def steps_within(seconds: float, study: Study, scale: str, device: str, seeds: int) -> int:
    """How many steps every trial can have, so that all of them end after so many seconds.

    A step of each phase and the measuring of each variant are tried first, on fresh models.
    """
    begun = time.monotonic()
    per_step, fixed = 0.0, 0.0
    for variant in study.variants:
        trial = Trial(variant, SCALES[scale], 0, 1, Path(), device)
        costs = trial.seconds_of_steps()
        per_step += sum(phase.share * cost for phase, cost in zip(variant.phases, costs, strict=True))
        measuring = time.monotonic()
        Measured(trial.fresh().model, variant, SCALES[scale], device).all(study.measures)
        fixed += time.monotonic() - measuring + OVERHEAD_S * len(variant.phases)
    left = seconds - (time.monotonic() - begun) - seeds * fixed
    steps = int(left / (seeds * per_step))
    say(f"{seconds:g} s leave {steps} steps to each of {seeds * len(study.variants)} trainings")
    if steps < 1:
        need = seconds - left + seeds * per_step * 10
        raise TrainingError(
            f"--seconds is {seconds:g}, and {need:.0f} are needed here; give those, or less --seeds."
        )
    return steps


def read_rows(out: Path) -> list[dict[str, Any]]:
    """The finished trials; a last line that was cut off is removed, so that others may follow."""
    path = out / RESULTS
    rows = read_log(path)
    whole = "".join(json.dumps(row) + "\n" for row in rows)
    if path.exists() and path.read_text(encoding="utf-8") != whole:
        with room(out):
            draft = path.with_suffix(".tmp")
            draft.write_text(whole, encoding="utf-8")
            draft.replace(path)
    return rows


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


def say(text: str) -> None:
    """A line on how far the study is."""
    print(text, file=sys.stderr, flush=True)
