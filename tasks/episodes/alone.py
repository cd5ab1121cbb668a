"""Episodes in which a model plays alone and nothing is kept but how they went: for measuring."""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pilotfish.tasks.episodes.cdp import PageError
from pilotfish.tasks.episodes.corrections import SCREEN_ACTIONS, Student
from pilotfish.tasks.episodes.pages import MiniWob, Screen

End = Literal["page", "model", "no action", "steps", "stuck", "broken"]


@dataclass(frozen=True)
class Result:
    """How an episode went.

    reward: the page's undecayed one, 0 where it saw no end. end: the page ended the episode; the model said
    that it is done, or called for nothing that these pages can take; the steps were used up; the page broke.
    """

    task: str
    seed: int
    reward: float
    steps: int
    seconds: float
    end: End

    @property
    def passed(self) -> bool:
        """As MiniWoB++ counts it: a reward above 0."""
        return self.reward > 0

    def as_json(self) -> dict[str, Any]:
        """A line of a file of results."""
        return asdict(self)


async def play_alone(
    screen: Screen, web: MiniWob, task: str, seed: int, student: Student, *, steps: int, stuck: int
) -> Result:
    """Let a model play one MiniWoB++ episode, untimed, for so many steps at most.

    It ends before, as failed, when the model has called for the same action on the same picture `stuck` times
    running.
    """
    screen.rng = random.Random(f"alone:{task}:{seed}")
    began = time.monotonic()
    await web.start(screen, task, seed)
    end: End = "broken"
    taken, reward, same = 0, 0.0, 0
    before: bytes | None = None
    last: tuple[dict[str, Any], bytes] | None = None
    try:
        while True:
            if await screen.page.evaluate("WOB_DONE_GLOBAL"):
                end = "page"
                break
            if taken == steps:
                end = "steps"
                break
            now = await screen.page.capture()
            student.sees(" ".join(screen.utterance.split()), now if before is None else before, now)
            before = now
            action = await student.answers()
            if action is None or action["action"] not in SCREEN_ACTIONS:
                end = "no action"
                break
            same = same + 1 if (action, now) == last else 1
            last = action, now
            if same == stuck:
                end = "stuck"
                break
            taken += 1
            student.does(action)
            try:
                await screen.act(action)
            except (ValueError, KeyError):  # a key that no keyboard has
                end = "no action"
                break
            if action["action"] in ("done", "infeasible"):
                end = "model"
                break
        reward = float(await web.reward(screen) or 0)
    except PageError:
        end = "broken"
    return Result(task, seed, reward, taken, time.monotonic() - began, end)
