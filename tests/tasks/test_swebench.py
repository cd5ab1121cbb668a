"""Instances of SWE-bench's form on clones of this machine: played, judged test by test, handed in."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.bench import plan_tasks, run_bench
from pilotfish.agent.settings import Settings
from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environment import End
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import find_task, load_suite
from pilotfish.tasks.reader import TaskError

FILES = {
    "src/tally/__init__.py": """
def mean(values):
    return sum(values) / len(values)


def top(values):
    return max(values)
""",
    "tests/test_tally.py": """
from tally import mean, top


def test_mean():
    assert mean([1, 3]) == 2


def test_top():
    assert top([1, 3]) == 3
""",
    ".gitattributes": "tests export-ignore\n*.py filter=evil\n",
    ".gitignore": "*.log\n",
    "crlf.txt": "one\r\ntwo\r\n",
}
MEND = FILES["src/tally/__init__.py"].replace("    return sum", "    return 0 if not values else sum")
MORE_TESTS = FILES["tests/test_tally.py"] + "\n\ndef test_mean_of_nothing():\n    assert mean([]) == 0\n"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false")
    env = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, env=env, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    """A folder with one clone, whose configuration would leave a trace if git heeded it, and the record of an
    instance beside it.
    """
    clone = tmp_path / "clones" / "sea__tally"
    for name, text in FILES.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes(text.encode())
    git(clone, "init", "--quiet")
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "--message=base")
    (clone / "src/tally/__init__.py").write_text(MEND)
    git(clone, "commit", "--quiet", "--all", "--message=mend")
    (clone / "tests/test_tally.py").write_text(MORE_TESTS)
    record = {
        "instance_id": "sea__tally-1",
        "repo": "sea/tally",
        "base_commit": git(clone, "rev-parse", "HEAD~1").strip(),
        "problem_statement": "mean([]) raises ZeroDivisionError; it should be 0.",
        "patch": git(clone, "diff", "HEAD~1", "HEAD"),
        "test_patch": git(clone, "diff", "--", "tests"),
        "FAIL_TO_PASS": json.dumps(["tests/test_tally.py::test_mean_of_nothing"]),
        "PASS_TO_PASS": json.dumps(["tests/test_tally.py::test_mean", "tests/test_tally.py::test_top"]),
        "version": "1.0",
        "hints_text": None,
    }
    (clone / "tests/test_tally.py").unlink()
    (tmp_path / "record.json").write_text(json.dumps(record))
    for name in (
        "core.fsmonitor",
        "core.sshCommand",
        "diff.external",
        "filter.evil.smudge",
        "filter.evil.clean",
    ):
        git(clone, "config", name, f"touch {tmp_path}/trace")
    return tmp_path / "clones"


def instance(clones: Path, **changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((clones.parent / "record.json").read_text())
    return record | changes


def written(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "instances.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


async def test_the_reference_patch_is_measured_and_handed_in(tmp_path: Path, clones: Path) -> None:
    record = instance(clones)
    idle = instance(
        clones, instance_id="sea__tally-2", patch=record["patch"].replace("return 0 if", "return 1 if")
    )
    path = written(tmp_path, record, idle)
    settings = Settings(
        model="solution",
        record_dir=tmp_path / "runs",
        swe_bench={"repositories": clones},  # type: ignore[arg-type]
    )
    result = await run_bench(plan_tasks([str(path)], episodes=1), settings)
    rows = [(row["task"], row["success"]) for row in result["tasks"]]
    assert rows == [("instances/sea__tally-1", 1.0), ("instances/sea__tally-2", 0.0)]
    (predictions,) = result["predictions"]
    first, second = (json.loads(line) for line in lines_of(predictions))
    assert (first["instance_id"], first["model_name_or_path"]) == ("sea__tally-1", "solution")
    assert first["model_patch"].split("\n@@")[1] == record["patch"].split("\n@@")[1]
    assert "return 1 if" in second["model_patch"]
    assert not (tmp_path / "trace").exists(), "the clone's configuration ran a program"


def lines_of(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def task_of(tmp_path: Path, clones: Path, **changes: Any) -> Task:
    command = changes.pop("test_command", None)
    return find_task(str(written(tmp_path, instance(clones, **changes)))).with_clones(clones, command, None)


async def test_tests_are_judged_one_by_one_on_a_fresh_copy(tmp_path: Path, clones: Path) -> None:
    task = task_of(tmp_path, clones)
    assert skip_reason(task) is None
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        assert "ZeroDivisionError" in await environment.start(box)
        assert box.files.read_bytes("crlf.txt") == b"one\r\ntwo\r\n"
        assert box.files.read_text("tests/test_tally.py") == FILES["tests/test_tally.py"]
        said = await box.shell.run(
            "git log --oneline | wc -l; git status --short; python3 -m pytest -q | tail -1"
        )
        assert said.output.startswith("1\n2 passed"), said.output
        nothing = await environment.grade(box, End())
        assert (nothing.passed, nothing.reason) == (False, "Nothing was changed.")
        # What is left beside the work (a log that is ignored, repositories inside) is not handed in, and a
        # configuration that the model wrote is not heeded; its own changes of the tests do not count.
        await box.shell.run(
            "echo x > a.log; git init -q sub; touch sub/new; mkdir -p sub2; git init -q sub2\n"
            "git config core.fsmonitor 'touch /workspace/trace'; printf '\\xe9' > latin.txt\n"
            "echo 'def test_mean_of_nothing(): pass' > tests/test_tally.py"
        )
        grade = await environment.grade(box, End())
        assert "1 of 1 tests that should pass now do not" in grade.reason, grade.reason
        assert "test_mean_of_nothing" in grade.reason
        assert "a.log" not in grade.product["model_patch"]
        assert "sub" not in grade.product["model_patch"]
        assert "GIT binary patch" in grade.product["model_patch"]
        assert not box.files.exists("trace")
        box.files.write_text("src/tally/__init__.py", MEND)
        mended = await environment.grade(box, End())
        assert (mended.passed, mended.reason) == (True, "All of 3 tests pass.")
        box.files.write_text("src/tally/__init__.py", MEND.replace("max", "min"))
        broken = await environment.grade(box, End())
        assert broken.reason == "1 of 2 that passed before do not, such as tests/test_tally.py::test_top."
    assert not (tmp_path / "trace").exists(), "the clone's configuration ran a program"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"test_command": "sleep 600"}, "The tests took longer than 2 s and were ended."),
        ({"test_command": "echo nothing"}, 'No test was told of; status 0, saying "nothing".'),
        (
            {"test_patch": "--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n"},
            "The patch of the tests does not apply: ",
        ),
    ],
)
async def test_tests_that_cannot_be_run(
    tmp_path: Path, clones: Path, changes: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.tasks.swebench._SECONDS", 2.0 if "sleep" in str(changes) else 120.0)
    task = task_of(tmp_path, clones, **changes)
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        box.files.write_text("src/tally/__init__.py", MEND)
        grade = await environment.grade(box, End())
        assert grade.reason.startswith(sentence)
        assert grade.product["model_patch"], "what was made is kept"
        left = await box.shell.run("pgrep -x sleep")
        assert left.output == "", "what a hung test started is gone"


def test_clones_and_commits_that_are_not_there(tmp_path: Path, clones: Path) -> None:
    task = task_of(tmp_path, clones)
    unplaced = task.with_clones(None, None, None)
    assert "needs a clone of sea/tally; name the folder of clones with --repositories" in str(
        skip_reason(unplaced)
    )
    elsewhere = task.with_clones(tmp_path, None, None)
    assert "has no clone of sea/tally; it would be called sea/tally, sea__" in str(skip_reason(elsewhere))
    unknown = task_of(tmp_path, clones, base_commit="f" * 40)
    assert f"has no commit '{'f' * 40}'; fetch it" in str(skip_reason(unknown))
    no_python = task.with_clones(clones, None, tmp_path)
    assert "is not a virtual environment: it has no folder bin" in str(skip_reason(no_python))
    (tmp_path / "empty" / "sea" / "tally").mkdir(parents=True)
    assert "has no commit" in str(skip_reason(task.with_clones(tmp_path / "empty", None, None)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"FAIL_TO_PASS": None}, "'FAIL_TO_PASS' is missing; add it."),
        ({"FAIL_TO_PASS": "[]"}, "'FAIL_TO_PASS' is empty; name at least one test."),
        ({"FAIL_TO_PASS": "[a"}, "'FAIL_TO_PASS' is '[a'; it must be a list of names."),
        ({"PASS_TO_PASS": [1]}, "'PASS_TO_PASS' is a list; it must be a list of names."),
        (
            {"base_commit": "--upload-pack=x"},
            "'base_commit' is '--upload-pack=x'; it must be the hex",
        ),
        ({"repo": "../../etc"}, "'repo' is '../../etc'; it must be OWNER/NAME."),
        ({"problem_statement": 3}, "'problem_statement' is 3; it must be text."),
        ({"test_patch": None}, "'test_patch' is missing; add it."),
        *(
            (
                {"test_patch": f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-a\n+b\n"},
                f"'test_patch' changes '{name}'",
            )
            for name in ("../../x", "/etc/x", "a/../../x", ".git/hooks/x", "sub/.git/config")
        ),
    ],
)
def test_bad_instances_are_refused_in_a_sentence(
    tmp_path: Path, clones: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TaskError) as refused:
        load_suite(written(tmp_path, instance(clones), instance(clones, instance_id="b", **changes)))
    assert f"instances.jsonl, line 2: {sentence}" in str(refused.value)
    assert "\n" not in str(refused.value)
