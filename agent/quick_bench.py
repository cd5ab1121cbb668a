"""Measure a model on MiniWoB++ without a display: `python -m pilotfish.agent.quick_bench ...`.

The pages are played in the recorder's headless browser, many at once: minutes on a GPU where `pilotfish bench
miniwob`, with its sandbox and display, takes hours. The model is told what the agent tells it, and sees the
same pixels; what differs is said in docs/model.md. Each episode is a line in a file as soon as it has ended,
and the same command goes on behind those that are there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from pilotfish.agent.bench_miniwob import add_miniwob, in_sentences
from pilotfish.agent.corrections import ModelStudent
from pilotfish.agent.stats import wilson
from pilotfish.model.folder import check_folder, find_folder
from pilotfish.model.protocol import Limits, Model, ModelError
from pilotfish.tasks.episodes.alone import Result, play_alone
from pilotfish.tasks.episodes.cdp import BrowserError
from pilotfish.tasks.episodes.counts import Count, Totals
from pilotfish.tasks.episodes.pages import SCRIPT, VIEW, MiniWob, Screen
from pilotfish.tasks.episodes.play import Options
from pilotfish.tasks.episodes.record import Settings, Worker, add_arguments, record, settings_of
from pilotfish.tasks.episodes.shards import Episode
from pilotfish.tasks.miniwob_names import FIRST_MEASURED_SEED, MINIWOB_TASKS, check_name
from pilotfish.tasks.reader import TaskError

Job = tuple[str, int]
FILES = "results-*.jsonl"
TRIES = 2
"""How often an episode is begun whose browser dies or that does not end in time."""


@dataclass(frozen=True)
class Measuring:
    """What a worker needs besides `Settings`."""

    model: Path
    device: str
    attention: str
    steps: int
    stuck: int
    part: int
    jobs: tuple[tuple[Job, ...], ...]
    """For each worker."""


class Measurer(Worker):
    """A worker that plays its jobs and then ends."""

    timeout_s = 300.0

    def __init__(self, measuring: Measuring, number: int, settings: Settings, report: Connection) -> None:
        super().__init__(number, settings, report)
        self._measuring = measuring
        self._jobs = deque((job, 1) for job in measuring.jobs[number])
        self._model: Model | None = None
        self._web = MiniWob(settings.miniwob, measures=True)
        self._file = settings.out / f"results-{measuring.part}-{number:03d}.jsonl"

    async def run(self) -> None:
        if self._jobs:
            await super().run()
        else:
            self._send_report()

    async def _one_page(self, browser: Any, left: list[int]) -> None:
        screen = Screen(await browser.page(VIEW, SCRIPT), self._rng)
        while self._jobs and left[0] > 0 and not self._stop and browser.alive:
            left[0] -= 1
            (task, seed), tries = self._jobs.popleft()
            try:
                async with asyncio.timeout(self.timeout_s):
                    result = await self._measure(screen, task, seed)
            except (BrowserError, TimeoutError):
                if tries < TRIES:
                    self._jobs.append(((task, seed), tries + 1))
                else:
                    self._note(Result(task, seed, 0.0, 0, self.timeout_s, "broken"))
                left[0] = 0  # the other pages end their episodes, and a new browser is started
                raise
            self._note(result)
        if not self._jobs:
            self._halt()

    async def _measure(self, screen: Screen, task: str, seed: int) -> Result:
        limits = Limits(max_tokens=128, temperature=0.0, seed=0)
        student = ModelStudent(self._loaded(), limits, Random(f"{task}:{seed}"))
        return await play_alone(
            screen, self._web, task, seed, student, steps=self._measuring.steps, stuck=self._measuring.stuck
        )

    def _loaded(self) -> Model:
        from pilotfish.model.engine import Engine

        if self._model is None:
            measuring = self._measuring
            dense = measuring.attention == "dense"
            self._model = Engine(
                measuring.model, device=measuring.device, attention="dense" if dense else "sparse"
            )
        return self._model

    def _note(self, result: Result) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result.as_json()) + "\n")
        count = Count(1, 1, 1, int(result.passed), result.steps, 0, int(result.end == "broken"))
        self._counts[result.task].add(count)
        self._send_report()

    def _keep(self, episode: Episode) -> None:
        raise AssertionError("Nothing that is measured is kept.")


class Report(Totals):
    """What was measured so far."""

    def __init__(self, jobs: int) -> None:
        super().__init__()
        self._jobs = jobs

    def line(self) -> str:
        """A progress line."""
        total = Count()
        for count in self.counts.values():
            total.add(count)
        seconds = max(time.monotonic() - self.begun, 1e-9)
        return (
            f"{seconds:6.0f} s  {total.played} of {self._jobs} episodes  {total.passed} passed"
            f"  {total.steps / seconds:.1f} steps/s  {self.restarts} restarts  {total.lost} broken"
        )

    def table(self) -> list[str]:
        """None: what counts is in the files."""
        return []


def read_results(out: Path) -> list[Result]:
    """All results in a folder, each episode once; a line that was cut short is left out."""
    found: dict[Job, Result] = {}
    for path in sorted(out.glob(FILES)):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                result = Result(**json.loads(line))
            except (json.JSONDecodeError, TypeError):
                continue
            found[result.task, result.seed] = result
    return list(found.values())


def deal(jobs: Iterable[Job], workers: int) -> tuple[tuple[Job, ...], ...]:
    """The jobs dealt to workers in turn."""
    dealt: list[list[Job]] = [[] for _ in range(workers)]
    for n, job in enumerate(jobs):
        dealt[n % workers].append(job)
    return tuple(map(tuple, dealt))


def summary(results: Sequence[Result]) -> list[str]:
    """A table of the tasks, and the counts over all of them."""
    by_task: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_task[result.task].append(result)
    rows, rates = [], []
    lines = [f"{'task':<28} {'n':>3} {'success':>8}  {'95 % interval':<14} {'steps':>6}  ends"]
    for task, mine in sorted(by_task.items()):
        passed = sum(result.passed for result in mine)
        low, high = wilson(passed, len(mine))
        ends: defaultdict[str, int] = defaultdict(int)
        for result in mine:
            ends[result.end] += 1
        said = ", ".join(f"{end} {n}" for end, n in sorted(ends.items()))
        steps = sum(result.steps for result in mine) / len(mine)
        lines.append(
            f"{task:<28} {len(mine):>3} {passed / len(mine):>8.0%}  {f'{low:.0%} to {high:.0%}':<14}"
            f" {steps:>6.1f}  {said}"
        )
        rates.append(passed / len(mine))
        rows.append({"task": task, "success": rates[-1]})
    if not rows:
        return ["Nothing was measured: no episode came to its end."]
    lines.append(f"mean success {sum(rates) / len(rates):.1%}")
    return lines + in_sentences(add_miniwob({"tasks": rows}))


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure a model on MiniWoB++ without a display.")
    add_arguments(parser)
    parser.add_argument("--model", default="nano", help="nano, or a checkpoint's folder")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--attention", choices=("sparse", "dense"), default="sparse")
    parser.add_argument("--tasks", default="all", help="names with commas between them; all when left out")
    parser.add_argument("--each", type=int, default=50, help="episodes of each task")
    parser.add_argument("--first", type=int, default=FIRST_MEASURED_SEED, help="the first seed")
    parser.add_argument("--steps", type=int, default=30, help="steps of an episode at most")
    parser.add_argument(
        "--stuck", type=int, default=5, help="same action on the same picture that often: over"
    )
    parser.add_argument("--part", default="1/1", help="2/3: the second third of the episodes")
    given = parser.parse_args(arguments)
    try:
        jobs = _jobs(given)
        settings = settings_of(given, Options(augment=False))
        check_folder(given.model)
    except (ValueError, TaskError, ModelError) as error:
        print(error, file=sys.stderr)
        return 2
    settings.out.mkdir(parents=True, exist_ok=True)
    done = {(result.task, result.seed) for result in read_results(settings.out)}
    left = [job for job in jobs if job not in done]
    dealt = deal(left, given.workers)
    part = int(given.part.partition("/")[0])
    measuring = Measuring(
        find_folder(given.model), given.device, given.attention, given.steps, given.stuck, part, dealt
    )
    record(settings, given.workers, given.seconds, None, make=_Make(measuring), totals=Report(len(left)))
    wanted = set(jobs)
    results = [r for r in read_results(settings.out) if (r.task, r.seed) in wanted]
    print("\n".join(summary(results)))
    return 0 if len(results) == len(jobs) else 1


@dataclass(frozen=True)
class _Make:
    measuring: Measuring

    def __call__(self, number: int, settings: Settings, report: Connection) -> Measurer:
        return Measurer(self.measuring, number, settings, report)


def _jobs(given: argparse.Namespace) -> list[Job]:
    """Seed by seed, so that what was cut short has measured all tasks alike."""
    names = list(MINIWOB_TASKS) if given.tasks == "all" else [check_name(n) for n in given.tasks.split(",")]
    if min(given.each, given.steps, given.stuck, given.workers, given.pages) < 1 or given.first < 0:
        raise ValueError(
            "--each, --steps, --stuck, --workers and --pages are at least 1, and --first at least 0."
        )
    part, _, parts = given.part.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"--part is {given.part!r}; write it like 2/3.")
    every = [(name, given.first + n) for n in range(given.each) for name in names]
    return every[int(part) - 1 :: int(parts)]


if __name__ == "__main__":
    sys.exit(main())
