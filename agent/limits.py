"""How an episode ends: named exceptions that carry the reason, and the bounds that raise them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from pilotfish.tasks.environment import EndStatus

FORMAT_ERRORS = 3
"""Calls in a row that cannot be executed before the episode ends."""
RESAMPLES = 2
"""How often a reply without a call is sampled again."""


class EpisodeOver(Exception):
    """The episode has ended; `name` is how the log calls it, `status` what the graders are told."""

    name: ClassVar[str]
    status: ClassVar[EndStatus]

    def __init__(self, reason: str = "", *, answer: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer


class Done(EpisodeOver):
    """The model said that the task is finished."""

    name, status = "done", "done"


class Infeasible(EpisodeOver):
    """The model said that the task cannot be done."""

    name, status = "infeasible", "infeasible"


class Answered(EpisodeOver):
    """The model ended its turn with text and no call."""

    name, status = "answered", "done"


class Finished(EpisodeOver):
    """The task ended by itself."""

    name, status = "finished", "finished"


class Stopped(EpisodeOver):
    """A person or a signal stopped the run."""

    name, status = "stopped", "stopped"


class StepLimit(EpisodeOver):
    name, status = "step_limit", "limit"


class TimeLimit(EpisodeOver):
    name, status = "time_limit", "limit"


class TokenLimit(EpisodeOver):
    name, status = "token_limit", "limit"


class FormatLimit(EpisodeOver):
    """The model's replies could not be executed too many times in a row."""

    name, status = "format_limit", "error"


class ModelBroke(EpisodeOver):
    """The model could not answer."""

    name, status = "model_error", "error"


class MachineBroke(EpisodeOver):
    """The sandbox, its display or its browser died."""

    name, status = "sandbox_error", "error"


class GoBack(Exception):
    """A person wants the run to be before step `to` again, where the episode will go on."""

    def __init__(self, to: int) -> None:
        super().__init__(f"back to before step {to}")
        self.to = to


class HandsWanted(Exception):
    """A person wants mouse and keyboard, and the answer that the model is at is given up for it."""


class NotExecuted(Exception):
    """A call that was not executed; the message is what the model is told."""


class FormatError(NotExecuted):
    """It makes no sense: no such tool, or arguments that do not fit."""


class ScreenChanged(NotExecuted):
    """It was meant for a screen that is not there any more."""


class Denied(NotExecuted):
    """The policy or a person refused it."""


@dataclass
class Budget:
    """What an episode may use and has used. Steps are calls, seconds are of wall time, tokens are the
    model's own.
    """

    steps: int
    seconds: float
    tokens: int
    used_steps: int = 0
    used_tokens: int = 0
    format_errors: int = 0
    started_s: float = field(default_factory=time.monotonic)
    began: dict[int, float] = field(default_factory=dict)
    """Seconds that had been used when a step began, for those that have."""
    whole: Budget | None = None
    """Of the task that this is a part of: time that does not run here does not run there."""
    _held_s: float | None = None
    _timeouts: list[asyncio.Timeout] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        now = time.monotonic() if self._held_s is None else self._held_s
        return now - self.started_s

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.seconds - self.elapsed_s)

    def check(self) -> None:
        """Raise the limit that has been reached, if any."""
        if self.used_steps >= self.steps:
            raise StepLimit(f"The limit of {self.steps} steps was reached.")
        if self.elapsed_s >= self.seconds:
            raise TimeLimit(f"The limit of {self.seconds:g} s was reached.")
        if self.used_tokens >= self.tokens:
            raise TokenLimit(f"The limit of {self.tokens} tokens was reached.")

    def start_clock(self) -> None:
        """Count the seconds from now: setting a task up is not the model's time."""
        self.started_s = time.monotonic()

    def begin_step(self) -> None:
        """The next step begins."""
        self.began.setdefault(self.used_steps + 1, self.elapsed_s)

    def back_to(self, step: int) -> None:
        """Have used so many seconds as when a step began; none where that is not known."""
        self.started_s = time.monotonic() - self.began.get(step, 0.0)
        self.began = {number: seconds for number, seconds in self.began.items() if number < step}
        self.format_errors = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within the block no time runs: it is a person's."""
        with contextlib.nullcontext() if self.whole is None else self.whole.held():
            self._held_s = time.monotonic()
            for timeout in self._timeouts:
                timeout.reschedule(None)
            try:
                yield
            finally:
                self.started_s += time.monotonic() - self._held_s
                self._held_s = None
                for timeout in self._timeouts:
                    timeout.reschedule(asyncio.get_running_loop().time() + self.remaining_s)

    @contextlib.asynccontextmanager
    async def time_left(self) -> AsyncIterator[None]:
        """Raise TimeoutError once the time is used up within the block."""
        async with asyncio.timeout(self.remaining_s) as timeout:
            self._timeouts.append(timeout)
            try:
                yield
            finally:
                self._timeouts.remove(timeout)

    def count_format(self, refused: NotExecuted | None) -> None:
        """Count a call that made no sense, or forget those before one that did.

        Raises `FormatLimit` after `FORMAT_ERRORS` in a row.
        """
        self.format_errors = self.format_errors + 1 if isinstance(refused, FormatError) else 0
        if self.format_errors >= FORMAT_ERRORS:
            raise FormatLimit(f"{FORMAT_ERRORS} calls in a row could not be executed; the last: {refused}")
