"""Record edit tasks as conversations: `python -m pilotfish.agent.edit_episodes --out DIR --workers 8 ...`.

A scripted expert plays them through the real `index` and `edit` tools, on files in a temporary folder. What
is written are the agent's own turns, word for word: the repository laid out, the prompt of `pilotfish code`,
calls, results, and what is told of changes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import random
import signal
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from pilotfish.agent.code import TOOLS
from pilotfish.agent.edit_work import edit_prompt
from pilotfish.agent.prefix import follow_within, framed, lay_out_framed, told_changes
from pilotfish.agent.prompt import developer_turn, first_turn, tool_turn
from pilotfish.agent.querying import specs_of
from pilotfish.model.protocol import Message, ToolCall, ToolSpec
from pilotfish.model.tokenizer import Tokenizer
from pilotfish.model.training.texts import TEXT_SHARDS, TextEpisode, write_texts
from pilotfish.model.training.trainee import NANO
from pilotfish.sandbox import Files
from pilotfish.tasks.edits.environment import files_in, write_files
from pilotfish.tasks.edits.expert import Move, script
from pilotfish.tasks.edits.family import EditTask, Ground, make_ground, make_task
from pilotfish.tasks.edits.sources import name_of, read_trainable, some_of, training_packages
from pilotfish.tasks.edits.trees import judge
from pilotfish.tasks.episodes.counts import Count
from pilotfish.tasks.episodes.record import record
from pilotfish.tools.base import ToolResult, validate
from pilotfish.tools.edit import EditTool
from pilotfish.tools.index.layout import Layout
from pilotfish.tools.index.tool import IndexTool
from pilotfish.tools.registry import make_tools

LEAST_TOKENS = 500
"""The smallest index that is drawn."""
_PER_GROUND, _PER_LAYOUT = 24, 4
"""Episodes on one ground, and on one layout of it."""
_SIZES = (1.0, 2.0, 4.0, 16.0)
"""How much source a ground has for what its index shows."""
_LEAST, _MOST = 12_000, 500_000
"""Characters of source that a ground has at least, where there are files for it, and at most."""
_CHARACTERS = 1.55
"""Of code in one of nano's tokens, about."""


@dataclass(frozen=True)
class Settings:
    """What a worker needs to know; see `--help` for each."""

    out: Path
    packages: tuple[str, ...]
    index_tokens: int
    slips: float
    seed: int
    shard_episodes: int


class Stage:
    """A folder with the files of one ground, and the tools on them. Use as a context manager."""

    def __init__(self, ground: Ground, count: Any, draw: random.Random) -> None:
        self.ground, self._count, self._draw = ground, count, draw
        self._folder = tempfile.TemporaryDirectory(prefix="pilotfish-edits-")
        self.files = Files(Path(self._folder.name))
        write_files(self.files, ground.files)
        self.index = IndexTool(count, workers=0)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.index.index_of(self.files.root).close()
        self.files.close()
        self._folder.cleanup()

    def lay_out(self, budget: int) -> Layout:
        """The ground laid out, with the words around it, in so many tokens."""
        index = self.index.index_of(self.files.root)
        index.update(workers=0)
        return lay_out_framed(index, budget, self._count)

    def play(
        self, task: EditTask, seed: int, layout: Layout, budget: int, slips: float
    ) -> TextEpisode | None:
        """The expert does a task, and the files are put back; None where it was not done right."""
        draw = random.Random(f"{seed}:play")
        edit = EditTool(trusted=True)
        prompt = edit_prompt(task.instruction, self.ground.package, self.files)
        before = framed(layout.text) if layout.text else ""
        turns = [developer_turn(), first_turn(prompt, None, before)]
        trained: list[bool] = []
        moves, told, stale = script(self.ground, task, draw, slips), layout, set[str]()
        result: ToolResult | None = None
        while True:
            try:
                move = next(moves) if result is None else moves.send(result)
            except StopIteration as end:
                turns.append(Message("assistant", (str(end.value),)))
                trained.append(True)
                break
            turns.append(Message("assistant", (), None, (self._call(move, len(trained)),)))
            trained.append(move.right)
            result = self._done(move, edit)
            text = result.text
            if move.tool == "edit" and layout.text:
                index = self.index.index_of(self.files.root)
                index.update(workers=0)
                after = follow_within(told, index, budget, self._count)
                if changes := told_changes(told, after, stale, self._mark):
                    text = f"{text}\n{changes}"
                told, stale = after, set(after.stale)
            turns.append(tool_turn(text, None, None))
        wrong = judge(self.ground.files, self.ground.wanted(task), files_in(self.files))
        write_files(self.files, {path: self.ground.files[path] for path in task.changes})
        if wrong:
            return None
        return TextEpisode(f"edit-{task.kind}", seed, turns, _specs(), trained)

    def _call(self, move: Move, number: int) -> ToolCall:
        return ToolCall(str(number), move.tool, move.arguments)

    def _done(self, move: Move, edit: EditTool) -> ToolResult:
        if move.tool == "edit":
            args = validate(edit, move.arguments)
            return args if isinstance(args, ToolResult) else edit.do(args, self.files)
        asked = validate(self.index, move.arguments)
        return asked if isinstance(asked, ToolResult) else self.index.do(asked, self.files.root)

    def _mark(self) -> str:
        return f"repository-{self._draw.getrandbits(48):012x}"


@cache
def _specs() -> list[ToolSpec]:
    """The tools of `pilotfish code`, as its model is told of them."""
    return specs_of(make_tools(TOOLS))


class Worker:
    """One process that records."""

    def __init__(self, number: int, settings: Settings, report: Connection) -> None:
        self._number, self._settings, self._report = number, settings, report
        self._draw = random.Random(f"edits:{settings.seed}:{number}")
        tokenizer = Tokenizer.from_folder(NANO)
        self._count = lambda text: len(tokenizer.encode(text))
        self._read = lru_cache(maxsize=16)(read_trainable)
        self._episodes: list[TextEpisode] = []
        own = sorted(settings.out.glob(TEXT_SHARDS.replace("*", f"{number:03d}-*")))
        self._shards = 1 + int(own[-1].stem.rsplit("-", 1)[1]) if own else 0
        self._counts = defaultdict[str, Count](Count)
        self._unplayed = 0
        self._stop = False

    async def run(self) -> None:
        """Record until told to stop; the last, short shard is written too."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._halt)
        while not self._stop:
            await asyncio.to_thread(self._one_ground)
            self._tell()
        self._write()
        self._tell()

    def _halt(self, _number: int, _frame: FrameType | None) -> None:
        self._stop = True

    def _one_ground(self) -> None:
        """Episodes on one part of one package."""
        draw, most = self._draw, self._settings.index_tokens
        low, high = math.log(LEAST_TOKENS), math.log(max(most, LEAST_TOKENS))
        package = draw.choice(self._settings.packages)
        budgets = [int(math.exp(draw.uniform(low, high))) for _ in range(_PER_GROUND // _PER_LAYOUT)]
        shown = sorted(budgets)[len(budgets) // 2] * _CHARACTERS
        size = min(_MOST, max(_LEAST, int(shown * draw.choice(_SIZES))))
        files = some_of(self._read(package), size, draw)
        ground = make_ground(name_of(package), files, draw.getrandbits(32))
        if not ground.kinds():
            self._unplayed += 1
            return
        with Stage(ground, self._count, draw) as stage:
            for budget in budgets:
                layout = stage.lay_out(budget)
                for _ in range(_PER_LAYOUT):
                    if self._stop:
                        return
                    seed = draw.getrandbits(31)
                    task = make_task(ground, seed)
                    self._keep(stage.play(task, seed, layout, budget, self._settings.slips), task)

    def _keep(self, episode: TextEpisode | None, task: EditTask) -> None:
        count = self._counts[f"edit-{task.kind}"]
        count.played += 1
        if episode is None:
            return
        count.kept += 1
        self._episodes.append(episode)
        if len(self._episodes) >= self._settings.shard_episodes:
            self._write()

    def _write(self) -> None:
        if self._episodes:
            name = TEXT_SHARDS.replace("*", f"{self._number:03d}-{self._shards:06d}")
            write_texts(self._settings.out / name, self._episodes)
            self._shards += 1
            self._episodes = []

    def _tell(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._report.send({"counts": self._counts, "restarts": 0, "unplayed": self._unplayed})
        self._counts, self._unplayed = defaultdict(Count), 0


def table() -> list[str]:
    """The packages that are recorded from, as a table."""
    rows = [f"| {one.name} | {one.version} | {one.licence} | {one.files} |" for one in training_packages()]
    return ["| package | version | licence | files |", "|---|---|---|--:|", *rows]


def main(arguments: list[str] | None = None) -> int:
    """The command line; what is wrong is one sentence on standard error."""
    parser = argparse.ArgumentParser(description="Record edits of packages into shards of conversations.")
    parser.add_argument("--out", type=Path, help="folder for the shards")
    parser.add_argument("--list", action="store_true", help="print the packages, with licences, and end")
    parser.add_argument(
        "--packages", default="", help="import names or folders, by commas; default: --list's"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--index-tokens", type=int, default=8_000, help="the largest index that is drawn")
    parser.add_argument("--slips", type=float, default=0.12, help="how likely each wrong turn is, 0 to 1")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other episodes")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--episodes", type=int, help="stop after about this many episodes")
    parser.add_argument("--shard-episodes", type=int, default=96, help="episodes in a shard")
    given = parser.parse_args(arguments)
    try:
        if given.list:
            print("\n".join(table()))
            return 0
        settings = _settings(given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    totals = record(settings, given.workers, given.seconds, given.episodes, make=Worker)
    return 0 if totals.kept else 1


def _settings(given: argparse.Namespace) -> Settings:
    """Raises `ValueError` with a sentence for what is missing or wrong."""
    if given.out is None:
        raise ValueError("--out is missing; give the folder for the shards.")
    if given.index_tokens < LEAST_TOKENS:
        raise ValueError(f"--index-tokens is {given.index_tokens}; give at least {LEAST_TOKENS}.")
    if not 0 <= given.slips <= 1:
        raise ValueError(f"--slips is {given.slips:g}; give a share from 0 to 1.")
    for name in ("workers", "shard_episodes"):
        if getattr(given, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(given, name)}; give at least 1.")
    named = tuple(filter(None, given.packages.split(",")))
    for name in named:
        if not make_ground(name, read_trainable(name), 0).kinds():
            raise ValueError(f"{name} has no place for an edit; name a larger package.")
    packages = named or tuple(one.name for one in training_packages())
    return Settings(given.out, packages, given.index_tokens, given.slips, given.seed, given.shard_episodes)


if __name__ == "__main__":
    sys.exit(main())
