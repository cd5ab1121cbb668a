"""Instances in SWE-bench's form: an issue of a real repository, and the tests that its mend must pass.

Source: SWE-bench, docs/guides/datasets.md. The work starts from a clone on this machine, without what came
after the base commit; the difference that a model makes is its prediction, and tests are judged one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec
from pilotfish.sandbox.git import GitDir, GitError
from pilotfish.sandbox.repository import find_repository
from pilotfish.tasks.environment import End, Grade, StartError
from pilotfish.tasks.environment_fields import SwebenchEnvironment
from pilotfish.tasks.explain import shown
from pilotfish.tasks.format import Task
from pilotfish.tasks.fresh import ATTRIBUTES, Checked, WorkError, check_patch, patch_of, start_work, touched
from pilotfish.tasks.python_inside import SITE, python_inside
from pilotfish.tasks.reader import TaskError
from pilotfish.tasks.records import Record, text_of, texts_of
from pilotfish.tasks.statuses import not_passed, statuses

TEST_COMMAND = "python3 -m pytest -rA -p no:cacheprovider {files}"
_ENVIRONMENT = "/opt/environment"
_SECONDS = 1800.0
_END_OF_PATCH = "END_OF_THE_REFERENCE_PATCH"


def is_swebench(record: Record) -> bool:
    """Whether a record has the fields that tell this form from others."""
    return "instance_id" in record and "base_commit" in record


def swebench_task(record: Record, place: str, suite: str) -> Task:
    """The task of a record. Raises `TaskError`, or pydantic's error for a value that does not fit."""
    instance = text_of(record, place, "instance_id")
    said = [text_of(record, place, "problem_statement")]
    said += [text_of(record, place, name, default="") for name in ("requirements", "interface")]
    patch = text_of(record, place, "patch", default="")
    test_patch = text_of(record, place, "test_patch")
    for name in touched(test_patch):
        if name.startswith("/") or {"..", ".git"} & set(name.split("/")):
            raise TaskError(f"{place}: 'test_patch' changes {shown(name)}, which is no file of a repository.")
    environment = SwebenchEnvironment(
        kind="swebench",
        instance=instance,
        repo=text_of(record, place, "repo", like=(r"[\w.-]+(/[\w.-]+)?", "OWNER/NAME")),
        base_commit=text_of(
            record, place, "base_commit", like=("[0-9a-fA-F]{7,64}", "the hexadecimal id of a commit")
        ),
        test_patch=test_patch,
        fail_to_pass=texts_of(record, place, "FAIL_TO_PASS", "fail_to_pass", some=True),
        pass_to_pass=texts_of(record, place, "PASS_TO_PASS", "pass_to_pass", default="[]"),
    )
    return Task(
        id=instance.replace("/", "__"),
        suite=suite,
        instruction="The workspace is a git repository. Mend what this issue describes; the tests that judge "
        "it are not there.\n\n" + "\n\n".join(part.strip() for part in said if part.strip()),
        tools=["shell", "edit"],
        environment=environment,
        limits={"steps": 200, "seconds": 3600, "tokens": 1_000_000},  # type: ignore[arg-type]
        solution=[f"git apply --whitespace=nowarn <<'{_END_OF_PATCH}'\n{patch.rstrip()}\n{_END_OF_PATCH}"]
        if patch.strip()
        else [],
    )


def clone_of(fields: SwebenchEnvironment) -> Path:
    """The clone of an instance's repository. Raises `SandboxError` with the names that were looked for."""
    if fields.repositories is None:
        raise SandboxError(
            f"it needs a clone of {fields.repo}; name the folder of clones with --repositories."
        )
    folder = Path(fields.repositories)
    names = [fields.repo, fields.repo.replace("/", "__"), fields.repo.rpartition("/")[2]]
    for name in [*names, *(f"{name}.git" for name in names)]:
        if (folder / name).is_dir():
            return folder / name
    raise SandboxError(
        f"{folder} has no clone of {fields.repo}; it would be called {', '.join(dict.fromkeys(names))}."
    )


@lru_cache(maxsize=4096)
def swebench_trouble(fields_as_json: str) -> str | None:
    """Why this machine cannot play an instance, as one sentence; None if it can."""
    fields = SwebenchEnvironment.model_validate_json(fields_as_json)
    try:
        with _borrowed(fields) as (_, _commit):
            _inside(fields)
    except SandboxError as error:
        return f"{fields.instance} cannot be played: {error}"
    return None


def _inside(fields: SwebenchEnvironment) -> tuple[dict[Path, str], dict[str, str]]:
    """The mounts and the environment of the Python to test with."""
    if fields.test_environment is None:
        return python_inside(("pytest",), "to run tests of SWE-bench without --test-environment")
    folder = Path(fields.test_environment)
    if not (folder / "bin").is_dir():
        raise SandboxError(f"{folder} is not a virtual environment: it has no folder bin.")
    mounts, env = python_inside((), "")
    home = Path(folder / "bin" / "python3").resolve().parent.parent
    if not home.is_relative_to("/usr") and home != folder.resolve():
        mounts[home] = str(home)
    mounts[folder.resolve()] = _ENVIRONMENT
    return mounts, {"PATH": f"{_ENVIRONMENT}/bin:{env['PATH']}"}


class Swebench:
    """One instance: the repository at its base commit, and a verdict by its tests on a fresh copy."""

    def __init__(self, task: Task, fields: SwebenchEnvironment) -> None:
        self._task, self._fields = task, fields
        self._tar: bytes | None = None

    def sandbox_spec(self) -> SandboxSpec:
        mounts, env = _inside(self._fields)
        places = "/workspace/src:/workspace"
        env["PYTHONPATH"] = f"{places}:{SITE}" if "PYTHONPATH" in env else places
        return SandboxSpec(desktop=False, read_only=mounts, env=env)

    def screen(self, box: Sandbox) -> None:
        return None

    async def start(self, box: Sandbox) -> str:
        try:
            await start_work(box, await self._base())
        except (WorkError, SandboxError) as error:
            raise StartError(f"{self._task.name} cannot be started: {error}") from error
        return self._task.instruction

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def grade(self, box: Sandbox, end: End) -> Grade:
        await box.shell.end_all()
        fields = self._fields
        try:
            base = await self._base()
            patch = await patch_of(box, base)
        except (WorkError, SandboxError) as error:
            return Grade(0.0, False, f"{self._task.name} cannot be graded: {error}")
        product = {"instance_id": fields.instance, "model_patch": patch}
        if not patch:
            return Grade(0.0, False, "Nothing was changed.", product)
        files = shlex.join(name for name in touched(fields.test_patch))
        command = (fields.test_command or TEST_COMMAND).replace("{files}", files)
        checked = await check_patch(box, base, patch, command, _SECONDS, tests=fields.test_patch)
        score, passed, reason = verdict(fields, checked)
        return Grade(score, passed, reason, product)

    async def _base(self) -> bytes:
        """The files of the base commit, as a tar archive."""
        if self._tar is None:
            self._tar = await asyncio.to_thread(_tree, self._fields)
        return self._tar


def verdict(fields: SwebenchEnvironment, checked: Checked) -> tuple[float, bool, str]:
    """Score, whether it passed, and why: all that must pass now, and all that must go on passing."""
    found = statuses(checked.log)
    failing = not_passed(fields.fail_to_pass, found)
    broken = not_passed(fields.pass_to_pass, found)
    if not failing and not broken and not checked.trouble:
        return 1.0, True, f"All of {len(fields.fail_to_pass) + len(fields.pass_to_pass)} tests pass."
    if checked.trouble:
        return 0.0, False, checked.trouble
    if not found:
        said = checked.log.strip().rpartition("\n")[2][:200]
        return 0.0, False, f"No test was told of; status {checked.exit_code}, saying {json.dumps(said)}."
    counts = [f"{len(failing)} of {len(fields.fail_to_pass)} tests that should pass now do not"] * bool(
        failing
    )
    counts += [f"{len(broken)} of {len(fields.pass_to_pass)} that passed before do not"] * bool(broken)
    return 0.0, False, f"{' and '.join(counts)}, such as {(failing or broken)[0][:120]}."


@contextlib.contextmanager
def _borrowed(fields: SwebenchEnvironment) -> Iterator[tuple[GitDir, str]]:
    """A git folder of ours that reads the clone's objects, and the whole id of the base commit.

    Raises `SandboxError` where there is no such clone or commit.
    """
    clone = clone_of(fields)
    found = find_repository(clone)
    with tempfile.TemporaryDirectory(prefix="pilotfish-") as folder:
        view = GitDir.create(Path(folder) / "git", sha256=found.sha256, borrow=found.objects)
        (view.path / "info" / "attributes").write_text(ATTRIBUTES)
        try:
            commit = view.line(
                "rev-parse", "--verify", "--end-of-options", f"{fields.base_commit}^{{commit}}"
            )
        except GitError:
            raise SandboxError(
                f"{clone} has no commit {fields.base_commit!r}; fetch it, or give another folder of clones."
            ) from None
        yield view, commit


def _tree(fields: SwebenchEnvironment) -> bytes:
    """All files of the base commit, byte for byte, as a tar archive. Raises `SandboxError`."""
    with _borrowed(fields) as (view, commit):
        return view.run("archive", "--format=tar", commit)
