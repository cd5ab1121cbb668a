"""Plays episodes one after another: opens their sandboxes, gives them tools and limits, closes what they
used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pilotfish.agent import events as log
from pilotfish.agent.control.refusal import Refusal
from pilotfish.agent.control.steering import Steering
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.events import EventLog
from pilotfish.agent.limits import Budget, GoBack, Stopped
from pilotfish.agent.loop import Episode, Outcome, Review
from pilotfish.agent.networking import NetworkRecorder
from pilotfish.agent.policy import Policy
from pilotfish.agent.prefix import RepositoryPrefix
from pilotfish.agent.reply import OnProgress
from pilotfish.agent.resume import Standing
from pilotfish.agent.returning import standing_now
from pilotfish.agent.settings import Settings
from pilotfish.agent.start import fitted
from pilotfish.agent.stepback import NoWay, way_back
from pilotfish.agent.subtask import hand_over
from pilotfish.agent.view import Watching
from pilotfish.agent.waiting import or_stopped
from pilotfish.model.protocol import Limits, Model, ProgressChunk
from pilotfish.sandbox import Sandbox, SandboxError, SandboxSpec
from pilotfish.tasks.environment import Environment, Grade
from pilotfish.tasks.format import Limits as TaskLimits
from pilotfish.tools.base import Tool
from pilotfish.tools.registry import make_tools


@dataclass(frozen=True)
class Job:
    """One episode to play.

    workspace: a folder of the host that keeps the episode's files; None is a private one that goes with the
    sandbox.
    snapshots: a folder of the host that keeps what the workspace was before each call; None takes none.
    review: looks at the work when the model says that it has finished.
    repository: stands before the task.
    shared: whether the sandbox may serve the next job of the same spec too.
    """

    number: int
    task: str
    environment: Environment
    tools: Sequence[str]
    limits: TaskLimits
    seed: int | None = None
    workspace: Path | None = None
    snapshots: Path | None = None
    shared: bool = False
    review: Review | None = None
    repository: RepositoryPrefix | None = None


class Player:
    """Plays jobs with one log and one policy. Use as an async context manager."""

    def __init__(
        self,
        settings: Settings,
        events: EventLog,
        policy: Policy,
        stop: asyncio.Event,
        on_progress: OnProgress | None = None,
        steering: Steering | None = None,
    ) -> None:
        """on_progress: told how far the model has read a prompt, which is in no log. steering: the people
        beside the run; None is that nobody ever is.
        """
        self._steering = steering or Steering(stop)
        self._settings = settings
        self._events = events
        self._policy = policy
        self._stop = stop
        self._told_progress = on_progress
        self._box: Sandbox | None = None
        self._network = NetworkRecorder(events)
        self._tools: dict[str, Tool[Any]] = {}

    def on_progress(self, chunk: ProgressChunk) -> None:
        """A model has read so much of a prompt: tell whoever wants to know."""
        self._steering.progress(chunk)
        if self._told_progress is not None:
            self._told_progress(chunk)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_box()

    async def play(
        self,
        job: Job,
        model: Model,
        *,
        resumed: Standing | None = None,
        watching: Watching | None = None,
    ) -> Outcome:
        """Play one job to its end. Raises `SandboxError` when there is no sandbox to play in, and
        `LogError`.
        """
        settings = self._settings
        budget = Budget(
            steps=settings.max_steps or job.limits.steps,
            seconds=settings.max_seconds or job.limits.seconds,
            tokens=settings.max_tokens or job.limits.tokens,
        )
        while True:
            try:
                box = await self._box_for(job, again=resumed is not None)
            except Stopped as over:
                return Outcome(over.name, over.reason, Grade(0.0, None, over.reason), "", 0, 0.0)
            episode = self._episode(job, model, box, budget, resumed, watching)
            self._steering.reach.check_back = partial(self._check_back, job)
            try:
                outcome = await episode.run()
            except GoBack as back:
                resumed = await self._go_back(job, budget.used_steps + 1, back.to)
                continue
            except BaseException:
                await self._close_box()
                raise
            if not job.shared or outcome.end == "sandbox_error":
                await self._close_box()
            return outcome

    def _episode(
        self,
        job: Job,
        model: Model,
        box: Sandbox,
        budget: Budget,
        resumed: Standing | None,
        watching: Watching | None,
    ) -> Episode:
        settings = self._settings
        return Episode(
            number=job.number,
            task=job.task,
            environment=job.environment,
            box=box,
            tools=self._tools_for(job),
            model=model,
            events=self._events,
            policy=self._policy,
            budget=budget,
            stop=self._stop,
            seed=job.seed,
            sampling=sampling(settings, job.seed),
            watching=watching or Watching(settings.quiet_ms, settings.settle_cap_s),
            conversation=new_conversation(settings),
            resumed=resumed,
            keeps_tools=job.shared,
            review=job.review,
            repository=job.repository,
            hand_over=hand_over if "plan" in job.tools else None,
            keeps_snapshots=job.snapshots is not None,
            on_progress=self.on_progress,
            steering=self._steering,
            log_typing=settings.log_typing,
        )

    def _check_back(self, job: Job, to: int) -> None:
        """Raise `Refusal` where a job cannot go back to before a step."""
        run = log.read_run(self._events.folder)
        try:
            if run.started.host_desktop:
                raise NoWay("The run works on your own desktop, which cannot be brought back to what it was.")
            group = next(reversed(run.episodes()), [])
            way = way_back(group, to, keeps_files=job.snapshots is not None)
            if self._box is not None:
                for snapshot in {way.first, way.at} - {""}:
                    self._box.find_snapshot(snapshot)
        except (NoWay, SandboxError) as error:
            raise Refusal(str(error)) from error

    async def _go_back(self, job: Job, step: int, to: int) -> Standing:
        """Where an episode goes on that a person wants to be before a step again. What is played ends here;
        without a screen the sandbox stays.
        """
        self._steering.reach.back_wanted.clear()
        self._steering.change(phase="starting")
        self._events.append(log.SteppedBack(step=step, to=to, over=False))
        if job.repository is not None:
            job.repository.tell_anew()
        before = "" if job.repository is None else job.repository.text
        keeps_files = job.snapshots is not None
        conversation = new_conversation(self._settings)
        here = standing_now(self._events.folder, conversation, before, keeps_files=keeps_files)
        if here.way is not None and here.way.things is not None:
            await self._close_box()
        for tool in self._tools.values():
            await tool.close()
        return here

    async def _box_for(self, job: Job, *, again: bool) -> Sandbox:
        """again: for a job that goes on in the sandbox that there is, if there is one."""
        spec = fitted(job.environment.sandbox_spec(), self._settings)
        if job.workspace is not None:
            spec = replace(spec, workspace=job.workspace)
        spec = replace(spec, snapshots=job.snapshots)
        fits = self._box is not None and self._box.is_open and self._box.spec == spec
        if self._box is not None and not (fits and (job.shared or again)):
            await self._close_box()
        if self._box is None:
            self._box = await self._start(spec)
            self._box.network_log.listener = self._network
        return self._box

    async def _start(self, spec: SandboxSpec) -> Sandbox:
        starting = asyncio.ensure_future(Sandbox.start(spec))
        try:
            return await or_stopped(asyncio.shield(starting), self._stop)
        except Stopped:
            # It is not cancelled: asyncio may wait for ever where the start of a process is.
            with contextlib.suppress(SandboxError):
                await (await starting).close()
            raise

    def _tools_for(self, job: Job) -> list[Tool[Any]]:
        """The tools of a job; in a shared sandbox they go on from one episode to the next."""
        missing = [name for name in job.tools if name not in self._tools]
        self._tools |= {tool.name: tool for tool in make_tools(missing)}
        return [self._tools[name] for name in job.tools]

    async def _close_box(self) -> None:
        tools, self._tools = self._tools, {}
        for tool in tools.values():
            await tool.close()
        box, self._box = self._box, None
        if box is not None:
            await box.close()
        self._network.flush()


def new_conversation(settings: Settings) -> Conversation:
    """An empty conversation with the settings' pruning."""
    return Conversation(max_clips=settings.max_clips, block=settings.clip_block)


def sampling(settings: Settings, seed: int | None) -> Limits:
    """The bounds of one answer."""
    tokens, seconds = (512, 120.0) if settings.model == "nano" else (8192, 600.0)
    return Limits(
        max_tokens=settings.answer_tokens or tokens,
        max_seconds=settings.answer_seconds or seconds,
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=seed,
        thinking=settings.thinking,
        logprobs=settings.logprobs,
    )
