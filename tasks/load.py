"""Find and load tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from pilotfish.tasks.data_sets import data_set_tasks, is_data_set
from pilotfish.tasks.environment_fields import CodeEnvironment, WebEnvironment
from pilotfish.tasks.explain import explain, nearest, shown
from pilotfish.tasks.format import Task
from pilotfish.tasks.harbor import harbor_tasks, is_harbor
from pilotfish.tasks.miniwob_names import SUITE as MINIWOB_SUITE
from pilotfish.tasks.miniwob_tasks import miniwob_suite
from pilotfish.tasks.reader import TaskError, read_data

SHIPPED = Path(__file__).parent
_SUFFIXES = (".yaml", ".yml", ".json")


def load_task(path: str | Path) -> Task:
    """The task in one file.

    A task without `id` is named after its file (its folder, where that holds a `task.yaml`); a task without
    `suite` belongs to the suite named after the folder around it.
    Raises `TaskError`, one sentence naming file, field and mend.
    """
    path = Path(path)
    if path.is_dir():
        path = next(
            (file for suffix in _SUFFIXES if (file := path / f"task{suffix}").is_file()), path / "task.yaml"
        )
    data = read_data(path)
    if not isinstance(data, dict):
        raise TaskError(f"{path}: a task is a map of keys such as id and instruction, not {shown(data)}.")
    home = path.resolve().parent
    if path.stem == "task":
        home, name = home.parent, home.name
    else:
        name = path.stem
    try:
        task = Task.model_validate({"id": name, "suite": home.name} | data)
    except ValidationError as error:
        raise TaskError(f"{path}: {explain(error)}.") from None
    except RecursionError:
        raise TaskError(f"{path}: nested too deeply; flatten it.") from None
    task._path = path.resolve()
    _check_companions(path, task)
    return task


def load_suite(suite: str | Path) -> list[Task]:
    """The tasks of a suite, by id: the name of one that ships (see `list_suites`), a folder of task files, or
    a data set of a public benchmark (see `data_sets`).

    Raises `TaskError` for an unknown name, an empty folder, a bad file, or two tasks with one id.
    """
    if str(suite) == MINIWOB_SUITE:
        return miniwob_suite()
    if is_data_set(Path(suite)):
        return data_set_tasks(Path(suite))
    shipped = SHIPPED / str(suite)
    folder = shipped if str(suite) in _shipped_suites() else Path(suite)
    if not folder.is_dir():
        names = list_suites()
        raise TaskError(f"There is no suite or folder '{suite}'{nearest(str(suite), names)}.")
    if is_harbor(folder) or (
        not any(_task_files(folder)) and any(map(is_harbor, filter(Path.is_dir, folder.iterdir())))
    ):
        return harbor_tasks(folder)
    found: dict[str, tuple[Path, Task]] = {}
    for path in _task_files(folder):
        task = load_task(path)
        if task.id in found:
            raise TaskError(
                f"{path}: the id '{task.id}' is taken by {found[task.id][0]}; rename one of them."
            )
        found[task.id] = (path, task)
    if not found:
        raise TaskError(f"{folder}: the folder holds no task file; a task is NAME.yaml or NAME/task.yaml.")
    return [found[name][1] for name in sorted(found)]


def list_suites() -> list[str]:
    """The names of the suites that ship, in alphabetical order."""
    return sorted([*_shipped_suites(), MINIWOB_SUITE])


def find_task(name: str) -> Task:
    """The task called `suite/id` among those that ship, the one in the file or folder of that path, or the
    one called `FILE/id` in a data set.

    Raises `TaskError` with the nearest name where there is none.
    """
    suite, _, task_id = name.partition("/")
    if suite in list_suites() and task_id:
        tasks = {task.id: task for task in load_suite(suite)}
        if task_id not in tasks:
            raise TaskError(f"The suite {suite} has no task '{task_id}'{nearest(task_id, list(tasks))}.")
        return tasks[task_id]
    path = Path(name)
    if is_data_set(path) or is_data_set(path.parent):
        return _of_data_set(path)
    if is_harbor(path):
        return harbor_tasks(path)[0]
    if path.suffix in _SUFFIXES or path.is_dir():
        return load_task(path)
    raise TaskError(
        f"'{name}' is neither suite/task nor a task file; the suites are {', '.join(list_suites())}."
    )


def _of_data_set(path: Path) -> Task:
    file = path if is_data_set(path) else path.parent
    tasks = {task.id: task for task in data_set_tasks(file)}
    if file is path and len(tasks) == 1:
        return next(iter(tasks.values()))
    if file is path:
        raise TaskError(f"{path} holds {len(tasks)} tasks; name one, as {path / next(iter(tasks))}.")
    if path.name not in tasks:
        raise TaskError(f"{file} has no task '{path.name}'{nearest(path.name, list(tasks))}.")
    return tasks[path.name]


def _shipped_suites() -> list[str]:
    return [folder.name for folder in SHIPPED.iterdir() if folder.is_dir() and any(_task_files(folder))]


def _task_files(folder: Path) -> Iterator[Path]:
    """Task files directly in the folder, and the `task.yaml` of its sub-folders."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        if path.is_file() and path.suffix in _SUFFIXES:
            yield path
        elif path.is_dir():
            yield from (file for suffix in _SUFFIXES if (file := path / f"task{suffix}").is_file())


def _check_companions(path: Path, task: Task) -> None:
    """The files a task names beside itself are there, and lie inside its folder once links are followed."""
    if isinstance(task.environment, WebEnvironment):
        field, wanted, kind = "environment.page", task.environment.page, "file"
    elif isinstance(task.environment, CodeEnvironment) and task.environment.folder is not None:
        field, wanted, kind = "environment.folder", task.environment.folder, "folder"
    else:
        return
    target = (task.folder / wanted).resolve()
    if not target.is_relative_to(task.folder):
        raise TaskError(f"{path}: {field} '{wanted}' leads out of the task's folder; move it inside.")
    if not (target.is_file() if kind == "file" else target.is_dir()):
        raise TaskError(
            f"{path}: {field} names the {kind} '{wanted}', which is not there; add it beside the task."
        )
