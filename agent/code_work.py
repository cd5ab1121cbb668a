"""The environment of `pilotfish code`: a copy of a repository, its tests before the change and after."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from pilotfish.agent.code_prompt import first_prompt, objection
from pilotfish.agent.events import (
    Answered,
    Event,
    EventLog,
    Intended,
    SnapshotTaken,
    Tested,
    Told,
    live,
    read_run,
)
from pilotfish.agent.project_python import OwnPython, own_python
from pilotfish.agent.project_tests import TestCommand, choose, compare, find_commands, run_tests
from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec, Snapshots
from pilotfish.sandbox.repository import Repository
from pilotfish.sandbox.worktree import WorkTree
from pilotfish.tasks.environment import End, Grade
from pilotfish.tools.grid import Screen

_SHOWN_AT = "/opt/pilotfish/objects-{}"
"""Where folders of objects are for programs inside."""


def code_spec(tree: WorkTree, repository: Repository, level: int, python: OwnPython) -> SandboxSpec:
    """The sandbox for work on a copy: with the objects of its commits and the project's own Python."""
    return SandboxSpec(
        desktop=False,
        workspace=tree.folder,
        read_only=(_objects(tree, repository) if level == 3 else {}) | python.mounts,
        links=python.links,
        env=python.env,
    )


def _objects(tree: WorkTree, repository: Repository) -> dict[Path, str]:
    """Where the folders of objects are for programs inside."""
    return {folder: _SHOWN_AT.format(number) for number, folder in enumerate(tree.objects(repository))}


def tests_of(events: Sequence[Event]) -> list[Tested]:
    """The tests of a run as far as no step back has undone them, the first of them before any change."""
    found = [one for one in live(events) if isinstance(one, Tested)]
    first = max((at for at, one in enumerate(found) if one.attempt == 0), default=0)
    return found[first:]


def without_traces(events: Sequence[Event], tree: WorkTree, store: Path) -> list[str]:
    """Take away what tests have left in the copy where the run was killed in them; sentences on what stays.

    events: of the episode. store: where its snapshots are.
    """
    last = next(
        (
            one
            for one in reversed(live(events))
            if isinstance(one, Intended | Tested) or (isinstance(one, SnapshotTaken) and one.tests)
        ),
        None,
    )
    if not isinstance(last, SnapshotTaken):
        return []
    try:
        restored = Snapshots(tree.folder, store).restore(last.snapshot)
    except SandboxError as error:
        return [f"What the tests left when the run was killed in them is still there: {error}"]
    return [f"Left by the tests when the run was killed in them: {one}." for one in restored.problems[:3]]


class CodeWork:
    """One piece of work on a repository. What its tests have said is read from the log each time.

    tests: how its tests are run, where the user said it; seconds: after which they are ended. attempts: how
    often the work is looked at.
    """

    def __init__(
        self,
        instruction: str,
        repository: Repository,
        tree: WorkTree,
        events: EventLog,
        *,
        notes: Sequence[str] = (),
        tests: str | None = None,
        seconds: float = 900.0,
        attempts: int = 3,
        level: int = 3,
    ) -> None:
        self._instruction = instruction
        self._repository = repository
        self._tree = tree
        self._events = events
        self._notes = notes
        self._tests = tests
        self._seconds = seconds
        self._attempts = attempts
        self._level = level
        # By the user's folder and not by the copy, whose links may be anything after programs were at work.
        self._python = own_python(repository.folder, level)
        self._no_tests = ""

    def sandbox_spec(self) -> SandboxSpec:
        return code_spec(self._tree, self._repository, self._level, self._python)

    def screen(self, box: Sandbox) -> Screen | None:
        return None

    async def start(self, box: Sandbox) -> str:
        """Give the copy its `.git`, run the tests as they are, and say what is to be done."""
        places: dict[Path, str] | None = _objects(self._tree, self._repository)
        if self._level == 0:
            places = {folder: str(folder) for folder in self._tree.objects(self._repository)}
        elif self._level == 2:
            places = None
        await asyncio.to_thread(self._tree.give_git, self._repository, places)
        for note in self._python.notes:
            self._events.append(Told(step=0, text=note))
        command, why = TestCommand(self._tests or "", "--test"), ""
        if self._tests is None:
            found, why = await choose(box, await asyncio.to_thread(find_commands, box.files))
            command, self._no_tests = found or command, why
        if why:
            self._events.append(Told(step=0, text=why))
        before = await self._test(box, command.run, "", 0) if command.run else None
        repository = self._repository
        where = f" on branch {repository.branch}" if repository.branch else ""
        return first_prompt(
            self._instruction,
            name=repository.folder.name,
            at=f" at commit {repository.head[:12]}{where}" if repository.head else "",
            before=before,
            no_tests=why,
            notes=[*self._notes, *self._python.notes],
            files=box.files,
        )

    async def finished(self, box: Sandbox) -> bool:
        return False

    async def review(self, box: Sandbox, end: End) -> str | None:
        """Run the tests on what the model says is finished: why it is not, or None."""
        tests = await self._look(box, again=True)
        if not tests:
            return None
        tested = tests[-1]
        seen = compare(tests[0], tested)
        left = self._attempts - tested.attempt
        earlier = [one for one in tests[1:-1] if one.tree == tested.tree]
        if seen.passes or left <= 0 or (seen.good and earlier):
            return None
        return objection(seen, tested, left)

    async def grade(self, box: Sandbox, end: End) -> Grade:
        """By the project's tests. Work that was not said to be finished has not passed, whatever they say."""
        tests = await self._look(box, again=False)
        unfinished = "" if end.status == "done" else "The model did not say that it has finished. "
        if not tests:
            told = unfinished + (self._no_tests or "No tests were run; the rest is the model's own word.")
            return Grade(0.0, None if not unfinished else False, told)
        seen = compare(tests[0], tests[-1])
        if not seen.known and not unfinished:
            return Grade(0.0, None, seen.words)
        good = seen.good and not unfinished
        return Grade(float(good), good, unfinished + seen.words)

    async def _look(self, box: Sandbox, *, again: bool) -> list[Tested]:
        """All that the tests have said, the last of the work as it is now; none without tests. again: also if
        that is known.
        """
        await box.shell.end_all()
        tree, _ = await asyncio.to_thread(self._tree.take)
        events = (await asyncio.to_thread(read_run, self._events.folder)).events
        tests = tests_of(events)
        if tests and (again or tests[-1].tree != tree):
            step = max(
                (one.step for one in live(events) if isinstance(one, Answered) and not one.parent), default=1
            )
            tests.append(await self._test(box, tests[-1].command, tree, len(tests), step))
        return tests

    async def _test(self, box: Sandbox, command: str, tree: str, attempt: int, step: int = 0) -> Tested:
        """Run the tests; what they leave behind in the workspace is taken away again, also when they are
        broken off. step: after whose answer; 0 is before the first, where a run that is killed begins again.
        """
        try:
            before: str | None = await box.snapshot("before the tests were run")
        except SandboxError:
            before = None
        if before is not None and step:
            self._events.append(SnapshotTaken(step=step, snapshot=before, tests=True))
        try:
            tested = await run_tests(box, command, self._seconds, attempt, tree)
        finally:
            if before is not None:
                await box.restore(before)
        self._events.append(tested)
        return tested
