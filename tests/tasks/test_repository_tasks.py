"""The suite of repository tasks: packages as the lock pins them, judged on fresh copies by hidden tests."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from importlib.metadata import metadata, version
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.bench import plan_tasks, run_bench
from pilotfish.agent.settings import Settings
from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environment import End, StartError
from pilotfish.tasks.environment_fields import RepositoryEnvironment
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import find_task, load_suite, load_task
from pilotfish.tasks.prove import prove
from pilotfish.tasks.reader import TaskError
from pilotfish.tasks.repositories import source_of

ROOT = Path(__file__).parents[2]
TASKS = load_suite("repository")
SHARES = 6
"""All take minutes, so each day has its share; `python -m pilotfish.tasks.prove repository` plays all."""
TODAY = TASKS[datetime.datetime.now(tz=datetime.UTC).toordinal() % SHARES :: SHARES]


def fields(task: Task) -> RepositoryEnvironment:
    assert isinstance(task.environment, RepositoryEnvironment)
    return task.environment


@pytest.mark.parametrize("task", TODAY, ids=lambda task: task.id)
async def test_nothing_fails_and_the_solution_passes(task: Task) -> None:
    if reason := skip_reason(task):
        pytest.skip(reason)
    nothing, solved = await prove(task)
    assert (nothing.score, nothing.passed) == (0.0, False), nothing.reason
    assert (solved.score, solved.passed) == (1.0, True), solved.reason
    assert solved.product["model_patch"]
    assert not nothing.product["model_patch"]


def test_there_is_something_of_everything() -> None:
    kinds = Counter(task.id.partition("-")[0] for task in TASKS)
    least = {"fix": 6, "add": 4, "refactor": 3, "rename": 2, "test": 3, "configure": 2}
    assert {kind: min(kinds[kind], count) for kind, count in least.items()} == least
    assert set(kinds) == set(least)
    assert len(TASKS) >= 20
    assert all(task.solution for task in TASKS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_packages_are_those_of_the_lock_and_every_change_fits(task: Task) -> None:
    environment = fields(task)
    name = re.sub(r"[-_.]+", "-", environment.package).lower()
    lock = (ROOT / "requirements.lock").read_text()
    assert f"\n{name}=={environment.version}\n" in re.sub(r"[ \\]+\n", "\n", lock), (
        "write the task anew for it"
    )
    if skip_reason(task) is None:
        files = source_of(environment)
        assert any("licen" in path.lower() or path == "COPYING" for path in files)
        for grader in task.every_grader():
            if grader.kind == "mutants":
                assert all(files[change.path].count(change.find.encode()) == 1 for change in grader.changes)


def test_the_licence_of_each_package_is_told() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text()
    for package in {fields(task).package for task in TASKS}:
        assert re.search(rf"^\| {re.escape(package)} {re.escape(version(package))} \| \S", page, re.MULTILINE)
        assert metadata(package)["Name"]


async def test_the_package_itself_is_hidden_and_its_tests_run() -> None:
    environment = environment_for(find_task("repository/test-int-ranges"))
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        where = (
            "python3 -c 'import idna, sys; print(idna.__file__)'; find / -name 'intranges.py' 2> /dev/null"
        )
        said = (await box.shell.run(where)).output.split()
        assert said[0] == "/workspace/src/idna/__init__.py"
        assert [path for path in said[1:] if not path.startswith("/usr/")] == [
            "/workspace/src/idna/intranges.py"
        ]
        # Tests that find nothing, and tests that are wrong now, are not taken.
        for text, reason in (
            (
                "def test_wrong():\n    assert False\n",
                "The tests in tests do not pass on the package as it was",
            ),
            ("import os\nos._exit(0)\n", "The tests miss 7 of 7 faults, such as 'current_range[-1]'."),
        ):
            box.files.write_text("tests/test_it.py", text)
            grade = await environment.grade(box, End())
            assert (grade.passed, grade.reason[: len(reason)]) == (False, reason)


async def test_a_patch_cannot_talk_the_hidden_tests_round() -> None:
    task = find_task("repository/fix-chunk-footer")
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        start = box.files.read_text("src/h11/__init__.py")
        for text in ("import os\nos._exit(0)\n", "raise SystemExit(0)\n", "x = (\n"):
            box.files.write_text("src/h11/__init__.py", start + text)
            box.files.write_text("conftest.py", "import os\nos._exit(0)\n")
            grade = await environment.grade(box, End())
            assert (grade.passed, grade.score) == (False, 0.0)
            assert "3 of 3 hidden tests do not pass" in grade.reason


async def test_tasks_are_played_by_the_measurement_and_handed_in(tmp_path: Path) -> None:
    for name in ("fix-log-completion", "fix-shuffle"):
        text = (ROOT / "tasks" / "repository" / f"{name}.yaml").read_text()
        (tmp_path / f"{name}.yaml").write_text(text)
    settings = Settings(model="solution", record_dir=tmp_path / "runs")
    result = await run_bench(plan_tasks([str(tmp_path)], episodes=1), settings)
    assert [row["success"] for row in result["tasks"]] == [1.0, 1.0]
    assert len(result["predictions"]) == 1


def changed_task(folder: Path, **environment: Any) -> Task:
    task = find_task("repository/fix-log-completion")
    made = fields(task).model_dump() | environment
    data = task.model_dump() | {"environment": made, "solution": ["true"]}
    (folder / "task.json").write_text(Task.model_validate(data).model_dump_json())
    return load_task(folder / "task.json")


async def test_what_does_not_fit_is_told_in_a_sentence(tmp_path: Path) -> None:
    older = changed_task(tmp_path, version="4.0.0")
    assert f"is made of tqdm==4.0.0, and {version('tqdm')} is installed: pip install tqdm==4.0.0" in str(
        skip_reason(older)
    )
    assert "no-such is missing, it is needed for the repository tasks: pip install no-such" in str(
        skip_reason(changed_task(tmp_path, package="no-such"))
    )
    assert "no-such-program is missing" in str(
        skip_reason(changed_task(tmp_path, programs=["no-such-program"]))
    )
    for change, sentence in (
        (
            {"path": "src/tqdm/completion.sh", "find": "nowhere", "replace": "x"},
            "holds 'nowhere' 0 times, not once",
        ),
        ({"path": "src/none.sh", "find": "a", "replace": "b"}, "tqdm has no file src/none.sh"),
    ):
        environment = environment_for(changed_task(tmp_path, changes=[change]))
        async with Sandbox.open(environment.sandbox_spec()) as box:
            with pytest.raises(StartError, match=re.escape(sentence)):
                await environment.start(box)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "environment: {kind: shell}\ngraders: [{kind: tests, files: {a.py: x}}]",
            "needs a repository environment",
        ),
        (
            "environment: {kind: repository, package: a, version: '1'}\n"
            "graders: [{kind: file_absent, path: a}]\nsolution: [{undo: changes}]",
            "a step of the solution undoes changes, and the environment makes none",
        ),
        ("environment: {kind: repository, package: a}\ngraders: []", "'environment.version' is missing"),
    ],
)
def test_task_files_that_do_not_fit(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.yaml").write_text(f"instruction: Do it\ntools: [shell, edit]\n{text}\n")
    with pytest.raises(TaskError, match=re.escape(sentence)):
        load_task(tmp_path / "a.yaml")
