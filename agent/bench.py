"""`pilotfish bench`: many episodes of many tasks in one run, and a table read back from its log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.bench_report import Plan, episode_key, plan_of, report
from pilotfish.agent.edit_work import SUITE as EDITS
from pilotfish.agent.edit_work import EditWork, Room, edits_task
from pilotfish.agent.loop import Outcome
from pilotfish.agent.models import attention_of, model_name, open_model, shortcoming
from pilotfish.agent.player import Job, Player
from pilotfish.agent.playing import policy_of, recording, run_started
from pilotfish.agent.predictions import write_predictions
from pilotfish.agent.prefix import budget_for
from pilotfish.agent.resume import unknown_call
from pilotfish.agent.run_folder import new_run_folder
from pilotfish.agent.safetext import visible
from pilotfish.agent.settings import Settings
from pilotfish.agent.show import say, steps
from pilotfish.agent.solution import RANDOM, random_clicks
from pilotfish.agent.start import check_measurement, on_this_machine
from pilotfish.agent.status import StatusLine
from pilotfish.agent.stopping import Stop, stop_on_signals
from pilotfish.agent.view import Watching
from pilotfish.model.protocol import Model
from pilotfish.tasks.environment import Environment
from pilotfish.tasks.environment_fields import EditsEnvironment
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.explain import nearest
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import list_suites, load_suite
from pilotfish.tasks.miniwob_names import FIRST_MEASURED_SEED, SUITE, check_name
from pilotfish.tasks.miniwob_tasks import miniwob_task
from pilotfish.tasks.reader import TaskError

Progress = Callable[[int, str], None]
"""Told the place of an episode in the plan, counted from 1, and how it went."""
_LISTED = 60
"""Tasks that a sentence may name."""
# Random clicks do not look at the screen, so waiting for it to settle would only cost time.
BLIND = Watching(quiet_ms=20, cap_s=0.1)


@dataclass(frozen=True)
class Slot:
    """One episode of the plan. `number` is unique in the run."""

    number: int
    task: Task
    seed: int | None
    baseline: bool

    @property
    def key(self) -> tuple[str, int | None, bool]:
        return self.task.name, self.seed, self.baseline


def plan_miniwob(names: Sequence[str], **options: Any) -> Plan:
    """A plan for MiniWoB++; no names means every task. Raises `TaskError` for an unknown name."""
    chosen = [check_name(name) for name in names] or [task.id for task in load_suite(SUITE)]
    seed = options.pop("seed", None)
    return Plan(SUITE, tuple(chosen), seed=FIRST_MEASURED_SEED if seed is None else seed, **options)


def plan_tasks(suites: Sequence[str], only: Sequence[str] = (), *, episodes: int) -> Plan:
    """A plan for suites that ship, folders of tasks or data sets. only: of their tasks those with these
    names, as TASK or SUITE/TASK; none means all. Raises `TaskError` for an unknown suite or task.
    """
    names = list(suites) or [name for name in list_suites() if name != SUITE]
    tasks = [f"{suite}/{task.id}" for suite in names for task in load_suite(suite)]
    short = [task.rpartition("/")[2] for task in tasks]
    if unknown := next((name for name in only if name not in short and name not in tasks), None):
        near = nearest(unknown, tasks if "/" in unknown else short)
        near = near if len(tasks) < _LISTED or "nearest" in near else "; --list names them"
        raise TaskError(f"There is no task '{unknown}' in {', '.join(names)}{near}.")
    if only:
        tasks = [task for task, name in zip(tasks, short, strict=True) if task in only or name in only]
    return Plan("+".join(names), tuple(tasks), episodes, seed=0)


def slots(plan: Plan, settings: Settings) -> Iterator[Slot]:
    """The episodes of a plan in order: for each task the model's, then the baseline's."""
    number = 0
    for name in plan.tasks:
        task = _task(plan, name, settings)
        seeded = task.environment.kind in ("miniwob", "edits")
        for baseline in (False, True) if plan.baseline and seeded else (False,):
            for episode in range(plan.episodes):
                seed = plan.seed + episode if seeded else episode
                yield Slot(number, task.with_seed(seed), seed, baseline)
                number += 1


def _task(plan: Plan, name: str, settings: Settings) -> Task:
    if plan.suite == SUITE:
        return miniwob_task(name, time_limit=plan.limits)
    if plan.suite == EDITS:
        return edits_task(name, plan.tokens)
    suite, _, task_id = name.rpartition("/")
    found = next((task for task in load_suite(suite) if task.id == task_id), None)
    if found is None:
        raise TaskError(f"{suite} has no task '{task_id}' any more; start a new measurement.")
    return on_this_machine(found, settings)


async def run_bench(
    plan: Plan,
    settings: Settings,
    *,
    folder: Path | None = None,
    parallel: int = 1,
    progress: Progress | None = None,
    warn: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """Play a plan and return its report; `folder` names an unfinished run of the same plan to go on with.

    parallel: episodes played at once, each in a sandbox of its own, with one model. warn: told what a person
    should know beforehand.

    Raises `SandboxError`, `ModelError`, `TaskError` or `LogError`, each one sentence.
    """
    resumed = folder is not None
    tasks = [_task(plan, name, settings) for name in plan.tasks]
    check_measurement(tasks, settings)
    weaknesses = (shortcoming(settings, task, among_others=True) for task in tasks)
    if (weakness := next(filter(None, weaknesses), None)) is not None:
        warn(weakness)
    folder = folder or new_run_folder(settings.record_dir)
    told: Progress = progress or (lambda place, line: None)
    # From here on a signal is heeded in order, which it cannot be while the model is loaded.
    model_for = open_model(settings)
    if plan.tokens:
        budget_for(model_for(tasks[0]), plan.tokens)
    with stop_on_signals() as stop, recording(folder, stop) as events:
        groups = log.read_run(folder).episodes()
        _open(events, plan, settings, groups[-1] if groups else (), parallel, resumed=resumed)
        done = {episode_key(group) for group in groups if log.has_ended(group)}
        left = enumerate(slots(plan, settings), start=1)  # each lane takes the next one

        async def play_on(lane: log.EventLog) -> None:
            async with Player(settings, lane, policy_of(settings), stop) as player:
                for place, slot in left:
                    if slot.key in done:
                        continue
                    if (reason := skip_reason(slot.task)) is not None:
                        told(place, f"skipped: {reason}")
                        continue
                    model = random_clicks(slot.seed or 0) if slot.baseline else model_for(slot.task)
                    outcome = await _play(player, slot, model, lane)
                    told(place, _line(slot, outcome, RANDOM if slot.baseline else model_name(settings)))
                    if stop.is_set():
                        break

        if parallel == 1:
            await play_on(events)
        else:
            await _together([play_on(events.lane(number + 1)) for number in range(parallel)], stop)
    run = log.read_run(folder)
    return report(run) | {"predictions": write_predictions(run)}


async def _together(lanes: Sequence[Coroutine[Any, Any, None]], stop: Stop) -> None:
    """Await all; where one fails, the others are stopped in order first, so that the run can be resumed."""

    async def watched(lane: Coroutine[Any, Any, None]) -> None:
        try:
            await lane
        except Exception as error:
            stop.because(str(error))
            raise

    results = await asyncio.gather(*map(watched, lanes), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _open(
    events: log.EventLog,
    plan: Plan,
    settings: Settings,
    last: Sequence[log.Event],
    parallel: int,
    *,
    resumed: bool,
) -> None:
    if resumed:
        note = "The benchmark goes on with the first episode that has no end."
        events.append(log.Resumed(unknown_call=unknown_call(last), note=note))
        return
    events.append(run_started(events.folder, "bench", settings, plan=asdict(plan), parallel=parallel))


async def _play(player: Player, slot: Slot, model: Model, events: log.EventLog) -> Outcome:
    """Play a slot; when its sandbox broke, once more in a fresh one, because that says nothing of the
    model.
    """
    watching = BLIND if slot.baseline else None
    for retries_left in (1, 0):
        if isinstance(slot.task.environment, EditsEnvironment):
            outcome = await _play_edit(player, slot, model, events, slot.task.environment)
        else:
            outcome = await player.play(_job(slot, environment_for(slot.task)), model, watching=watching)
        if outcome.end != "sandbox_error" or not retries_left:
            break
    return outcome


async def _play_edit(
    player: Player, slot: Slot, model: Model, events: log.EventLog, fields: EditsEnvironment
) -> Outcome:
    """Play an edit in folders of its own, with its package before it."""
    with Room.make() as room:
        prefix = room.prefix(events, model, fields.tokens)
        job = _job(slot, EditWork(slot.task.name, fields))
        try:
            return await player.play(replace(job, workspace=room.workspace, repository=prefix), model)
        finally:
            await prefix.close()
            room.keep_layout(events.folder)


def _job(slot: Slot, environment: Environment) -> Job:
    task = slot.task
    shared = task.environment.kind == "miniwob"
    return Job(slot.number, task.name, environment, task.tools, task.limits, slot.seed, shared=shared)


def _line(slot: Slot, outcome: Outcome, who: str) -> str:
    verdict = "passed" if outcome.grade.passed else f"failed ({outcome.end})"
    if outcome.end == "stopped":
        verdict = "stopped"
    where = f"{slot.task.name} seed {slot.seed} {who}"
    return f"{where}: {verdict}, {steps(outcome.steps)}, {outcome.seconds:.1f} s"


def find_unfinished(plan: Plan, settings: Settings) -> Path | None:
    """The newest run folder of the same plan, model and attention that has not finished; None if there is
    none. Folders whose log cannot be read are passed over.
    """
    if not settings.record_dir.is_dir():
        return None
    for folder in sorted(settings.record_dir.iterdir(), reverse=True):
        try:
            run = log.read_run(folder)
            first = run.started
            found = (plan_of(first), first.model, first.attention) if first.command == "bench" else None
        except log.LogError:
            continue
        if found == (plan, model_name(settings), attention_of(settings)):
            return folder if run.ended is None or run.ended.status != "finished" else None
    return None


def terminal_progress(total: int) -> Progress:
    """Shows lines on standard error: one that is rewritten on a terminal, one each elsewhere."""
    status = StatusLine()

    def show(place: int, line: str) -> None:
        text = f"[{place}/{total}] {line}"
        if status.works:
            status.show(text)
        else:
            say(visible(text, one_line=True), sys.stderr)

    return show
