"""`pilotfish code` from end to end: real git, a real shell and sandbox, and a scripted model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent import events as log
from pilotfish.agent.cli_code import result_lines
from pilotfish.agent.code import CodeTarget, run_code
from pilotfish.agent.settings import Settings
from pilotfish.model.protocol import Message, Model
from pilotfish.model.scripted import ScriptedModel

from ..sandbox.repositories import fingerprint, git, make, write
from .conftest import call, turn

CALC = "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"
TESTS = """import unittest
from calc import add, sub


class Calc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)

    def test_sub(self):
        self.assertEqual(sub(3, 2), 1)
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A small project with a bug that one of its tests shows."""
    return make(tmp_path / "repo", {"calc.py": CALC, "test_calc.py": TESTS, "README.md": "# Calc\n"})


def shell(command: str) -> Message:
    return turn(call("shell", command=command))


def mend(old: str = "a - b\n\n\n", new: str = "a + b\n\n\n") -> Message:
    return turn(call("edit", command="replace", path="calc.py", old_text=old, new_text=new))


async def code(
    repo: Path, script: Sequence[Message] | Model, *, level: int = 3, **options: Any
) -> tuple[dict[str, Any], log.RunLog]:
    settings = Settings(record_dir=repo.parent / "runs", sandbox_level=level)
    model = ScriptedModel(script) if isinstance(script, Sequence) else script
    target = CodeTarget(str(repo), options.pop("instruction", "Mend the failing test."), **options)
    result = await run_code(target, settings, model=model)
    return result, log.read_run(Path(result["folder"]))


DONE = turn(text="I mended add, which subtracted.")


async def test_a_bug_is_mended_tested_and_handed_back_as_a_patch(repo: Path) -> None:
    write(repo, {"notes.txt": "mine\n"})
    before = fingerprint(repo)
    model = ScriptedModel(
        [
            turn(call("edit", command="view", path="calc.py")),
            mend(),
            shell("git status --short; git log --format=%s; python3 -m unittest 2>&1 | tail -1"),
            DONE,
        ]
    )
    result, run = await code(repo, model)
    assert fingerprint(repo) == before
    assert (result["end"], result["passed"], result["answer"]) == (
        "answered",
        True,
        "I mended add, which subtracted.",
    )
    assert result["changed"] == [{"how": "M", "path": "calc.py", "before": ""}]
    assert result["tests"]["command"] == "python3 -m unittest discover"
    assert result["tests"]["before"]["failed"] == ["test_add (test_calc.Calc.test_add)"]
    assert (result["tests"]["after"]["status"], result["tests"]["attempts"]) == (0, 1)
    assert result["tests"]["verdict"].startswith("The tests pass; before: 1 failed")
    said = [event.text for event in run.events if isinstance(event, log.Resulted)][-1]
    assert said == " M calc.py\nWhat was not committed when this work began\nfirst\nOK"

    first = "".join(part for part in model.requests[0][0][1].parts if isinstance(part, str))
    assert first.startswith("Mend the failing test.\n\nHow to work:")
    assert "Failed before: test_add" in first
    mark = first.partition("carry the mark ")[2].split()[0]
    assert f"<<<{mark} README.md\n# Calc\n{mark}>>>" in first
    lines = result_lines(result)
    assert "-    return a - b" in lines
    assert f"Put it on your folder with: git -C {repo} apply {result['patch']}" in lines
    git(repo, "apply", result["patch"])
    assert (repo / "calc.py").read_text() == CALC.replace("a - b\n\n\n", "a + b\n\n\n")


async def test_the_model_is_told_what_fails_and_tries_again(repo: Path) -> None:
    script = [
        mend(new="b\n\n\n"),
        turn(text="Finished."),
        mend("return b", "return a + b"),
        shell("sed -i 's/return a - b/return 7/' calc.py"),
        turn(text="Finished again."),
        shell("sed -i 's/return 7/return a - b/' calc.py"),
        DONE,
    ]
    model = ScriptedModel(script)
    result, run = await code(repo, model, branch="mended")
    back = [event.text for event in run.events if isinstance(event, log.SentBack)]
    assert back[0].startswith("The only tests that fail failed before the change too: test_add")
    assert "It will be looked at 2 more times." in back[0]
    assert back[1].startswith("Tests fail that did not fail before the change: test_sub")
    assert "AssertionError" in back[1]
    assert [message.role for message in model.requests[2][0][-2:]] == ["assistant", "user"]
    assert (result["passed"], result["tests"]["attempts"], result["branch"]) == (True, 3, "mended")
    assert git(repo, "show", "mended:calc.py").startswith("def add(a, b):\n    return a + b")
    assert git(repo, "log", "-1", "--format=%B", "mended") == f"Mend the failing test.\n\n{DONE.parts[0]}"
    assert git(repo, "status", "--short") == ""


async def test_attempts_end_and_what_failed_before_is_told_apart(repo: Path) -> None:
    broken = shell("echo 'def add(a, b): return 0' > calc.py")
    result, _ = await code(repo, [broken, turn(text="Finished.")], attempts=1)
    assert (result["end"], result["passed"]) == ("answered", False)
    assert "Tests fail that did not fail before the change" in result["reason"]
    # Failures that were there before do not count against the work, once the model has been told.
    script = [shell("echo docs > docs.txt"), turn(text="Written."), turn(text="They are not my task.")]
    result, _ = await code(repo, script, instruction="Write docs.")
    assert (result["passed"], result["tests"]["attempts"]) == (True, 2)
    assert result["tests"]["still_failing"] == ["test_add (test_calc.Calc.test_add)"]


async def test_tests_that_never_end_are_ended_and_leave_nothing(repo: Path) -> None:
    hang = "echo x > left-behind; sleep 1000 & while :; do sleep 0.1; done"
    result, _ = await code(repo, [mend(), DONE], tests=hang, test_seconds=1, attempts=1)
    assert (result["passed"], result["tests"]["after"]["status"]) == (True, None)
    assert result["tests"]["verdict"] == "The tests did not end within 1 s, as before the change."
    assert [one["path"] for one in result["changed"]] == ["calc.py"]


async def test_without_tests_the_word_of_the_model_is_all_there_is(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", {"a.txt": "a\n"})
    result, _ = await code(repo, [shell("echo b > b.txt; mkdir d; echo c > d/c.pyc"), turn(text="Done.")])
    assert (result["end"], result["graded"], result["tests"]) == ("answered", False, None)
    assert [one["path"] for one in result["changed"]] == ["b.txt"]
    result, _ = await code(repo, [turn(text="Nothing to do.")])
    assert (result["changed"], result["patch"], result["commit"]) == ([], None, None)
    assert "Nothing was changed." in result_lines(result)


@pytest.mark.parametrize("level", [0, 2])
async def test_git_works_inside_at_other_levels(tmp_path: Path, level: int) -> None:
    repo = make(tmp_path / "repo", {"a.txt": "a\n"})
    before = fingerprint(repo)
    script = [shell("echo b > a.txt; git status --short; git log --format=%s"), turn(text="Done.")]
    result, run = await code(repo, script, level=level)
    said = [event.text for event in run.events if isinstance(event, log.Resulted)]
    assert said == [" M a.txt\nfirst"]
    assert [one["path"] for one in result["changed"]] == ["a.txt"]
    assert fingerprint(repo) == before
