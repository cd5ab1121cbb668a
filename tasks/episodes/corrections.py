"""Episodes in which a model acts and an expert says what would have been right (DAgger).

Ross, Gordon and Bagnell 2011 (arXiv:1011.0686): a policy trained on an expert's own episodes alone never
learns to leave the states that its own mistakes lead to. Here the model acts, at each state the expert's
step is the label, and the action that was taken instead stands beside it, as `taken`, for the context of
what follows.

A label is trusted as long as nobody has strayed from the expert's way; those after that only if the way
back was rewarded, which is why the expert plays on when the model has done enough wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

from pilotfish.tasks.episodes.catalog import make_scene
from pilotfish.tasks.episodes.cdp import PageError
from pilotfish.tasks.episodes.expert_tools import EXPERTS, REMEMBERING
from pilotfish.tasks.episodes.pages import Action, MiniWob, Screen, Unreachable
from pilotfish.tasks.episodes.play import MAX_STEPS, Options, add_frame, augmentation, begun, reached, record
from pilotfish.tasks.episodes.shards import Episode
from pilotfish.tasks.episodes.steps import Expert, Step
from pilotfish.tasks.episodes.teacher import Lost, Teacher, agrees

SCREEN_ACTIONS = frozenset(
    {"left_click", "double_click", "mouse_move", "left_click_drag", "scroll", "type", "key", "wait"}
    | {"done", "infeasible"}
)


class Student(Protocol):
    """Who plays one episode. It is told what the screen shows and what was done, whoever did it."""

    def sees(self, instruction: str, before: bytes, now: bytes) -> None:
        """The screen before and after the last action, as PNG; the same one twice at the start."""

    async def answers(self) -> Action | None:
        """What it would do now; None when it calls for nothing that can be done."""

    def does(self, action: Action) -> None:
        """What is done now: its own answer, or the expert's step."""


@dataclass(frozen=True)
class Mixture:
    """Who acts when.

    alone: the share of episodes in which the model takes every step; in the others the expert takes each
    step with probability `expert`. wrong: after so many wrong steps the expert plays on to the end.
    """

    alone: float = 0.5
    expert: float = 0.3
    wrong: int = 3


@dataclass
class Tally:
    """How an episode went.

    alone: whether the model was to play it by itself, and passed: whether it was rewarded without the
    expert's help. steps, right: what it did, and how often as the expert. lost: the expert could not go on.
    """

    alone: bool
    passed: bool = False
    steps: int = 0
    right: int = 0
    lost: bool = False


@dataclass
class Play:
    """One episode that is being played, and what is kept of it."""

    screen: Screen
    expert: Expert
    episode: Episode
    student: Student
    mixture: Mixture
    rng: random.Random
    remembers: bool
    ends: str  # JavaScript: whether the page has ended the episode
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(alone=self.rng.random() < self.mixture.alone)

    async def to_the_end(self) -> None:
        """Play until the page ends it, someone says that it is done, the expert is lost, or `MAX_STEPS`."""
        teacher = Teacher(self.screen, self.expert, remembers=self.remembers)
        try:
            while len(self.episode.steps) < MAX_STEPS and not await self._over():
                try:
                    meant = await teacher.ask()
                except Lost:
                    self.tally.lost = True
                    return
                if meant is None or not await self._step(teacher, meant):
                    return
        finally:
            await teacher.close()

    async def _step(self, teacher: Teacher, meant: Step) -> bool:
        """One action and its label; whether the episode goes on."""
        episode, frames = self.episode, self.episode.frames
        row = {"frame": add_frame(episode, await self.screen.capture()), **record(meant)}
        now = frames[-1]
        self.student.sees(episode.instruction, frames[-2] if len(frames) > 1 else now, now)
        episode.steps.append(row)
        action: Action | None = meant.action
        theirs = self._is_students()
        if theirs:
            action = await self.student.answers()
            right = action is not None and agrees(action, meant, self.screen.view)
            self.tally.steps += 1
            self.tally.right += right
            if not right:
                row["wrong"] = True
        if action is None or action["action"] not in SCREEN_ACTIONS:
            return False
        if row.get("wrong"):
            row["taken"] = action
        self.student.does(action)
        try:
            await self.screen.act(action)
        except (ValueError, KeyError):  # a key that no keyboard has, a click without a place
            row.pop("taken", None)
            return False
        if not row.get("wrong"):
            teacher.followed()
        elif not await self._over():
            after = await self.screen.page.capture()
            row["changed"] = after != now
            await teacher.strayed(changed=after != now)
        return action["action"] not in ("done", "infeasible")

    def _is_students(self) -> bool:
        if sum(bool(step.get("wrong")) for step in self.episode.steps) >= self.mixture.wrong:
            return False
        return self.tally.alone or self.rng.random() >= self.mixture.expert

    async def _over(self) -> bool:
        return bool(await self.screen.page.evaluate(self.ends))

    def settle(self, success: bool) -> None:
        """Keep the labels that can be trusted, now that it is known how the episode ended."""
        episode, strayed = self.episode, False
        episode.success = success
        wrong = sum(bool(step.get("wrong")) for step in episode.steps)
        self.tally.passed = success and self.tally.alone and wrong < self.mixture.wrong
        for n, step in enumerate(episode.steps):
            # Where all went the expert's way in vain, it was not a good one.
            step["train"] = step["train"] and (success or (wrong > 0 and not strayed))
            changed = step.pop("changed", False)
            if step.pop("wrong", False):
                strayed = strayed or changed
                if success and n == len(episode.steps) - 1:
                    step["train"] = False  # it was rewarded: another way to do it right


async def correct_miniwob(
    screen: Screen,
    web: MiniWob,
    task: str,
    seed: int,
    student: Student,
    mixture: Mixture,
    options: Options,
) -> tuple[Episode, Tally]:
    """Let a model play one MiniWoB++ episode beside its expert."""
    screen.rng = random.Random(f"{task}:{seed}")
    style = augmentation(screen.rng) if options.augment else ""
    await web.start(screen, task, seed, style)
    episode = begun(screen, task, seed, " ".join(screen.utterance.split()))
    remembers, ends = task in REMEMBERING, "WOB_DONE_GLOBAL"
    play = Play(screen, EXPERTS[task], episode, student, mixture, screen.rng, remembers, ends)
    try:
        await play.to_the_end()
        play.settle((await web.reward(screen) or 0) > 0)
    except PageError:
        play.settle(success=False)
    return episode, play.tally


async def correct_scene(
    screen: Screen, seed: int, student: Student, mixture: Mixture, task: str | None = None
) -> tuple[Episode, Tally]:
    """Let a model play one procedural page beside its expert; no step is kept of a page that shows too
    little."""
    scene = make_scene(seed, task)
    screen.rng = random.Random(f"scene:{seed}")
    episode = begun(screen, scene.task, seed, scene.instruction)
    remembers = scene.remembers
    play = Play(
        screen, scene.expert, episode, student, mixture, screen.rng, remembers=remembers, ends="false"
    )
    try:
        await scene.show(screen)
        await play.to_the_end()
        play.settle(await reached(screen))
    except (Unreachable, PageError):
        play.settle(success=False)
    return episode, play.tally
