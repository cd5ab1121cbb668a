"""`pilotfish replay --check`: a whole episode executed again from its log, and every frame and text compared.

It is done in a sandbox of its own without a network, whose workspace holds what the run's own did before the
first call; no folder of the user's is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.bench import BLIND, slots
from pilotfish.agent.bench_report import plan_of
from pilotfish.agent.code_work import code_spec
from pilotfish.agent.freeform import FreeForm
from pilotfish.agent.health import Health
from pilotfish.agent.limits import MachineBroke, Stopped
from pilotfish.agent.project_python import own_python
from pilotfish.agent.reenact import Compared, Reenactment, recorded_calls
from pilotfish.agent.run import Target, environment_of, resolve
from pilotfish.agent.run_folder import SNAPSHOTS, WORKSPACE
from pilotfish.agent.settings import Settings, load_settings
from pilotfish.agent.solution import RANDOM
from pilotfish.agent.start import fitted
from pilotfish.agent.view import View, Watching
from pilotfish.agent.waiting import or_stopped
from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec, Snapshots, try_out
from pilotfish.sandbox.repository import find_repository
from pilotfish.sandbox.worktree import WorkTree
from pilotfish.tasks.environment import Environment, StartError
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.format import Task
from pilotfish.tools.registry import make_tools


@dataclass(frozen=True)
class Scene:
    """What an episode was played in. starts: whether the environment has to set it up.

    snapshot: the workspace before the first call; '' where none was kept because no call could write.
    folder: the user's or the run's, whose files are looked at then; None for a workspace that begins empty.
    """

    group: Sequence[log.Event]
    environment: Environment
    spec: SandboxSpec
    watching: Watching
    starts: bool = True
    snapshot: str = ""
    folder: Path | None = None

    @property
    def start(self) -> log.EpisodeStarted:
        first = self.group[0]
        assert isinstance(first, log.EpisodeStarted)
        return first


@dataclass(frozen=True)
class Checked:
    """What a check found. notes: what of it could not be as it was, a sentence each."""

    scene: Scene
    compared: Sequence[Compared]
    notes: Sequence[str]
    stopped: bool = False

    @property
    def differences(self) -> list[Compared]:
        return [one for one in self.compared if not one.equal]


def scene_of(run: log.RunLog, episode: int | None) -> Scene:
    """Find out how an episode can be played again. Raises `LogError`, `TaskError` or `SandboxError`, each one
    sentence, where it cannot.
    """
    started, group = run.started, _episode(run, episode)
    if started.host_desktop:
        raise log.LogError(
            f"The run {started.run} worked on your own desktop (--host), where nothing is done again; only "
            "runs in a sandbox can be checked."
        )
    if started.sandbox_level == 0:
        raise log.LogError(
            f"The run {started.run} had no sandbox (--sandbox-level 0), and its calls could do to this "
            "machine again what they did; only runs in a sandbox can be checked."
        )
    settings = load_settings(log.option_of(started, "settings") | {"network": (), "yes": False})
    watching = Watching(settings.quiet_ms, settings.settle_cap_s)
    start = group[0]
    assert isinstance(start, log.EpisodeStarted)
    if start.model == RANDOM:
        watching = BLIND
    starts, folder, asked = True, None, None
    environment: Environment
    if started.command == "bench":
        plan = plan_of(started)
        task = next((slot.task for slot in slots(plan, settings) if slot.number == start.episode), None)
        if task is None:
            raise log.LogError(f"The plan of {started.run} has no episode {start.episode}; check another.")
        environment = _of_task(task)
    elif started.command == "code":
        environment, starts = FreeForm(""), False  # its set-up is in the first snapshot
        asked = _code_spec(run, settings)
    else:
        environment, folder = _of_run(run, settings)
    spec = replace(fitted(asked or environment.sandbox_spec(), settings), workspace=None, snapshots=None)
    return Scene(group, environment, spec, watching, starts, _first_snapshot(group), folder)


async def check(
    run: log.RunLog, scene: Scene, stop: asyncio.Event, on_compared: Callable[[Compared], None]
) -> Checked:
    """Play a scene again. on_compared: told each thing as it was compared.

    Raises `SandboxError`, `CaptureError` or `LogError`, each one sentence.
    """
    try_out(scene.spec)
    things, tools = recorded_calls(scene.group), make_tools([tool["name"] for tool in scene.start.tools])
    found: list[Compared] = []

    def heard(compared: Compared) -> None:
        found.append(compared)
        on_compared(compared)

    stopped = False
    async with contextlib.AsyncExitStack() as stack:
        box = await stack.enter_async_context(Sandbox.open(scene.spec))
        breaking = asyncio.ensure_future(Health(box, tools).until_broken(lambda: False))
        stack.callback(breaking.cancel)

        async def waited(work: Awaitable[Any]) -> Any:
            return await or_stopped(work, stop, breaking)

        try:
            await waited(_set_up(run, scene, box))
            view = View(scene.environment, box, scene.watching)
            view.find()
            await view.open(stack)
            for tool in tools:
                stack.push_async_callback(tool.close)
            await Reenactment(box, view, tools, run.frames, waited, heard).run(things)
        except Stopped:
            stopped = True
        except MachineBroke as broke:
            raise SandboxError(broke.reason) from broke
        except StartError as error:
            raise SandboxError(f"The task cannot be set up again: {error}") from error
    return Checked(scene, found, _notes(run, scene), stopped)


async def _set_up(run: log.RunLog, scene: Scene, box: Sandbox) -> None:
    if scene.starts:
        await scene.environment.start(box)
    if not scene.snapshot and scene.folder is None:
        return
    store = run.folder / SNAPSHOTS
    snapshot = scene.snapshot
    if not snapshot:
        assert scene.folder is not None
        store = box.workspace.parent / "check-snapshots"
        snapshot = await asyncio.to_thread(Snapshots(scene.folder, store).take)
    restored = await asyncio.to_thread(Snapshots(box.workspace, store).restore, snapshot)
    if restored.problems:
        raise SandboxError(f"the workspace cannot be made what it was: {restored.problems[0]}.")


def _episode(run: log.RunLog, number: int | None) -> Sequence[log.Event]:
    """The last group of records of an episode. Raises `LogError`."""
    groups = run.episodes()
    numbers = sorted({first.episode for first, *_ in groups if isinstance(first, log.EpisodeStarted)})
    if not numbers:
        raise log.LogError(f"The run {run.folder} ended before it had begun; there is nothing to check.")
    if number is None and len(numbers) > 1:
        there = f"{len(numbers)} episodes, {numbers[0]} to {numbers[-1]}"
        raise log.LogError(f"The run {run.folder} has {there}; choose one with --episode.")
    wanted = numbers[0] if number is None else number
    found = [group for group in groups if group[0].episode == wanted]  # type: ignore[union-attr]
    if not found:
        raise log.LogError(
            f"The run {run.folder} has no episode {wanted}; choose from {', '.join(map(str, numbers))}."
        )
    return found[-1]


def _first_snapshot(group: Sequence[log.Event]) -> str:
    """The workspace before the first call that may write. Raises `LogError` where it was not kept."""
    first = next((event for event in group if isinstance(event, log.SnapshotTaken)), None)
    if first is not None and not first.snapshot:
        raise log.LogError(
            "The files before the first call were not kept, so nothing can be done on them again: "
            f"{first.note}"
        )
    return first.snapshot if first is not None else ""


def _of_task(task: Task) -> Environment:
    if (reason := skip_reason(task)) is not None:
        raise SandboxError(reason)
    return environment_for(task)


def _of_run(run: log.RunLog, settings: Settings) -> tuple[Environment, Path | None]:
    """The environment of `pilotfish run`, and the folder it works in where that does not begin empty."""
    options = log.option_of(run.started, "target")
    try:
        target = Target(**options | {"tools": tuple(options["tools"])})
    except (KeyError, TypeError):
        raise log.LogError(log.cannot_go_on(run.started)) from None
    _, task = resolve(target, settings)
    if task is not None:
        return _of_task(task), None
    folder = None
    if target.workspace is not None:
        folder = run.folder / WORKSPACE if target.review else Path(target.workspace)
    return environment_of(target, None), folder


def _code_spec(run: log.RunLog, settings: Settings) -> SandboxSpec:
    """The sandbox of `pilotfish code`, which needs the user's repository to be there."""
    target = log.option_of(run.started, "target")
    repository = find_repository(Path(str(target.get("repository"))))
    level = settings.sandbox_level
    return code_spec(WorkTree(run.folder), repository, level, own_python(repository.folder, level))


def _notes(run: log.RunLog, scene: Scene) -> list[str]:
    notes = []
    if run.started.network:
        notes.append(f"The run could reach {', '.join(run.started.network)}, and the check no network.")
    if scene.folder is not None and not scene.snapshot:
        notes.append(f"No call could write, so the files were those that {scene.folder} has now.")
    if any(isinstance(event, log.SteppedBack) for event in scene.group):
        notes.append("What a step back had undone was not done again.")
    return notes
