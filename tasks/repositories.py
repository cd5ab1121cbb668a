"""Repository tasks: the source of an installed package as a git repository, changed so that there is work.

Nothing of the packages is kept here: what is installed is copied when a task starts, and inside the sandbox
the package itself is hidden.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import lru_cache
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec
from pilotfish.tasks.clean import last_line, run_clean
from pilotfish.tasks.environment import End, Grade, StartError
from pilotfish.tasks.environment_fields import RepositoryEnvironment
from pilotfish.tasks.format import Task
from pilotfish.tasks.fresh import WorkError, patch_of, start_work
from pilotfish.tasks.graders import grade
from pilotfish.tasks.python_inside import SITE, installed, python_inside
from pilotfish.tasks.work import Work, changed

_WHY = "for the repository tasks"
_PROGRAMS = "/opt/programs"
_COMMAND_S = 60.0
_LEFT_OUT = (".so", ".pyc", ".pyd", ".dll")


def repository_trouble(name: str, fields: RepositoryEnvironment) -> str | None:
    """Why this machine cannot play a repository task, as one sentence; None if it can."""
    try:
        found = installed(fields.package, _WHY)
        installed("pytest", _WHY)
        for program in fields.programs:
            _program(program)
    except SandboxError as error:
        return f"{name}: {error}"
    if found.version != fields.version:
        wish = f"{fields.package}=={fields.version}"
        return f"{name} is made of {wish}, and {found.version} is installed: pip install {wish}"
    return None


class Repository:
    """One package as a repository, and a verdict by tests on a fresh copy with the model's patch."""

    def __init__(self, task: Task, fields: RepositoryEnvironment) -> None:
        self._task, self._fields = task, fields
        self._files: dict[str, bytes] = {}
        self._base = b""

    def sandbox_spec(self) -> SandboxSpec:
        mounts, env = python_inside(("pytest", self._fields.package), _WHY)
        own = {path for path in mounts if path in _tops(self._fields.package)}
        mounts = {path: inner for path, inner in mounts.items() if path not in own}
        for name in self._fields.programs:
            if (found := _program(name)) is not None:
                mounts[found] = f"{_PROGRAMS}/{name}"
        env["PYTHONPATH"] = f"/workspace/src:{SITE}"
        env["PATH"] = f"{env['PATH']}:{_PROGRAMS}"
        return SandboxSpec(desktop=False, read_only=mounts, env=env)

    def screen(self, box: Sandbox) -> None:
        return None

    async def start(self, box: Sandbox) -> str:
        try:
            self._read()
            await start_work(box, self._base)
        except (WorkError, SandboxError, ValueError, OSError) as error:
            raise StartError(f"{self._task.name} cannot be started: {error}") from error
        for command in self._task.setup.commands:
            exit_code, said, wrong = await run_clean(box, command, _COMMAND_S)
            if exit_code != 0:
                why = last_line(wrong or said)[-200:]
                raise StartError(f"{self._task.name}: the command {command[:60]!r} failed, saying {why!r}.")
        return self._task.instruction.strip()

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def grade(self, box: Sandbox, end: End) -> Grade:
        await box.shell.end_all()
        try:
            self._read()
            patch = await patch_of(box, self._base)
        except (WorkError, SandboxError, ValueError, OSError) as error:
            return Grade(0.0, False, f"{self._task.name} cannot be graded: {error}")
        work = Work(box, self._files, self._base, patch)
        found = await grade(self._task.graders, box, end, work=work)
        product = {"instance_id": self._task.name, "model_patch": patch}
        return Grade(found.score, found.passed, found.reason, product)

    def _read(self) -> None:
        """Read the package and make the task's changes, once."""
        if self._base:
            return
        self._files = source_of(self._fields) | {
            name: text.encode() for name, text in self._task.setup.files.items()
        }
        self._base = _tar(self._files)


def source_of(fields: RepositoryEnvironment) -> dict[str, bytes]:
    """The files that a task begins with, {path: content}, with its changes made.

    Raises `ValueError` for a change that does not fit, and `SandboxError` where the package is missing.
    """
    found = installed(fields.package, _WHY)
    files: dict[str, bytes] = {}
    for file in found.files or ():
        path = PurePosixPath(file)
        source = Path(str(found.locate_file(file)))
        if ".dist-info" in path.parts[0]:
            if "licen" in path.name.lower() or path.name.startswith(("COPYING", "NOTICE")):
                files[path.name] = source.read_bytes()
        elif not (".." in path.parts or "__pycache__" in path.parts or path.suffix in _LEFT_OUT) and (
            not fields.only or any(fnmatch(str(path), pattern) for pattern in fields.only)
        ):
            files[f"src/{path}"] = source.read_bytes()
    for change in fields.changes:
        if change.path not in files:
            raise ValueError(f"{fields.package} has no file {change.path}")
        files[change.path] = changed(files[change.path], change)
    return files


@lru_cache
def _tops(package: str) -> frozenset[Path]:
    found: Distribution = installed(package, _WHY)
    return frozenset(Path(str(found.locate_file(PurePosixPath(file).parts[0]))) for file in found.files or ())


def _program(name: str) -> Path | None:
    """Where a program lies that the sandbox does not have by itself. Raises `SandboxError`."""
    if name == "node":
        spec = find_spec("playwright")
        found = spec and spec.origin and Path(spec.origin).parent / "driver" / "node"
        if not found or not found.is_file():
            raise SandboxError(f"node is missing, it is needed {_WHY}: pip install playwright")
        return found
    if shutil.which(name, path="/usr/local/bin:/usr/bin:/bin") is None:
        raise SandboxError(f"{name} is missing, it is needed {_WHY}: apt-get install {name}")
    return None


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
