"""What people beside a run want of it, and what it tells them: the object that the loop talks to.

It works the same with nobody there: a call that has to be asked about is denied then, and nothing waits.
Those who watch are listeners; the socket's server is one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from pilotfish.agent import events as log
from pilotfish.agent.control.reach import Reach
from pilotfish.agent.control.refusal import Refusal
from pilotfish.agent.control.wire import (
    Decide,
    Delta,
    FromRun,
    Input,
    Pause,
    Question,
    QuestionOver,
    State,
    call_digest,
)
from pilotfish.agent.policy import Policy, Rule, spelt
from pilotfish.agent.rule_file import RuleFileError, save_rule, what_is_wrong
from pilotfish.agent.safetext import shortened
from pilotfish.agent.stopping import Stop
from pilotfish.model.protocol import ProgressChunk

TAKES_OVER = (
    "The user took mouse and keyboard over before it was answered; look at the screen when they have handed "
    "back."
)
Listener = Callable[[FromRun], None]
Check = Callable[[dict[str, Any]], str | None]
"""Looks at arguments that a person has edited: what is wrong with them, in a sentence, or None."""


@dataclass(frozen=True)
class Answer:
    """What a person says of a call. arguments: those to execute instead; None is the call as it is."""

    verdict: Literal["once", "task", "deny"]
    reason: str = ""
    arguments: dict[str, Any] | None = None


AskTerminal = Callable[[Question], Awaitable[Answer]]
"""Shows a question on the run's own terminal and reads the answer there."""


@dataclass(eq=False)
class _Waiting:
    question: Question
    check: Check
    answer: asyncio.Future[Answer] = field(default_factory=asyncio.Future)


class Steering:
    """Holds, messages, questions and what is being done, of one run. All of it within the run's event loop.

    supervised: somebody is expected, so that a question waits even while nobody is connected. terminal: asks
    at the run's own terminal. events: where what people do is recorded. policy: takes rules. run_warning:
    stands beside each question. messages: those that an earlier process had accepted and not told.
    """

    def __init__(
        self,
        stop: asyncio.Event | None = None,
        *,
        supervised: bool = False,
        terminal: AskTerminal | None = None,
        events: log.EventLog | None = None,
        policy: Policy | None = None,
        run_warning: str = "",
        messages: Sequence[str] = (),
    ) -> None:
        self.state = State(phase="starting", messages=len(messages))
        self.listeners: list[Listener] = []
        self.reach = Reach(self.change)
        """Step back, mouse and keyboard, and the live screen."""
        self._stop = stop
        self._supervised = supervised
        self._terminal = terminal
        self._events = events
        self._policy = policy
        self._warning = run_warning
        self._wake = asyncio.Event()
        self._single = 0
        self._messages = [*messages]
        self._heard: list[str] = []  # by a sub-task, and not yet by the whole
        self._questions: dict[int, _Waiting] = {}
        self._asked = 0
        self._written: list[Delta] = []

    # What the loop tells.

    def change(self, **fields: Any) -> None:
        """Change what is said of the run (fields of `State`), and tell it if it is news."""
        state = self.state.model_copy(update=fields)
        if state != self.state:
            self.state = state
            self._say(state)
        if state.phase in ("grading", "ended"):
            self.reach.over()

    def begin_answer(self) -> None:
        """The model is asked; what it wrote before is over."""
        self._written = []
        self.change(phase="thinking", computed=0, tokens=0)

    def wrote(self, kind: Literal["thinking", "text"], text: str) -> None:
        """The model has written more of its answer."""
        if self.state.phase == "reading":
            self.change(phase="thinking", computed=0, tokens=0)
        delta = Delta(step=self.state.step, kind=kind, text=text, start=not self._written)
        last = self._written[-1] if self._written else None
        if last is not None and last.kind == kind:
            self._written[-1] = last.model_copy(update={"text": last.text + text})
        else:
            self._written.append(delta)
        self._say(delta)

    def progress(self, chunk: ProgressChunk) -> None:
        """The model has read so much of its prompt."""
        if chunk.done < chunk.total:
            self.change(phase="reading", computed=chunk.done, tokens=chunk.total)
        elif self.state.phase == "reading":
            self.change(phase="thinking", computed=0, tokens=0)

    async def before_step(self, step: int, *, part: bool = False) -> list[str]:
        """Hold for as long as a person wants it; returns the messages that the model is to be told now.

        part: in a sub-task, whose steps are counted apart; the whole is told the messages as well, later.
        """
        if not part:
            self.change(step=step)
        while self.holds and not self.reach.hands_wanted.is_set():
            self.change(phase="paused")
            self._wake.clear()
            await self._wake.wait()
        if self.reach.hands_wanted.is_set():
            return []
        self._single = max(0, self._single - 1)
        if not part:
            return self.untold()
        messages, self._messages = self._messages, []
        self._heard += messages
        self.change(messages=0)
        return messages

    def untold(self) -> list[str]:
        """The messages that the model, in the conversation that is the run's own, has not been told yet; they
        are taken to be told now.
        """
        messages, self._heard, self._messages = [*self._heard, *self._messages], [], []
        self.change(messages=0)
        return messages

    async def ask(self, question: Question, check: Check) -> Answer | None:
        """Ask whoever is there about a call; the first answer counts. None: nobody is there.

        The question's number is given here. check: see `Check`.
        """
        self._asked += 1
        question = question.model_copy(update={"question": self._asked, "run_warning": self._warning})
        waiting = _Waiting(question, check)
        terminal: asyncio.Future[Answer] | None = None
        if self.reach.hands_wanted.is_set():  # who wants mouse and keyboard waits for the end of this step
            return Answer("deny", TAKES_OVER)
        if not self.somebody_is_there:
            return None
        try:
            self._questions[self._asked] = waiting
            self.change(phase="asking")
            self._say(question)
            if self._terminal is not None:
                terminal = asyncio.ensure_future(self._terminal(question))
            while not waiting.answer.done():
                if not self.somebody_is_there:
                    return None
                self._wake.clear()
                wake = asyncio.ensure_future(self._wake.wait())
                try:
                    watched: set[asyncio.Future[Any]] = {waiting.answer, wake}
                    watched |= {terminal} if terminal else set()
                    await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    wake.cancel()
                if terminal is not None and terminal.done() and not waiting.answer.done():
                    try:
                        waiting.answer.set_result(terminal.result())
                    except OSError:  # it has gone; others may be there
                        self._terminal = terminal = None
            return waiting.answer.result()
        finally:
            del self._questions[question.question]
            if terminal is not None and not terminal.done():
                terminal.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await terminal
            self._say(QuestionOver(question=question.question))
            self.change(phase="acting")

    # What is so now.

    @property
    def holds(self) -> bool:
        """Whether the next step has to wait."""
        return self.state.paused and not self._single

    def has_messages(self, part: bool = False) -> bool:
        """Whether a person has said something that the model has not been told. part: see `before_step`."""
        return bool(self._messages or (self._heard and not part))

    @property
    def somebody_is_there(self) -> bool:
        """Whether a question can be answered, now or when the one comes who is expected."""
        return self._supervised or self._terminal is not None or self.state.clients > 0

    @property
    def questions(self) -> list[Question]:
        """Those that wait."""
        return [waiting.question for waiting in self._questions.values()]

    @property
    def written(self) -> list[Delta]:
        """What the model has written so far of the answer that it is at."""
        return list(self._written)

    # What a person wants. All raise `Refusal`.

    def pause(self, request: Pause) -> str:
        """Hold before the next step, take one step, or go on."""
        self._not_over()
        if request.on and request.single and self.state.paused:
            self._single += 1
        elif not request.on:
            self._single = 0
        if request.on != self.state.paused:
            self._record(log.Paused(step=self.state.step, on=request.on))
        self.change(paused=request.on)
        self._wake.set()
        if not request.on:
            return "The run goes on."
        return "The run takes one step." if request.single else "The run holds before its next step."

    def tell(self, text: str) -> str:
        """A message to the agent, which reads it before its next answer."""
        self._not_over()
        if not text.strip():
            raise Refusal("The message is empty; say something.")
        self._record(log.MessageLeft(text=text))
        self._messages.append(text)
        self.change(messages=len(self._messages))
        return "The agent reads it before its next answer."

    def decide(self, request: Decide) -> str:
        """Answer a question. What is allowed must be what was asked, byte for byte."""
        waiting = self._questions.get(request.question)
        if waiting is None or waiting.answer.done():
            raise Refusal(f"Question {request.question} does not wait any more; it was answered or is gone.")
        call = waiting.question.call
        if request.verdict == "deny":
            waiting.answer.set_result(Answer("deny", request.reason))
            return "The call is denied."
        if request.digest != call_digest(call.name, call.arguments):
            raise Refusal(
                f"What was allowed is not what question {request.question} asks (its digest differs); look "
                "at the call again."
            )
        edited = request.arguments
        if edited is not None and call_digest(call.name, edited) == request.digest:
            edited = None
        if edited is not None and (wrong := waiting.check(edited)) is not None:
            raise Refusal(wrong)
        waiting.answer.set_result(Answer(request.verdict, request.reason, edited))
        return "The call runs."

    def add_rule(self, rule: dict[str, Any], *, save: bool) -> str:
        """A rule for this run, and for later ones if it is saved."""
        self._not_over()
        if self._policy is None:
            raise Refusal("This run takes no rules; put them into the settings.")
        try:
            checked = Rule(**rule)
        except (ValidationError, TypeError) as error:
            raise Refusal(f"The rule does not fit: {what_is_wrong(error)}.") from None
        note = f"Holds for this run: {checked.verdict} {shortened(spelt(checked), 200)}"
        if save:
            try:
                note += f"; saved in {save_rule(checked)} for later ones"
            except RuleFileError as error:
                raise Refusal(str(error)) from None
        self._record(log.RuleAdded(rule=checked.model_dump(exclude_defaults=True), saved=save))
        self._policy.add(checked)
        return f"{note}."

    async def step_back(self, step: int) -> str:
        """Go back to before a step, and hold there."""
        self._not_over()
        self.change(note=f"going back to before step {step}")
        try:
            return await self.reach.step_back(step)
        finally:
            self.change(note="")

    def went_back(self, step: int, note: str) -> None:
        """The run is before the step again; it holds if a person wanted it there."""
        self._written = []
        self.change(step=step)
        if self.reach.went_back(note):
            self._single = 0
            self.change(paused=True)

    async def take_over(self, on: bool, note: str) -> str:
        """Take mouse and keyboard of the sandbox, or hand them back. A call that waits for an answer is not
        executed then, since the screen will be another one.
        """
        if not on:
            return await self.reach.give_back(note)
        self._not_over()
        taking = asyncio.ensure_future(self.reach.take_over(self.state.controller))
        await asyncio.sleep(0)
        if not taking.done():
            for waiting in self._questions.values():
                if not waiting.answer.done():
                    waiting.answer.set_result(Answer("deny", TAKES_OVER))
        self._wake.set()
        return await taking

    async def put_in(self, request: Input) -> str:
        """Something done with mouse or keyboard by the one who took over."""
        return await self.reach.put_in(request)

    def stop(self) -> str:
        """End the run in order."""
        if self._stop is None:
            raise Refusal("This run cannot be stopped from here; end its process.")
        if isinstance(self._stop, Stop):
            self._stop.because("A person stopped the run.")
        self._stop.set()
        return "The run stops."

    def attended(self, clients: int, controller: int | None) -> None:
        """So many clients are connected, and this one controls the run."""
        self.change(clients=clients, controller=controller)
        self.reach.attended(controller)
        self._wake.set()

    def _not_over(self) -> None:
        if self.state.phase in ("grading", "ended"):
            raise Refusal("The run has ended; start a new one, or go on with it by pilotfish resume.")

    def _record(self, event: log.Event) -> None:
        if self._events is not None:
            self._events.append(event)

    def _say(self, message: FromRun) -> None:
        for listener in self.listeners:
            listener(message)
