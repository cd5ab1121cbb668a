"""`pilotfish run` and `pilotfish resume`: one episode of one task, or of an instruction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pilotfish.agent import events as log
from pilotfish.agent.accounts import totals
from pilotfish.agent.control.attending import NOBODY, People
from pilotfish.agent.freeform import NAME, FreeForm, OnHost
from pilotfish.agent.models import loading, open_model, shortcoming
from pilotfish.agent.player import Job, new_conversation
from pilotfish.agent.playing import OnEvent, playing, recording, run_started
from pilotfish.agent.predictions import write_predictions
from pilotfish.agent.reply import OnProgress
from pilotfish.agent.returning import how_to_resume, take_up
from pilotfish.agent.run_folder import SNAPSHOTS, WORKSPACE, kept_apart, new_run_folder
from pilotfish.agent.safetext import visible
from pilotfish.agent.settings import Settings
from pilotfish.agent.start import check_start, on_this_machine
from pilotfish.agent.stopping import stop_on_signals
from pilotfish.sandbox import HostDesktop
from pilotfish.sandbox.review import prepare
from pilotfish.tasks.environment import Environment
from pilotfish.tasks.environment_fields import KEEPS_FILES
from pilotfish.tasks.environments import environment_for
from pilotfish.tasks.format import Limits, Task
from pilotfish.tasks.load import find_task
from pilotfish.tasks.reader import TaskError
from pilotfish.tools.registry import TOOLS

DEMO_TASK, DEMO_SEED = "miniwob/login-user", 900_003
"""A page of five steps, with a seed that neither trains the model that ships nor measures it."""
JobFor = Callable[[Path, HostDesktop | None], Job]
"""Makes a job, given the run's folder and the user's own desktop if the run works there."""


@dataclass(frozen=True)
class Target:
    """What to do: a task by name or file, or an instruction with a workspace and perhaps a desktop.

    host: whether the desktop is the user's own, of which `monitor` (a name or a number; None is the primary
    one) is the screen.
    """

    task: str | None = None
    instruction: str | None = None
    workspace: str | None = None
    desktop: bool = False
    tools: tuple[str, ...] = ()
    seed: int | None = None
    review: bool = False
    """Work in a copy of the workspace, which is itself untouched until the changes are brought over."""
    host: bool = False
    monitor: str | None = None


async def run_target(
    target: Target,
    settings: Settings,
    *,
    people: People = NOBODY,
    on_event: OnEvent | None = None,
    on_progress: OnProgress | None = None,
    warn: Callable[[str], None] = lambda sentence: None,
    command: Literal["run", "demo"] = "run",
) -> dict[str, Any]:
    """Play a target in a new run folder and return its report.

    people: who is beside it. on_event: told each record of the log. on_progress: told how far the model has
    read a prompt. warn: told what a person should know beforehand.

    Raises `TaskError`, `SandboxError`, `ModelError` or `LogError`, each one sentence.
    """
    job_for, task = resolve(target, settings)
    if target.workspace is not None:
        settings = kept_apart(settings, Path(target.workspace), "the workspace")
    folder = new_run_folder(settings.record_dir)
    check_start(environment_of(target, task), settings, task, in_place=not target.review)
    if target.host:
        HostDesktop.check(target.monitor)
    if (weakness := shortcoming(settings, task)) is not None:
        warn(weakness)
    # From here on a signal is heeded in order, which it cannot be while the model is loaded.
    people.on_wait(loading(settings))
    model = open_model(settings)(task)
    async with contextlib.AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signals())
        host = None
        if target.host:
            host = await stack.enter_async_context(HostDesktop.open(target.monitor, stop.because))
        events = stack.enter_context(recording(folder, stop, on_event))
        events.append(run_started(folder, command, settings, host, target=asdict(target)))
        player = await stack.enter_async_context(
            playing(events, stop, settings, people, on_progress, host=host)
        )
        await player.play(job_for(folder, host), model)
    return _result(folder)


async def resume_target(
    run: log.RunLog,
    settings: Settings,
    *,
    people: People = NOBODY,
    on_event: OnEvent | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Go on with a run of `run_target` that was killed or stopped, and return its report.

    A screen is brought back by doing its finished steps again. An episode where that cannot be starts again;
    its earlier steps stay in the log.
    """
    options = log.option_of(run.started, "target")
    try:
        target = Target(**options | {"tools": tuple(options["tools"])})
    except (KeyError, TypeError):
        raise log.LogError(log.cannot_go_on(run.started)) from None
    if target.host:
        raise log.LogError(
            f"The run {run.started.run} worked on your own desktop, which cannot be brought back; start anew "
            "with pilotfish run --host."
        )
    job_for, task = resolve(target, settings)
    groups = run.episodes()
    if groups and log.has_ended(groups[-1]):
        with log.EventLog(run.folder, on_event) as events:
            events.append(log.RunEnded(status="finished"))
        return _result(run.folder)
    check_start(environment_of(target, task), settings, task, in_place=not target.review)
    job = job_for(run.folder, None)
    people.on_wait(loading(settings))
    model = open_model(settings)(task)
    with stop_on_signals() as stop, recording(run.folder, stop, on_event) as events:
        keeps_files = job.snapshots is not None
        own_files = target.workspace is None or target.review
        how = how_to_resume(groups[-1] if groups else (), keeps_files=keeps_files, own_files=own_files)
        here = take_up(events, how, new_conversation(settings), keeps_files=keeps_files)
        async with playing(events, stop, settings, people, on_progress, before=run.events) as player:
            await player.play(job, model, resumed=here)
    return _result(run.folder)


def resolve(target: Target, settings: Settings) -> tuple[JobFor, Task | None]:
    """How to make the job of a target once its run folder is known, and its task."""
    for name in target.tools:
        if name not in TOOLS:
            raise TaskError(f"There is no tool '{name}'; choose from {', '.join(TOOLS)}.")
    if target.task is None:
        for name in ("computer", "browser"):
            if name in target.tools and not target.desktop:
                raise TaskError(f"The tool {name} needs a display; add --desktop.")
        if not (target.instruction or "").strip():
            raise TaskError("The instruction is empty; say what to do, or name a task.")
        return lambda folder, host: _free_job(target, folder, host), None
    task = on_this_machine(find_task(target.task), settings)
    if target.seed is not None:
        task = task.with_seed(target.seed)

    def job(folder: Path, host: HostDesktop | None) -> Job:
        keeps_files = task.environment.kind in KEEPS_FILES
        workspace = _workspace(folder) if keeps_files else None
        seed = target.seed
        kept = folder / SNAPSHOTS if keeps_files else None
        return Job(0, task.name, environment_for(task), task.tools, task.limits, seed, workspace, kept)

    return job, task


def environment_of(target: Target, task: Task | None) -> Environment:
    """What tells the sandbox that a target needs, before there is a folder for its work."""
    if task is not None:
        return environment_for(task)
    return FreeForm("", Path(target.workspace) if target.workspace else None, target.desktop)


def _free_job(target: Target, folder: Path, host: HostDesktop | None) -> Job:
    instruction = target.instruction or ""
    if target.workspace and not target.review:
        workspace = Path(target.workspace)
    elif target.workspace:
        workspace = folder / WORKSPACE
        missing = prepare(Path(target.workspace), workspace, folder / SNAPSHOTS)
        if missing := visible(missing, one_line=True):
            instruction += f"\n\nThe workspace is a copy of the user's folder, without {missing}."
    else:
        workspace = _workspace(folder)
    environment = FreeForm(instruction, workspace, target.desktop)
    if host is not None:
        environment = OnHost(instruction, workspace, host=host)
    has_screen = target.desktop or host is not None
    default = ("computer", "shell", "edit") if has_screen else ("shell", "edit")
    kept = None if has_screen else workspace
    tools = target.tools or default
    return Job(0, NAME, environment, tools, Limits(), None, kept, folder / SNAPSHOTS)


def _workspace(folder: Path) -> Path:
    path = folder / WORKSPACE
    path.mkdir(parents=True, exist_ok=True)
    return path


def _result(folder: Path) -> dict[str, Any]:
    """The report of a run, with the files that its products were written to."""
    run = log.read_run(folder)
    return report(run) | {"predictions": write_predictions(run)}


def report(run: log.RunLog) -> dict[str, Any]:
    """What `--json` prints for a run, read from its log."""
    started = run.started
    ends = [event for event in run.events if isinstance(event, log.EpisodeEnded) and not event.parent]
    starts = [event for event in run.events if isinstance(event, log.EpisodeStarted) and not event.parent]
    end = ends[-1] if ends else None
    graded = end is not None and end.passed is not None
    was_stopped = run.ended is not None and run.ended.status == "interrupted"
    return {
        "run": started.run,
        "folder": str(run.folder),
        "task": starts[-1].task if starts else "",
        "model": started.model,
        "attention": started.attention or None,
        "sandbox_level": started.sandbox_level,
        "network": started.network,
        "host_desktop": started.host_desktop,
        "end": end.end if end else "stopped" if was_stopped else "open",
        "graded": graded,
        "passed": end.passed if end and graded else None,
        "score": end.score if end and graded else None,
        "reason": end.reason if end else "",
        "answer": end.answer if end else "",
        "steps": end.steps if end else 0,
        "seconds": end.seconds if end else 0.0,
        "usage": totals(run.events).as_json(),
    }
