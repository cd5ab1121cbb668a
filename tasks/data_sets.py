"""Suites that are one file of records in a public benchmark's form."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from pilotfish.tasks.explain import explain
from pilotfish.tasks.format import Task
from pilotfish.tasks.humaneval import humaneval_task, is_humaneval
from pilotfish.tasks.reader import TaskError
from pilotfish.tasks.records import SUFFIXES, is_records, read_records
from pilotfish.tasks.swebench import is_swebench, swebench_task

_FORMS = ((is_swebench, swebench_task), (is_humaneval, humaneval_task))


def is_data_set(path: Path) -> bool:
    """Whether a path is a file of records (a `.json` file may be a task file, which is a map)."""
    if not is_records(path):
        return False
    if path.suffix != ".json":
        return True
    with path.open("rb") as file:
        return file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def data_set_tasks(path: Path) -> list[Task]:
    """The tasks of a data set, by id. Raises `TaskError` with the place of the first record that is wrong."""
    try:
        found = path.stat()
    except OSError as error:
        raise TaskError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions."
        ) from None
    return list(_tasks(path, found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=4)
def _tasks(path: Path, changed_ns: int, size: int) -> tuple[Task, ...]:
    """What a file holds, read once for each state of it, since every episode of a measurement asks."""
    suite = suite_name(path)
    tasks: dict[str, Task] = {}
    for place, record in read_records(path):
        make = next((make for is_form, make in _FORMS if is_form(record)), None)
        if make is None:
            raise TaskError(
                f"{place}: neither SWE-bench's fields (instance_id, base_commit) nor HumanEval's (task_id, "
                "entry_point) are there; give a data set of one of these."
            )
        try:
            task = make(record, place, suite)
        except ValidationError as error:
            raise TaskError(f"{place}: {explain(error)}.") from None
        if task.id in tasks:
            raise TaskError(f"{place}: the id '{task.id}' was there before; remove one of the two.")
        tasks[task.id] = task
    return tuple(tasks[name] for name in sorted(tasks, key=_natural))


def suite_name(path: Path) -> str:
    """The name of the suite in a file or folder: its name without the ending, as an id may be spelt."""
    name = next((path.name.removesuffix(end) for end in SUFFIXES if path.name.endswith(end)), path.name)
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:80] or "suite"


def _natural(name: str) -> list[tuple[int, str]]:
    """So that problem 2 stands before problem 10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
