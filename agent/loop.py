"""One episode: observe, decide, act, record.

A step is one answer of the model and the one call it makes. Everything is in the event log before anything
depends on it, so a run can be killed at any moment and resumed from its log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pilotfish.agent import events as log
from pilotfish.agent.approval import Approval
from pilotfish.agent.control.reach import NO_SCREEN
from pilotfish.agent.control.steering import Steering
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.executing import Executor
from pilotfish.agent.health import Health
from pilotfish.agent.keeping import Keeper
from pilotfish.agent.lending import Lender
from pilotfish.agent.limits import (
    Answered,
    Budget,
    Done,
    EpisodeOver,
    Finished,
    HandsWanted,
    Infeasible,
    MachineBroke,
    NotExecuted,
    Stopped,
)
from pilotfish.agent.policy import Policy
from pilotfish.agent.prefix import RepositoryPrefix
from pilotfish.agent.prompt import NOT_EXECUTED, sent_back_turn
from pilotfish.agent.querying import Querier, specs_of
from pilotfish.agent.recorder import CaptureError, Observed
from pilotfish.agent.reply import OnProgress, Reply
from pilotfish.agent.resume import Standing
from pilotfish.agent.stepback import Traveller, Way
from pilotfish.agent.transcript import Transcript
from pilotfish.agent.view import View, Watching
from pilotfish.agent.waiting import Interrupt, or_stopped
from pilotfish.model.protocol import (
    Limits,
    Message,
    Model,
)
from pilotfish.sandbox import Sandbox, SandboxError
from pilotfish.tasks.environment import End, Environment, Grade, StartError
from pilotfish.tools.base import (
    Tool,
    ToolResult,
)

T = TypeVar("T")
Review = Callable[[Sandbox, End], Awaitable[str | None]]
"""Looks at the work when the model says that it has finished: why it has not, or None."""


@dataclass(frozen=True)
class Outcome:
    """How an episode went: what ended it, and what that was worth."""

    end: str
    reason: str
    grade: Grade
    answer: str
    steps: int
    seconds: float


@dataclass(eq=False)
class Episode:
    """One task, one model, one sandbox. Call `run` once.

    `box` is open and of the environment's spec. `stop` ends the episode within a second. `sampling` bounds
    one answer, `budget` the whole episode.
    """

    number: int
    task: str
    environment: Environment
    box: Sandbox
    tools: Sequence[Tool[Any]]
    model: Model
    events: log.EventLog
    policy: Policy
    budget: Budget
    stop: asyncio.Event
    seed: int | None = None
    sampling: Limits = field(default_factory=Limits)
    watching: Watching = field(default_factory=Watching)
    conversation: Conversation = field(default_factory=Conversation)
    resumed: Standing | None = None
    """Where an earlier process left this episode, or a step back has brought it. Unless there is a way to go,
    the workspace is as it was left, and it is not set up again.
    """
    keeps_tools: bool = False
    """Leave the tools open for the next episode in the same sandbox; else they are closed before grading."""
    review: Review | None = None
    hand_over: Callable[[Episode, str], Awaitable[ToolResult]] | None = None
    """Has a part of the work done in a conversation of its own."""
    keeps_snapshots: bool = False
    """Whether the workspace is kept before each call that may write to it."""
    on_progress: OnProgress | None = None
    """Told how far the model has computed a prompt, which is in no log."""
    repository: RepositoryPrefix | None = None
    """What stands before the task, and tells what has changed in it after each call."""
    steering: Steering = field(default_factory=Steering)
    """The people beside the run. A message to one that is at a sub-task is for both conversations."""
    is_part: bool = False
    """Whether it is a sub-task of another episode."""
    log_typing: bool = False
    """Whether the log keeps what a person types, and not only how much."""
    _view: View = field(init=False)
    _health: Health = field(init=False)
    _transcript: Transcript = field(init=False)
    _querier: Querier = field(init=False)
    _executor: Executor = field(init=False)
    _answer: str = field(init=False, default="")
    _breaking: asyncio.Task[str] | None = field(init=False, default=None)
    """Ends, with a sentence, when the machine does not work any more."""
    _keeper: Keeper | None = field(init=False, default=None)
    _pending: Reply | None = field(init=False, default=None)
    """An answer of which an earlier process had asked whether it may run."""
    _later: list[Message] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._view = View(self.environment, self.box, self.watching)
        self._health = Health(self.box, self.tools)
        self._transcript = Transcript(self.events, self.conversation)
        if self.keeps_snapshots:
            self._keeper = Keeper(self.box, self.events, of_part=self.is_part)

    async def run(self) -> Outcome:
        """Play the episode to its end and grade it. Raises `GoBack` when a person wants it to go on before an
        earlier step, and `log.LogError`: all else is an outcome.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                await self._start(stack)
                self._querier, self._executor = self._querying(), self._executing()
                self._breaking = asyncio.ensure_future(
                    self._health.until_broken(lambda: self._querier.thinks)
                )
                stack.callback(self._breaking.cancel)
                while True:
                    try:
                        await self.step()
                    except (Answered, Done, Infeasible) as over:
                        await self._look_over(over)
            except EpisodeOver as over:
                return await self._finish(over)

    async def step(self) -> None:
        """One answer, one call."""
        self.budget.check()
        if (pending := self._pending) is not None:
            self._pending = None
            try:
                await self._act(pending)
            finally:
                self._hear_later()
        else:
            await self._heed_people()
            try:
                reply = await self._decide()
            except HandsWanted:
                return  # the step begins again by lending them
            await self._act(reply)
        await self._see_whether_it_ended()

    async def _decide(self) -> Reply:
        has_screen = self._view.screen is not None
        return await self._querier.query(self.conversation.messages, self._step, has_screen=has_screen)

    def _querying(self) -> Querier:
        return Querier(
            self.model,
            specs_of(self.tools),
            self.sampling,
            self.budget,
            self.steering,
            self._transcript,
            self.stop,
            self.on_progress,
            self._or_stopped,
        )

    def _executing(self) -> Executor:
        hand_over = self.hand_over
        return Executor(
            self.tools,
            self.box,
            self._view,
            self._health,
            self.budget,
            Approval(self.policy, self.steering, self.events, self.box.files),
            self.steering,
            self._keeper,
            self._transcript,
            None if hand_over is None else (lambda text: hand_over(self, text)),
            self._or_stopped,
        )

    async def _act(self, reply: Reply) -> None:
        """Execute the first call of a reply, tell the model the result, and report the other calls."""
        first, *others = reply.calls
        self._answer = reply.text
        began_s = self.budget.elapsed_s
        refused: NotExecuted | None = None
        seen: Observed | None = None
        try:
            result, seen = await self._executor.execute(first, self._step)
        except NotExecuted as error:
            result, refused = ToolResult(False, str(error)), error
        goes_on = result.end is None or self.steering.has_messages(self.is_part)
        if seen is None and self._view.screen is not None and goes_on:
            seen = await self._look()
        result = await self._with_changes(await self._executor.with_limits(result), executed=refused is None)
        seconds = self.budget.elapsed_s - began_s
        step, executed = self._step, refused is None
        self._transcript.result(step, first.call.id, result, seen, executed=executed, seconds=seconds)
        if result.plan:
            items = [log.PlanItem(title=item.title, status=item.status) for item in result.plan]
            self.events.append(log.Planned(step=self._step, items=items))
        for said in others:
            self._transcript.no_result(step, said.call.id, NOT_EXECUTED)
        self.budget.used_steps += 1
        self.budget.count_format(refused)
        match result.end:
            case "done":
                raise Done(answer=reply.text)
            case "infeasible":
                raise Infeasible(answer=reply.text)

    async def _heed_people(self) -> None:
        """Hold while a person wants it, and tell the model what a person has said meanwhile."""
        self.budget.begin_step()
        reach = self.steering.reach
        self._say_what_can_be_reached()
        with self.budget.held():
            messages = await self._or_stopped(self.steering.before_step(self._step, part=self.is_part))
            while reach.hands_wanted.is_set():
                await self._lend()
                messages = await self._or_stopped(self.steering.before_step(self._step, part=self.is_part))
        for text in messages:
            self._transcript.spoken(self._step, text)

    def _say_what_can_be_reached(self) -> None:
        screen, reach = self._view.screen, self.steering.reach
        why = "" if screen is not None else NO_SCREEN
        if self.is_part:
            why = "A sub-task is at work, which has no screen; wait until it is over."
        elif screen is not None and screen.shared:
            why = "The run works on your own desktop, where your mouse and keyboard are yours anyway."
        if not self.is_part:
            reach.has_screen = screen is not None
        reach.no_hands = why
        can_go = reach.check_back is not None and (self._step > 1 or self.is_part)
        self.steering.change(has_screen=reach.has_screen, can_take_over=not why, can_step_back=can_go)

    async def _lend(self) -> None:
        """Lend mouse and keyboard to the person who wants them."""
        assert self._view.screen is not None
        reach, keeps = self.steering.reach, self.log_typing
        lender = Lender(reach, self.tools, self._keeper, self._look, self._or_stopped, keeps)
        await lender.lend(self._view.screen, self._transcript, self._step)

    async def _look_over(self, over: EpisodeOver) -> None:
        """Have the work of a model that has finished looked at. Raises `over` if it is accepted; it is not
        while there is something that the model has not been told.
        """
        if self.steering.has_messages(self.is_part):
            try:
                self.budget.check()
            except EpisodeOver:
                raise over from None
            return
        if self.review is None or not isinstance(over, Answered):
            raise over
        try:
            objection = await self._or_stopped(self.review(self.box, End(over.status, over.answer)))
        except SandboxError as error:
            raise MachineBroke(self._health.trouble or str(error)) from error
        if objection is None and self.steering.has_messages(self.is_part):
            return
        if objection is None:
            raise over
        self.events.append(log.SentBack(step=self._step, text=objection))
        self.conversation.append(sent_back_turn(objection))

    @property
    def _step(self) -> int:
        return self.budget.used_steps + 1

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        if not self.is_part:
            self.steering.change(phase="starting", step=0, episode=self.number, task=self.task)
        if self.resumed is not None:
            self._take_up(self.resumed)
            if self.resumed.way is not None:
                await self._go_back(self.resumed.way, stack)
                await self._show(stack)
                await self._see_whether_it_ended()
            return
        instruction = ""
        try:
            instruction = await self._or_stopped(self.environment.start(self.box))
            self._view.find()
            await self._view.open(stack)
            seen = await self._or_stopped(self._view.look())
        except (StartError, SandboxError, CaptureError) as error:
            self._record_start(instruction, None)
            raise MachineBroke(str(error)) from error
        except Stopped:
            self._record_start(instruction, None)
            raise
        self.budget.start_clock()
        self._record_start(instruction, seen)
        await self._show(stack)
        before = ""
        if self.repository is not None:
            limits = replace(self.sampling, max_seconds=self.budget.remaining_s)
            before = await self._or_stopped(self.repository.prepare(specs_of(self.tools), limits, self.stop))
        self._transcript.open(instruction, seen, before)
        await self._see_whether_it_ended()

    async def _show(self, stack: contextlib.AsyncExitStack) -> None:
        """Let those who watch see the screen, until the stack is left."""
        screen = self._view.screen
        camera = None if screen is None else self.box.camera(screen.display)
        if screen is not None and camera is not None:
            self.steering.reach.show(screen, camera)
            stack.push_async_callback(self.steering.reach.hide)

    async def _go_back(self, way: Way, stack: contextlib.AsyncExitStack) -> None:
        """Have files and screen be what they were before a step."""
        traveller = Traveller(
            self.box,
            self.environment,
            self._view,
            self.tools,
            self.events.frames,
            self._or_stopped,
            lambda words: self.steering.change(note=words),
        )
        try:
            arrived = await traveller.go(way, stack)
        except (StartError, SandboxError, CaptureError) as error:
            raise MachineBroke(str(error)) from error
        finally:
            self.steering.change(note="")
        self.budget.back_to(way.to)
        self._transcript.stepped_back(way.step, way.to, arrived.note, arrived.told, arrived.seen)
        self.steering.went_back(way.to, arrived.note)

    def _take_up(self, standing: Standing) -> None:
        """Know what was said and used before."""
        self.conversation = standing.conversation
        self._transcript = Transcript(self.events, self.conversation)
        self.budget.used_steps, self.budget.used_tokens = standing.used_steps, standing.used_tokens
        for call, text in standing.closing:
            self._transcript.no_result(standing.used_steps, call.id, text)
        self._pending, self._later = standing.pending, standing.later
        if self._pending is None:
            self._hear_later()

    def _hear_later(self) -> None:
        """Say what a person had said while the answer was open that an earlier process left."""
        for turn in self._later:
            self.conversation.append(turn)
        self._later = []

    def _record_start(self, instruction: str, seen: Observed | None) -> None:
        specs = [
            {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
            for spec in specs_of(self.tools)
        ]
        screen = self._view.screen
        self.events.append(
            log.EpisodeStarted(
                episode=self.number,
                task=self.task,
                seed=self.seed,
                model=self.model.name,
                instruction=instruction,
                tools=specs,
                screen=None if screen is None else (screen.width, screen.height),
                clip=self._transcript.clip_data(seen),
            )
        )

    async def _with_changes(self, result: ToolResult, *, executed: bool) -> ToolResult:
        """Add what a call has changed in the files that stand before the task."""
        if self.repository is None or not executed:
            return result
        told = await self._or_stopped(self.repository.changes())
        return replace(result, text=f"{result.text}\n{told}") if told else result

    async def _look(self) -> Observed | None:
        try:
            return await self._or_stopped(self._view.look())
        except CaptureError as error:
            raise MachineBroke(self._health.trouble or str(error)) from error

    async def _see_whether_it_ended(self) -> None:
        if trouble := self._health.trouble or self._health.browser_trouble:
            raise MachineBroke(trouble)
        try:
            if await self._or_stopped(self.environment.finished(self.box)):
                raise Finished(answer=self._answer)
        except SandboxError as error:
            raise MachineBroke(str(error)) from error

    async def _finish(self, over: EpisodeOver) -> Outcome:
        """Let the tools go, grade, and record the end."""
        if not self.is_part:
            self.steering.change(phase="grading")
            for text in self.steering.untold():
                self.events.append(log.Spoken(step=self._step, text=text))
        if not self.keeps_tools:
            for tool in self.tools:
                await tool.close()
        grade = await self._grade(over)
        steps, seconds = self.budget.used_steps, round(self.budget.elapsed_s, 3)
        reason = over.reason or grade.reason
        outcome = Outcome(over.name, reason, grade, over.answer, steps, seconds)
        self.events.append(
            log.EpisodeEnded(
                episode=self.number,
                end=over.name,
                answer=over.answer,
                score=grade.score,
                passed=grade.passed,
                reason=reason,
                steps=steps,
                seconds=seconds,
                product=dict(grade.product),
            )
        )
        return outcome

    async def _grade(self, over: EpisodeOver) -> Grade:
        if over.status == "stopped":
            return Grade(0.0, None, "The run was stopped before the task was finished.")
        try:
            return await self._or_stopped(self.environment.grade(self.box, End(over.status, over.answer)))
        except Stopped:
            return Grade(0.0, None, "The run was stopped while the task was graded.")
        except (MachineBroke, SandboxError) as error:
            return Grade(0.0, False, f"The task cannot be graded: {error}")

    async def _or_stopped(self, work: Awaitable[T], *interrupts: Interrupt) -> T:
        return await or_stopped(work, self.stop, self._breaking, self.steering.reach.back_wanted, *interrupts)
