"""What the agent's loop asks of a task: build the sandbox, start, see whether it ended by itself, grade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tools.grid import Screen

EndStatus = Literal["done", "infeasible", "finished", "limit", "stopped", "error"]


@dataclass(frozen=True)
class End:
    """How an episode ended.

    status: done = the model said so or ended its turn; infeasible = it said that the task cannot be done;
    finished = the environment ended by itself; limit = steps, seconds or tokens ran out; stopped = a
    person stopped it; error = the model or the sandbox failed.
    answer: the text of the model's final message.
    """

    status: EndStatus = "done"
    answer: str = ""


@dataclass(frozen=True)
class Grade:
    """What an episode was worth. score: 0 to 1. passed: None where nothing was judged, and the score means
    nothing then. reason: one sentence for a person. product: what the model made, for tasks that are handed
    in: the fields of a prediction in the benchmark's own form, without the model's name.
    """

    score: float
    passed: bool | None
    reason: str
    product: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:
            raise ValueError(f"a score lies between 0 and 1, not {self.score}")


class StartError(Exception):
    """A task's set-up failed, so there is no episode to run; one sentence with the step that failed."""


def first_line(error: Exception) -> str:
    """What an error of the browser says, without its call log."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


class Environment(Protocol):
    """One task, ready to be played in a sandbox of `sandbox_spec()`."""

    def sandbox_spec(self) -> SandboxSpec:
        """The sandbox this task needs; tasks of equal specs may be played one after another in one box."""
        ...

    def screen(self, box: Sandbox) -> Screen | None:
        """The region of the display that the model sees, as it is now; None for a task without a display.

        Raises `SandboxError` when it is gone.
        """
        ...

    async def start(self, box: Sandbox) -> str:
        """Set everything up and return the instruction. Raises `StartError`."""
        ...

    async def finished(self, box: Sandbox) -> bool:
        """Whether the task ended by itself, whatever the model thinks."""
        ...

    async def grade(self, box: Sandbox, end: End) -> Grade:
        """Judge the episode, after the model has stopped. Never raises for what the model did."""
        ...
