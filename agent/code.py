"""`pilotfish code`: a repository and an instruction in, a tested change out; the folder itself is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pilotfish.agent import events as log
from pilotfish.agent.code_work import CodeWork, tests_of, without_traces
from pilotfish.agent.control.attending import NOBODY, People
from pilotfish.agent.freeform import FreeForm
from pilotfish.agent.handback import hand_back
from pilotfish.agent.models import loading, open_model, reach
from pilotfish.agent.player import Job, Player, new_conversation
from pilotfish.agent.playing import OnEvent, playing, recording, run_started
from pilotfish.agent.prefix import RepositoryPrefix, budget_for
from pilotfish.agent.project_tests import compare
from pilotfish.agent.reply import OnProgress
from pilotfish.agent.returning import how_to_resume, standing_now
from pilotfish.agent.run import report
from pilotfish.agent.run_folder import (
    SNAPSHOTS,
    WORKSPACE,
    check_writable,
    kept_apart,
    new_run_folder,
)
from pilotfish.agent.settings import Settings
from pilotfish.agent.start import check_start
from pilotfish.agent.stopping import Stop, stop_on_signals
from pilotfish.model.protocol import Model, ModelError
from pilotfish.sandbox import SandboxError
from pilotfish.sandbox.branches import check_branch
from pilotfish.sandbox.repository import Repository, find_repository
from pilotfish.sandbox.trees import remove_tree
from pilotfish.sandbox.worktree import WorkTree
from pilotfish.tasks.format import Limits
from pilotfish.tasks.reader import TaskError

NAME: Final = "code"
TOOLS = ("shell", "edit", "index", "plan")
_LIMITS = Limits(steps=300, seconds=4 * 3600.0, tokens=1_000_000)


@dataclass(frozen=True)
class CodeTarget:
    """What to do where. tests: a command that runs the tests; None looks for one. test_seconds: after which
    they are ended. attempts: how often the work is tested. branch: a new one for the result, in the user's
    repository. patch: a file for the result, beside the one in the run's folder. context_tokens: what the
    repository may take of the model's context at the beginning; 0 is nothing, None what the model allows.
    """

    repository: str
    instruction: str
    tests: str | None = None
    test_seconds: float = 900.0
    attempts: int = 3
    branch: str | None = None
    patch: str | None = None
    context_tokens: int | None = None


async def run_code(
    target: CodeTarget,
    settings: Settings,
    *,
    people: People = NOBODY,
    on_event: OnEvent | None = None,
    on_progress: OnProgress | None = None,
    model: Model | None = None,
) -> dict[str, Any]:
    """Do the work in a new run folder and return its report. model: plays instead of the settings' own.

    Raises `TaskError`, `SandboxError`, `ModelError` or `LogError`, each one sentence.
    """
    if not target.instruction.strip():
        raise TaskError("The instruction is empty; say what to do.")
    repository = find_repository(Path(target.repository))
    _check_results(target, repository)
    settings = kept_apart(settings, repository.folder, "the repository")
    if model is None and settings.model == "nano":
        raise ModelError(
            "The model nano was trained for small screens and cannot work on code, so nothing was begun; "
            "give --model the folder of a checkpoint that can, or openai:URL#NAME."
        )
    check_start(FreeForm(""), settings, None)
    if model is None:
        people.on_wait(loading(settings))
        model = open_model(settings)(None)
        await reach(model, settings)
    budget_for(model, target.context_tokens)
    folder = new_run_folder(settings.record_dir)
    with stop_on_signals() as stop, recording(folder, stop, on_event) as events:
        events.append(run_started(folder, NAME, settings, target=asdict(target)))
        async with playing(events, stop, settings, people, on_progress) as player:
            await _work(target, settings, events, stop, repository, model, player)
    return code_report(log.read_run(folder))


async def resume_code(
    run: log.RunLog,
    settings: Settings,
    *,
    people: People = NOBODY,
    on_event: OnEvent | None = None,
    on_progress: OnProgress | None = None,
    model: Model | None = None,
) -> dict[str, Any]:
    """Go on with a run of `run_code` that was killed or stopped, and return its report.

    What was handed back stays; a copy that was not finished is made again.
    """
    try:
        target = CodeTarget(**log.option_of(run.started, "target"))
    except TypeError:
        raise log.LogError(log.cannot_go_on(run.started)) from None
    repository = find_repository(Path(target.repository))
    check_start(FreeForm(""), settings, None)
    if model is None:
        people.on_wait(loading(settings))
        model = open_model(settings)(None)
        await reach(model, settings)
    with stop_on_signals() as stop, recording(run.folder, stop, on_event) as events:
        groups = run.episodes()
        how = how_to_resume(groups[-1] if groups else (), keeps_files=True, own_files=True)
        events.append(log.Resumed(unknown_call=how.unknown, note=how.note))
        async with playing(events, stop, settings, people, on_progress, before=run.events) as player:
            await _work(target, settings, events, stop, repository, model, player, run)
    return code_report(log.read_run(run.folder))


async def _work(
    target: CodeTarget,
    settings: Settings,
    events: log.EventLog,
    stop: Stop,
    repository: Repository,
    model: Model,
    player: Player,
    earlier: log.RunLog | None = None,
) -> None:
    """Copy, play, hand back. earlier: what the log of the run holds already."""
    groups = earlier.episodes() if earlier else []
    notes: list[str] = []
    if groups:
        tree = WorkTree(events.folder)
    else:
        _remove_copy(events.folder)
        with _removed_if_it_fails(events.folder):
            tree, notes = await asyncio.to_thread(WorkTree.begin, events.folder, repository, _goes_on(stop))
    if not (groups and log.has_ended(groups[-1])):
        if groups:
            store = events.folder / SNAPSHOTS
            notes += await asyncio.to_thread(without_traces, groups[-1], tree, store)
        work = CodeWork(
            target.instruction,
            repository,
            tree,
            events,
            notes=notes,
            tests=target.tests,
            seconds=target.test_seconds,
            attempts=target.attempts,
            level=settings.sandbox_level,
        )
        laid = [one for one in groups[-1] if isinstance(one, log.LaidOut)] if groups else []
        prefix = RepositoryPrefix(
            tree.folder,
            events,
            model,
            budget_for(model, target.context_tokens) if laid or not groups else 0,
            earlier=laid[0] if laid else None,
            on_progress=player.on_progress,
        )
        job = Job(
            0,
            NAME,
            work,
            TOOLS,
            _LIMITS,
            None,
            tree.folder,
            events.folder / SNAPSHOTS,
            review=work.review,
            repository=prefix,
        )
        here = None
        if groups:
            conversation = new_conversation(settings)
            here = standing_now(events.folder, conversation, prefix.text, keeps_files=True)
        async with player:  # whose sandbox is closed before the work is handed back
            try:
                await player.play(job, model, resumed=here)
            finally:
                await prefix.close()
    await asyncio.to_thread(hand_back, target, tree, repository, events, notes, stopped=stop.is_set())


def code_report(run: log.RunLog) -> dict[str, Any]:
    """What `--json` prints, read from the log."""
    target = log.option_of(run.started, "target")
    back = next((event for event in reversed(run.events) if isinstance(event, log.HandedBack)), None)
    found: dict[str, Any] = report(run)
    tests = _tests(tests_of(run.events))
    return found | {
        "repository": target["repository"],
        "base": back.base if back else None,
        "commit": (back and back.commit) or None,
        "branch": (back and back.branch) or None,
        "patch": (back and back.patch) or None,
        "changed": [{"how": how, "path": path, "before": old} for how, path, old in back.changed]
        if back
        else [],
        "tests": tests,
        "laid_out": _laid_out(run.events),
        "notes": back.notes if back else [],
        "undone": back.undone if back else [],
    }


def _laid_out(events: Sequence[log.Event]) -> dict[str, Any] | None:
    """What of the repository stood before the task, and how the model came by it."""
    laid = [event for event in events if isinstance(event, log.LaidOut)]
    if not laid:
        return None
    read = [event for event in events if isinstance(event, log.Prefilled)]
    about = laid[-1].model_dump(include={"tokens", "budget", "counted", "files", "left_out", "note"})
    return about | {"loaded": read[-1].loaded if read else 0, "saved": read[-1].saved if read else 0}


def _tests(runs: list[log.Tested]) -> dict[str, Any] | None:
    """The tests before the change and after, told apart."""
    before = [run for run in runs if run.attempt == 0]
    after = [run for run in runs if run.attempt > 0]
    if not before:
        return None
    seen = compare(before[-1], after[-1]) if after else None
    return {
        "command": before[-1].command,
        "before": _one(before[-1]),
        "after": _one(after[-1]) if after else None,
        "attempts": len(after),
        "verdict": seen.words if seen else "",
        "new_failures": list(seen.new) if seen else [],
        "still_failing": list(seen.still) if seen else [],
    }


def _one(run: log.Tested) -> dict[str, Any]:
    return {"status": run.status, "failed": run.failed, "seconds": run.seconds}


def _check_results(target: CodeTarget, repository: Repository) -> None:
    """Raise one sentence where the result could not be handed back as it was asked for."""
    if target.attempts < 1:
        raise TaskError(f"--attempts is {target.attempts}, but must be at least 1.")
    if target.branch is not None:
        check_branch(repository, target.branch)
    if target.patch is not None:
        check_writable(Path(target.patch).absolute().parent)
        if Path(target.patch).exists():
            raise TaskError(f"--patch {target.patch} exists; give the name of a new file.")


def _goes_on(stop: Stop) -> Callable[[], None]:
    def goes_on() -> None:
        if stop.is_set():
            raise SandboxError("The run was stopped while the repository was copied.")

    return goes_on


def _remove_copy(folder: Path) -> None:
    for name in (WORKSPACE, "git"):
        if (folder / name).is_dir():
            remove_tree(folder / name)


@contextmanager
def _removed_if_it_fails(folder: Path) -> Iterator[None]:
    try:
        yield
    except SandboxError:
        _remove_copy(folder)
        raise
