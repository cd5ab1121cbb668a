"""Edit tasks as `pilotfish code` plays work: the same words before them, the same tools."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.bench_report import Plan
from pilotfish.agent.code import TOOLS
from pilotfish.agent.code_prompt import first_prompt
from pilotfish.agent.prefix import LAYOUT, RepositoryPrefix
from pilotfish.agent.project_tests import NO_TESTS
from pilotfish.agent.whole_file import write_whole
from pilotfish.model.protocol import Model
from pilotfish.sandbox import Files, Sandbox
from pilotfish.tasks.edits.environment import Edits, measured_ground
from pilotfish.tasks.edits.sources import HELD_OUT, name_of
from pilotfish.tasks.environment_fields import EditsEnvironment
from pilotfish.tasks.format import Limits, Task
from pilotfish.tasks.reader import TaskError

SUITE = "edits"
LAYOUTS = "layouts"
"""The folder in a run's that holds what was laid out, each as DIGEST.json."""
_LIMITS = Limits(steps=40, seconds=3600.0, tokens=40_000)


def edit_prompt(instruction: str, package: str, files: Files) -> str:
    """What stands behind the repository in the first turn."""
    return first_prompt(
        instruction, name=package, at="", before=None, no_tests=NO_TESTS, notes=(), files=files
    )


def plan_edits(packages: Sequence[str], *, episodes: int, seed: int, tokens: int) -> Plan:
    """A plan for packages by import name or folder; none means those held out from training.

    Raises `TaskError` for a package that is not there, that has no place for an edit, or two of one name.
    """
    names = list(packages) or list(HELD_OUT)
    tasks: list[str] = []
    for package in names:
        try:
            kinds = measured_ground(package).kinds()
        except ValueError as error:
            raise TaskError(str(error)) from None
        if not kinds:
            raise TaskError(f"{package} has no place for an edit; name a larger package.")
        tasks += [f"{package}/{kind}" for kind in kinds]
    ids = [_id_of(package) for package in names]
    if twice := next((name for name in ids if ids.count(name) > 1), None):
        raise TaskError(f"Two packages are called {twice}; measure them one after the other.")
    return Plan(SUITE, tuple(tasks), episodes, seed, tokens=tokens)


def edits_task(name: str, tokens: int) -> Task:
    """The task called PACKAGE/KIND in a plan, with the first seed."""
    package, _, kind = name.rpartition("/")
    environment = EditsEnvironment.model_validate(
        {"kind": "edits", "package": package, "edit": kind, "tokens": tokens}
    )
    return Task(
        id=f"{_id_of(package)}-{kind}",
        suite=SUITE,
        tools=list(TOOLS),
        environment=environment,
        limits=_LIMITS,
    )


def _id_of(package: str) -> str:
    """A package's name in the letters of a task's id."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name_of(package)).strip("._-")[:60] or "package"


class EditWork(Edits):
    """The environment of an edit task, in the words of `pilotfish code`."""

    def __init__(self, name: str, fields: EditsEnvironment) -> None:
        super().__init__(name, fields)
        self._package = name_of(fields.package)

    async def start(self, box: Sandbox) -> str:
        return edit_prompt(await super().start(box), self._package, box.files)


@dataclass(frozen=True)
class Room:
    """Folders of one episode: its workspace, and what is kept of its repository. A context manager."""

    folder: Path

    @classmethod
    def make(cls) -> Room:
        room = cls(Path(tempfile.mkdtemp(prefix="pilotfish-edits-")))
        room.workspace.mkdir()
        room.kept.mkdir()
        return room

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def kept(self) -> Path:
        return self.folder / "kept"

    def prefix(self, events: log.EventLog, model: Model, budget: int) -> RepositoryPrefix:
        """What stands before the task: the same bytes for all tasks of a package, so it is computed once."""
        return RepositoryPrefix(self.workspace, events, model, budget, keep=self.kept)

    def keep_layout(self, run: Path) -> None:
        """Keep what was laid out in the run's folder, once for all episodes with the same, by its digest.

        Raises `LogError` where there is no room.
        """
        laid = self.kept / LAYOUT
        if laid.is_file():
            data = laid.read_bytes()
            kept = run / LAYOUTS / f"{hashlib.sha256(data).hexdigest()}.json"
            try:
                kept.parent.mkdir(exist_ok=True)
                write_whole(kept, data)
            except OSError as error:
                raise log.LogError(
                    f"Cannot write {kept} ({error.strerror}); free some space, then go on with --resume."
                ) from error

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: Any) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
