"""Record episodes into shards: `python -m pilotfish.tasks.episodes.record --out DIR --workers 8 ...`.

Every worker is a process with one browser and a few pages. Shards appear in DIR under their final name only
when they are complete. SIGTERM and SIGINT end all workers and their browsers; so does the death of this
process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pilotfish.tasks.episodes.catalog import SCENES
from pilotfish.tasks.episodes.cdp import (
    FLAGS,
    Browser,
    BrowserError,
    browser_environment,
    die_with_parent,
)
from pilotfish.tasks.episodes.counts import Count, Totals
from pilotfish.tasks.episodes.mixes import SCENE_TASK, Size, read_mix, read_sizes
from pilotfish.tasks.episodes.pages import (
    TRAIN_SEEDS,
    VALIDATION_SEEDS,
    VIEW,
    MiniWob,
    Screen,
    script_for,
)
from pilotfish.tasks.episodes.play import RELOADED, Options, play_miniwob, play_scene
from pilotfish.tasks.episodes.shards import Episode, write_shard

EPISODES_PER_BROWSER = 3000  # a fresh browser now and then keeps memory bounded
EPISODES_PER_SIZE = 400  # where screens have several sizes: a browser has one
RUNS_PER_LOAD = 8  # episodes of one task played before its page is loaded anew
EPISODE_TIMEOUT_S = 20.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # that end a recorder


@dataclass(frozen=True)
class Settings:
    """What a worker needs to know; see `--help` for each."""

    out: Path
    browser: str
    bundle: Path | None
    miniwob: Path
    mix: dict[str, float]
    seed: int
    pages: int
    shard_episodes: int
    max_shards: int
    seeds: range
    options: Options
    sizes: tuple[Size, ...] = ()


class Worker:
    """One process: a browser, its pages, and the shard being filled."""

    runs_per_load = RUNS_PER_LOAD
    timeout_s = EPISODE_TIMEOUT_S
    shard_name = "shard-{:03d}-{:06d}.bin"

    def __init__(self, number: int, settings: Settings, report: Connection) -> None:
        self.number = number
        self._settings = settings
        self._report = report
        self._rng = random.Random(f"{settings.seed}:{number}")
        self._sizes_rng = random.Random(f"sizes:{settings.seed}:{number}")
        self._view, self._mix = VIEW, settings.mix
        self._web = MiniWob(settings.miniwob)
        self._episodes: list[Episode] = []
        self._shards = 0
        self._counts: defaultdict[str, Count] = defaultdict(Count)
        self._restarts = 0
        self._unplayed = 0
        self._reported = time.monotonic()
        self._stop = False

    async def run(self) -> None:
        """Record until told to stop; the last, short shard is written too."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._halt)
        while not self._stop:
            await self._one_browser()
        self._write()
        self._send_report()

    def _halt(self) -> None:
        self._stop = True

    async def _one_browser(self) -> None:
        settings = self._settings
        environment = browser_environment(settings.bundle)
        self._choose_size()
        try:
            browser = await Browser.launch(settings.browser, (*FLAGS, *self._view.flags), environment)
        except BrowserError as error:
            self._report.send({"error": str(error)})
            await asyncio.sleep(1)
            return
        left = [EPISODES_PER_SIZE if settings.sizes else EPISODES_PER_BROWSER]
        try:
            pages = [self._one_page(browser, left) for _ in range(settings.pages)]
            results = await asyncio.gather(*pages, return_exceptions=True)
        finally:
            browser.close()
        for result in results:
            if isinstance(result, BrowserError | TimeoutError):
                self._restarts += 1
            elif isinstance(result, BaseException):
                raise result

    async def _one_page(self, browser: Browser, left: list[int]) -> None:
        try:
            page = await browser.page(self._view, script_for(self._view))
            screen = Screen(page, self._rng, self._view)
            while left[0] > 0 and not self._stop and browser.alive:
                await self._wait_for_room()
                task = self._choose()
                runs = 1 if task in RELOADED else self.runs_per_load
                for i in range(runs):
                    if self._stop or left[0] <= 0:
                        break
                    left[0] -= 1
                    async with asyncio.timeout(self.timeout_s):
                        episode = await self._play(screen, task, fresh=i == 0)
                    self._keep(episode)
        except (BrowserError, TimeoutError):
            left[0] = 0  # the other pages stop too, and a new browser is started
            raise

    async def _play(self, screen: Screen, task: str, fresh: bool) -> Episode:
        seed = self._rng.choice(self._settings.seeds)
        if task == SCENE_TASK:
            return await play_scene(screen, seed, self._settings.options)
        if task in SCENES:
            return await play_scene(screen, seed, self._settings.options, task)
        return await play_miniwob(screen, self._web, task, seed, self._settings.options, fresh=fresh)

    def _choose(self) -> str:
        return self._rng.choices(list(self._mix), list(self._mix.values()))[0]

    def _choose_size(self) -> None:
        """That of the next browser, and what is played on it."""
        settings = self._settings
        self._view, self._mix = VIEW, settings.mix
        if settings.sizes:
            left = max(0.0, 1 - sum(size.share for size in settings.sizes))
            shares = [left, *(size.share for size in settings.sizes)]
            chosen = self._sizes_rng.choices([None, *settings.sizes], shares)[0]
            if chosen is not None:
                self._view = chosen.view
                self._mix = {task: w for task, w in settings.mix.items() if chosen.takes(task)}

    async def _wait_for_room(self) -> None:
        while self._settings.max_shards and not self._stop:
            waiting = sum(1 for _ in self._settings.out.glob("shard-*.bin"))
            if waiting < self._settings.max_shards:
                return
            await asyncio.sleep(0.2)

    def _keep(self, episode: Episode) -> None:
        if not episode.steps:  # the page did not show its target: nothing was played
            self._unplayed += 1
            return
        count = self._counts[episode.task]
        count.played += 1
        if self._is_worth_keeping(episode):
            count.kept += 1
            self._episodes.append(episode)
        if len(self._episodes) >= self._settings.shard_episodes:
            self._write()
        if time.monotonic() - self._reported > 1:
            self._send_report()

    def _is_worth_keeping(self, episode: Episode) -> bool:
        return episode.success and any(step["train"] for step in episode.steps)

    def _write(self) -> None:
        if not self._episodes:
            return
        name = self.shard_name.format(self.number, self._shards)
        write_shard(self._settings.out / name, self._episodes)
        self._shards += 1
        self._episodes = []

    def _send_report(self) -> None:
        self._reported = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self._report.send(
                {"counts": self._counts, "restarts": self._restarts, "unplayed": self._unplayed}
            )
        self._counts, self._restarts, self._unplayed = defaultdict(Count), 0, 0


class Recording(Protocol):
    """A process that records until it is told to stop."""

    async def run(self) -> None:
        """Record, and tell the connection what was recorded."""
        ...


class Place(Protocol):
    """Settings of any recorder."""

    @property
    def out(self) -> Path:
        """The folder for the shards."""
        ...


S = TypeVar("S", bound=Place)
MakeWorker = Callable[[int, S, Connection], Recording]


def _work(make: MakeWorker[S], number: int, settings: S, report: Connection) -> None:
    # Until it records, a signal ends it: the recorder's own handler, which it has of the fork, would not.
    for ending in _SIGNALS:
        signal.signal(ending, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    die_with_parent()
    asyncio.run(make(number, settings, report).run())
    report.close()


def record(
    settings: S,
    workers: int,
    seconds: float | None,
    episodes: int | None,
    *,
    make: MakeWorker[S],
    totals: Totals | None = None,
) -> Totals:
    """Run the workers until the time or the number of episodes is reached, or a signal comes."""
    settings.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    stop = False

    def halt(_signal: int, _frame: Any) -> None:
        nonlocal stop
        stop = True

    previous = {number: signal.signal(number, halt) for number in _SIGNALS}
    processes = []
    reports: list[Connection] = []
    for number in range(workers):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(make, number, settings, sender))
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        sender.close()
        processes.append(process)
        reports.append(receiver)
    totals = totals or Totals()
    printed = time.monotonic()
    told = False
    deadline = None if seconds is None else time.monotonic() + seconds
    while reports:
        for ready in wait(reports, timeout=0.5):
            assert isinstance(ready, Connection)
            try:
                message = ready.recv()
            except EOFError:
                reports.remove(ready)
                continue
            if "error" in message:
                print(message["error"], file=sys.stderr, flush=True)
            else:
                totals.add(**message)
        if time.monotonic() - printed >= 5:
            printed = time.monotonic()
            print(totals.line(), flush=True)
        enough = episodes is not None and totals.kept >= episodes
        late = deadline is not None and time.monotonic() > deadline
        if (stop or enough or late) and not told:
            told = True
            for process in processes:
                process.terminate()
    for process in processes:
        process.join(10)
        if process.is_alive():
            process.kill()
    for number, handler in previous.items():
        signal.signal(number, handler)
    print("\n".join([totals.line(), *totals.table()]), flush=True)
    return totals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every recorder takes."""
    parser.add_argument("--out", type=Path, required=True, help="folder for the shards")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes, one browser each"
    )
    parser.add_argument("--pages", type=int, default=2, help="pages played at once in each browser")
    parser.add_argument("--mix", type=Path, help="JSON object of task: weight; all experts when left out")
    parser.add_argument("--bundle", type=Path, help="folder unpacked by bundle.py; gives browser and pages")
    parser.add_argument("--browser", help="path of chromium-headless-shell")
    parser.add_argument("--miniwob", type=Path, help="folder of the miniwob package")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other episodes")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--episodes", type=int, help="stop after about this many episodes")
    parser.add_argument("--shard-episodes", type=int, default=96, help="episodes in a shard")
    parser.add_argument("--max-shards", type=int, default=0, help="pause while this many shards wait in OUT")
    parser.add_argument("--validation", action="store_true", help="use the validation seeds")
    parser.add_argument("--plain", action="store_true", help="no augmentation and no slips")


def settings_of(given: argparse.Namespace, options: Options, *, sized: bool = False) -> Settings:
    """The settings of a command line; raises `ValueError` with a sentence for what is missing or wrong.

    sized: whether the mix's other sizes of screens are recorded too.
    """
    browser = given.browser or (
        str(given.bundle / "browser" / "chromium-headless-shell") if given.bundle else None
    )
    browser = browser or shutil.which("chromium-headless-shell")
    miniwob = given.miniwob or (given.bundle / "miniwob" if given.bundle else None)
    if browser is None:
        raise ValueError("No chromium-headless-shell is on the path; give one with --browser or --bundle.")
    if miniwob is None:
        raise ValueError("The MiniWoB++ pages are missing; give their folder with --miniwob or --bundle.")
    MiniWob(miniwob)
    return Settings(
        out=given.out,
        browser=browser,
        bundle=given.bundle,
        miniwob=miniwob,
        mix=read_mix(given.mix),
        seed=given.seed,
        pages=given.pages,
        shard_episodes=given.shard_episodes,
        max_shards=given.max_shards,
        seeds=VALIDATION_SEEDS if given.validation else TRAIN_SEEDS,
        options=options,
        sizes=read_sizes(given.mix) if sized else (),
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Record training episodes from real web pages into shards.")
    add_arguments(parser)
    parser.add_argument(
        "--watched", type=float, default=0.0, help="share of episodes with frames of held clicks"
    )
    given = parser.parse_args(arguments)
    try:
        settings = settings_of(given, Options(augment=not given.plain, watched=given.watched), sized=True)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    totals = record(settings, given.workers, given.seconds, given.episodes, make=Worker)
    return 0 if totals.kept else 1


if __name__ == "__main__":
    sys.exit(main())
