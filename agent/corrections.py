"""Let a model play and record what would have been right: `python -m pilotfish.agent.corrections ...`.

Every worker is a process with a browser, some pages, and an engine of its own whose answers to these pages
are computed together. The shards are those of `tasks.episodes.record`, called `shard-c...`, so that a
trainer can read them beside the others. What a run has drawn is written beside its shards: the same command
goes on behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pilotfish.agent.conversation import Conversation
from pilotfish.agent.prompt import developer_turn, first_turn, observation_word, tool_turn
from pilotfish.agent.reply import read_reply
from pilotfish.agent.whole_file import write_whole
from pilotfish.model.folder import INDEX, WEIGHTS, check_folder, find_folder
from pilotfish.model.protocol import Clip, Limits, Message, Model, ModelError, ToolCall
from pilotfish.model.training.loader import decode
from pilotfish.model.training.samples import turning
from pilotfish.model.training.words import training_words
from pilotfish.tasks.episodes.catalog import SCENES
from pilotfish.tasks.episodes.corrections import (
    SCREEN_ACTIONS,
    Mixture,
    Tally,
    correct_miniwob,
    correct_scene,
)
from pilotfish.tasks.episodes.counts import Count, Totals
from pilotfish.tasks.episodes.mixes import SCENE_TASK
from pilotfish.tasks.episodes.pages import Action, Screen
from pilotfish.tasks.episodes.play import Options
from pilotfish.tasks.episodes.record import (
    Settings,
    Worker,
    add_arguments,
    record,
    settings_of,
)
from pilotfish.tasks.episodes.shards import Episode


class ModelStudent:
    """A model that plays one episode as the agent would have it."""

    def __init__(self, model: Model, limits: Limits, rng: random.Random) -> None:
        words = training_words()
        self._tools = [words.tool]
        self._model, self._limits, self._rng = model, limits, rng
        self.conversation = Conversation(
            [developer_turn()], max_clips=words.max_clips, block=words.clip_block
        )
        self._calls = 0

    def sees(self, instruction: str, before: bytes, now: bytes) -> None:
        """The screen before and after the last action, as PNG; the same one twice at the start."""
        a, b = decode(before), decode(now)
        later, times = turning(self._rng)
        clip = Clip(np.stack([a, *(b if shown else a for shown in later), b]), times)
        if not self._calls:
            self.conversation.append(first_turn(instruction, clip))
        else:
            word = observation_word(changed=before != now, settled=True)
            self.conversation.append(tool_turn("ok", word, clip))

    async def answers(self) -> Action | None:
        """The action of its first call; None for anything that these pages cannot take."""
        chunks = self._model.respond(
            self.conversation.messages, self._tools, stop=asyncio.Event(), limits=self._limits
        )
        reply = await read_reply(chunks)
        return doable(reply.calls[0].call.arguments) if reply.calls else None

    def does(self, action: Action) -> None:
        """What is done now."""
        call = ToolCall(str(self._calls), "computer", action)
        self._calls += 1
        self.conversation.append(Message("assistant", (), None, (call,)))


def doable(arguments: Mapping[str, Any]) -> Action | None:
    """A call's arguments as an action of these pages; None if it lacks something."""
    kind, action = arguments.get("action"), dict(arguments)
    if kind not in SCREEN_ACTIONS:
        return None
    if kind in ("type", "key") and not isinstance(action.get("text"), str):
        return None
    wants = {"left_click_drag": ("start_coordinate", "coordinate"), "scroll": ("coordinate",)}
    wants |= dict.fromkeys(("left_click", "double_click", "mouse_move"), ("coordinate",))
    for name in wants.get(kind, ()):
        point = action.get(name)
        if not isinstance(point, list) or len(point) != 2:
            return None
        if not all(isinstance(v, int) and 0 <= v <= 1000 for v in point):
            return None
    if kind == "scroll" and action.get("scroll_direction") not in ("up", "down", "left", "right"):
        return None
    return action


@dataclass(frozen=True)
class Teaching:
    """What a worker of corrections needs besides `Settings`; see `--help` for each."""

    model: Path
    device: str
    attention: str
    temperature: float
    mixture: Mixture
    keep_right: float
    follow: bool


class Corrector(Worker):
    """A worker whose episodes a model plays."""

    runs_per_load = 1
    timeout_s = 300.0
    shard_name = "shard-c{:03d}-{:06d}.bin"

    def __init__(self, teaching: Teaching, number: int, settings: Settings, report: Connection) -> None:
        super().__init__(number, settings, report)
        self._teaching = teaching
        self._loaded = 0.0
        self._model: Model | None = None
        self._drawn, self._shards = self._left_off()

    @property
    def _progress_file(self) -> Path:
        return self._settings.out / f"drawn-c{self.number:03d}.json"

    def _left_off(self) -> tuple[int, int]:
        """The episodes drawn by an earlier run of the same seed, and the shards written by any."""
        own = self._settings.out.glob(self.shard_name.format(self.number, 0).replace("000000", "*"))
        shards = max((int(path.stem.rsplit("-", 1)[1]) + 1 for path in own), default=0)
        try:
            state = json.loads(self._progress_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return 0, shards
        return (state["drawn"] if state["seed"] == self._settings.seed else 0), shards

    def _choose(self) -> str:
        # Every episode has a generator of its own, so that a run can go on behind those it has drawn.
        self._rng = random.Random(f"corrections:{self._settings.seed}:{self.number}:{self._drawn}")
        self._drawn += 1
        return super()._choose()

    async def _play(self, screen: Screen, task: str, fresh: bool) -> Episode:
        rng, settings, teaching = self._rng, self._settings, self._teaching
        seed = rng.choice(settings.seeds)
        limits = Limits(max_tokens=128, temperature=teaching.temperature, seed=rng.randrange(1 << 30))
        student = ModelStudent(self._newest(), limits, rng)
        if task == SCENE_TASK or task in SCENES:
            kind = None if task == SCENE_TASK else task
            episode, tally = await correct_scene(screen, seed, student, teaching.mixture, kind)
        else:
            episode, tally = await correct_miniwob(
                screen, self._web, task, seed, student, teaching.mixture, settings.options
            )
        self._count(episode, tally)
        if tally.right == tally.steps and rng.random() >= teaching.keep_right:
            for step in episode.steps:
                step["train"] = False  # there is little to learn from it
        return episode

    def _count(self, episode: Episode, tally: Tally) -> None:
        if not episode.steps:
            return
        count = Count(0, 0, tally.alone, tally.passed, tally.steps, tally.right, tally.lost)
        self._counts[episode.task].add(count)

    def _is_worth_keeping(self, episode: Episode) -> bool:
        return any(step["train"] for step in episode.steps)

    def _newest(self) -> Model:
        """The model, loaded anew when its file has changed and that is wanted."""
        from pilotfish.model.engine import Engine

        teaching = self._teaching
        if self._model is None or teaching.follow:
            files = [teaching.model / name for name in (WEIGHTS, INDEX)]
            changed = next(file for file in files if file.is_file()).stat().st_mtime
            if changed != self._loaded:
                self._loaded = changed
                self._model = Engine(
                    teaching.model,
                    device=teaching.device,
                    attention="dense" if teaching.attention == "dense" else "sparse",
                )
        assert self._model is not None
        return self._model

    def _write(self) -> None:
        super()._write()
        state = {"seed": self._settings.seed, "drawn": self._drawn}
        write_whole(self._progress_file, json.dumps(state).encode())


class Report(Totals):
    """What the workers of corrections reported so far."""

    def line(self) -> str:
        """A progress line: rates and totals."""
        total = Count()
        for count in self.counts.values():
            total.add(count)
        now = max(time.monotonic() - self.begun, 1e-9)
        return (
            f"{now:6.0f} s  {total.played} episodes  {total.played / now:.2f}/s  {total.kept} kept"
            f"  alone {share(total.passed, total.alone)}  as the expert {share(total.right, total.steps)}"
            f"  {total.lost} lost  {self.restarts} restarts  {self.unplayed} unplayed"
        )

    def table(self) -> list[str]:
        """A line for each task, the weakest first."""
        rows = sorted(self.counts.items(), key=lambda row: (row[1].passed / max(1, row[1].alone), row[0]))
        return [
            f"  {task}: alone {share(count.passed, count.alone)}, "
            f"as the expert {share(count.right, count.steps)}, "
            f"{count.kept} of {count.played} kept, {count.lost} lost"
            for task, count in rows
        ]


def share(part: int, whole: int) -> str:
    """`3/4 75 %`; `-` of nothing."""
    return f"{part}/{whole} {part / whole:.0%}" if whole else "-"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Let a model play, and record what would have been right.")
    add_arguments(parser)
    parser.add_argument("--model", default="nano", help="who plays: nano, or a checkpoint's folder")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--attention", choices=("sparse", "dense"), default="sparse")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is what benchmarks use")
    parser.add_argument(
        "--alone", type=float, default=0.5, help="share of episodes without the expert's help"
    )
    parser.add_argument("--expert", type=float, default=0.3, help="share of the expert's steps in the others")
    parser.add_argument("--wrong", type=int, default=3, help="wrong steps after which the expert plays on")
    parser.add_argument("--keep-right", type=float, default=0.2, help="share kept of those without a mistake")
    parser.add_argument("--follow", action="store_true", help="load the model anew whenever its file changes")
    given = parser.parse_args(arguments)
    try:
        settings = settings_of(given, Options(augment=not given.plain))
        check_folder(given.model)
        mixture = Mixture(_share(given, "alone"), _share(given, "expert"), given.wrong)
        teaching = Teaching(
            find_folder(given.model),
            given.device,
            given.attention,
            given.temperature,
            mixture,
            _share(given, "keep_right"),
            given.follow,
        )
    except (ValueError, ModelError) as error:
        print(error, file=sys.stderr)
        return 2
    make = functools.partial(Corrector, teaching)
    totals = record(settings, given.workers, given.seconds, given.episodes, make=make, totals=Report())
    return 0 if totals.kept else 1


def _share(given: argparse.Namespace, name: str) -> float:
    value: float = getattr(given, name)
    if not 0 <= value <= 1:
        raise ValueError(f"--{name.replace('_', '-')} is {value:g}; give a share from 0 to 1.")
    return value


if __name__ == "__main__":
    sys.exit(main())
