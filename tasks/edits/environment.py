"""Edit tasks to be measured on: one ground for each package, its tasks by seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pilotfish.sandbox import Files, Sandbox, SandboxError, SandboxSpec
from pilotfish.tasks.edits.expert import answer, script
from pilotfish.tasks.edits.family import EditTask, Ground, make_ground, make_task
from pilotfish.tasks.edits.sources import name_of, read_package
from pilotfish.tasks.edits.trees import judge
from pilotfish.tasks.environment import End, Grade, StartError
from pilotfish.tasks.environment_fields import EditsEnvironment
from pilotfish.tools.base import ToolResult

_FAULTS = 24
"""More than a ground to train on has, so that a measurement has as many places to mend."""
_LEFT = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".git")


@lru_cache(maxsize=8)
def measured_ground(package: str) -> Ground:
    """The ground of a package, by import name or folder. Raises `ValueError`."""
    return make_ground(name_of(package), read_package(package), "measured", _FAULTS)


def task_of(fields: EditsEnvironment) -> EditTask:
    """The task that an environment stands for. Raises `ValueError`."""
    return make_task(measured_ground(fields.package), fields.seed, fields.edit)


def solution_of(fields: EditsEnvironment) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """The calls of the expert, (tool, arguments) each, and its final message."""
    ground, task = measured_ground(fields.package), task_of(fields)
    return list(_calls(ground, task, random.Random(fields.seed))), answer(task)


def _calls(ground: Ground, task: EditTask, draw: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    moves = script(ground, task, draw)
    result: ToolResult | None = None
    while True:
        try:
            move = next(moves) if result is None else moves.send(result)
        except StopIteration:
            return
        yield move.tool, dict(move.arguments)
        result = ToolResult(True, "ok")


class Edits:
    """A package in the workspace, and the verdict by its syntax trees."""

    def __init__(self, name: str, fields: EditsEnvironment) -> None:
        self._name, self._fields = name, fields

    def sandbox_spec(self) -> SandboxSpec:
        return SandboxSpec(desktop=False)

    def screen(self, box: Sandbox) -> None:
        return None

    async def start(self, box: Sandbox) -> str:
        try:
            write_files(box.files, measured_ground(self._fields.package).files)
            return task_of(self._fields).instruction
        except (ValueError, SandboxError, OSError) as error:
            raise StartError(f"{self._name} cannot be started: {error}") from error

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def grade(self, box: Sandbox, end: End) -> Grade:
        await box.shell.end_all()
        ground, task = measured_ground(self._fields.package), task_of(self._fields)
        try:
            wrong = judge(ground.files, ground.wanted(task), files_in(box.files))
        except (SandboxError, OSError) as error:
            wrong = f"{self._name} cannot be graded: {error}"
        how = f"{task.places} places in {task.files} files" if task.kind == "rename" else "One place"
        return Grade(float(not wrong), not wrong, wrong or f"{how}, and nothing else has changed.")


def write_files(files: Files, texts: Mapping[str, str]) -> None:
    """Put texts into a workspace."""
    for path, text in texts.items():
        files.write_bytes(path, text.encode())


def files_in(files: Files) -> dict[str, bytes]:
    """What a workspace holds, without what programs leave behind; what cannot be read, such as a link
    out of it, is empty.
    """
    found: dict[str, bytes] = {}
    folders = ["."]
    while folders:
        folder = folders.pop()
        for entry in files.list(folder):
            path = entry.name if folder == "." else f"{folder}/{entry.name}"
            if entry.name in _LEFT:
                continue
            if entry.kind == "folder":
                folders.append(path)
                continue
            try:
                found[path] = files.read_bytes(path)
            except SandboxError:
                found[path] = b""
    return found
