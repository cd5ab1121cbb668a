"""Studies in a folder, of which as much is done as time allows.

OUT holds `plan.json` (what all trainings share), `results/` (a small file per training and seed, written as
it ends; all that has to be carried to another machine, with the plan), `trials/` (models, and where a
training stands), and a table and a picture of every study.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pilotfish.model.checkpoint import write_json
from pilotfish.model.training.settings import TrainingError
from pilotfish.model.training.studies import drawn
from pilotfish.model.training.studies.catalog import SCALES, Study
from pilotfish.model.training.studies.jobs import RESULTS, Job, Line, Plan, lines, room
from pilotfish.model.training.studies.lanes import Lanes, say
from pilotfish.model.training.studies.report import picture, table

PLAN = "plan.json"
FEWEST_FILES = 50  # of Python's sources; a machine may have been stripped of them


@dataclass(frozen=True)
class Runner:
    """Studies in a folder. checkpoints: by the name of a study, what it looks at instead of training."""

    studies: Sequence[Study]
    plan: Plan
    out: Path
    seeds: int
    checkpoints: dict[str, tuple[str, ...]]

    def jobs(self) -> list[Job]:
        """All there is to do, each once: every study with the first seed, then with the next."""
        found: dict[str, Job] = {}
        for seed in range(self.seeds):
            for study in self.studies:
                for line in self._lines(study):
                    found.setdefault(line.jobs[seed].id, line.jobs[seed])
        return list(found.values())

    def run(self, parallel: int = 1, seconds: float | None = None) -> None:
        """Do what is not done yet.

        Raises `Stopped` for a signal, `TrainingError` where something failed; what is done is kept.
        """
        todo = [job for job in self.jobs() if not job.result(self.out).exists()]
        say(f"{len(todo)} of {len(self.jobs())} to do, {self.plan.steps} steps in each training")
        lanes = Lanes(self.plan, self.out, parallel, seconds, self.report)
        try:
            lanes.play(todo)
        finally:
            self.report()
        if lanes.failed:
            raise TrainingError(
                f"{', '.join(job.id for job in lanes.failed)} failed, as said above; --resume tries again."
            )
        if left := sum(not job.result(self.out).exists() for job in todo):
            say(f"{left} are left; --resume goes on with {self.out}.")

    def report(self) -> None:
        """Write the table and the picture of every study, of the results there are."""
        for study in self.studies:
            rows = self._rows(study)
            with room(self.out):
                text = table(study, self.plan, self.seeds, rows)
                (self.out / f"{study.name}.md").write_text(text, encoding="utf-8")
                (self.out / f"{study.name}.svg").write_text(picture(study, rows), encoding="utf-8")

    def _lines(self, study: Study) -> list[Line]:
        return lines(study, self.checkpoints.get(study.name, ()), self.seeds)

    def _rows(self, study: Study) -> list[dict[str, Any]]:
        """The study's results, with the values of its own measures alone."""
        rows = []
        for line in self._lines(study):
            for job in line.jobs:
                if not job.result(self.out).exists():
                    continue
                row = _read(job.result(self.out))
                if "values" in row:
                    own = [row["values"].get(measure, {}) for measure in study.measures]
                    row["values"] = {name: value for values in own for name, value in values.items()}
                rows.append(row | {"variant": line.label})
        return rows


def begin(
    studies: Sequence[Study],
    out: Path,
    *,
    scale: str,
    device: str,
    seeds: int,
    steps: int | None,
    checkpoints: dict[str, tuple[str, ...]],
    resume: bool,
) -> Runner:
    """The runner of new studies, or of some to go on with, whose plan is kept.

    Raises `TrainingError` for a folder with a plan that nobody asked to go on with, or another one.
    """
    path = out / PLAN
    if path.exists():
        plan = _plan_to_go_on(path, resume, scale, device, steps)
    else:
        steps = steps or SCALES[scale].steps
        rows = SCALES[scale].text_rows * SCALES[scale].length
        plan = Plan(scale, device, steps, steps * rows, text_here())
        with room(out):
            (out / RESULTS).mkdir(parents=True, exist_ok=True)
            write_json(path, asdict(plan))
    return Runner(studies, plan, out, seeds, checkpoints)


def _plan_to_go_on(path: Path, resume: bool, scale: str, device: str, steps: int | None) -> Plan:
    try:
        plan = Plan(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise TrainingError(f"{path} is no plan of studies ({error}); give another --out.") from error
    out = path.parent
    if not resume:
        raise TrainingError(
            f"{out} holds studies already; --resume goes on with them, or give another --out."
        )
    for name, value in {"scale": scale, "device": device, "steps": steps}.items():
        if value is not None and (was := getattr(plan, name)) != value:
            raise TrainingError(f"--{name} is {value!r}, and {was!r} in {out}; give that, or another --out.")
    if (here := text_here()) != plan.text:
        raise TrainingError(
            f"Python's sources are {here} here, and {plan.text} in {out}: trainings would not meet the same "
            "text; go on with the version of Python that began, or give another --out."
        )
    return plan


def text_here() -> str:
    """What tells Python's sources here from others. Raises `TrainingError` where there are hardly any."""
    files = [path for kept in (False, True) for path in drawn.text_files(kept)]
    if len(files) < FEWEST_FILES or not drawn.text_files(True):
        raise TrainingError(
            f"Python's standard library has {len(files)} source files here, and text is drawn from them; use "
            "a Python that was installed with its sources."
        )
    told = "".join(f"{path.name} {path.stat().st_size}\n" for path in files)
    return f"{len(files)} files, {hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _read(path: Path) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrainingError(
            f"{path} is no result ({error}); remove it, and --resume does it again."
        ) from error
    return row
