"""`python -m pilotfish.agent.soak --episodes 1000`: play many episodes in one process and look for growth.

Episodes share a sandbox for a while and then get a fresh one, as benchmarks and single runs do. Processes,
open descriptors, threads and memory are counted after a warm-up and at the end; the exit status is 1 if any
grew.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from dataclasses import dataclass, fields
from pathlib import Path

from pilotfish.agent.events import EventLog
from pilotfish.agent.player import Job, Player
from pilotfish.agent.policy import Policy
from pilotfish.agent.settings import Settings
from pilotfish.agent.solution import random_clicks
from pilotfish.tasks.environments import environment_for
from pilotfish.tasks.miniwob_tasks import miniwob_task

WARM_UP = 10
EPISODES_PER_BOX = 15
MEMORY_SLACK_MB = 40
"""What the interpreter's and the libraries' own caches may add, however many episodes are played."""


@dataclass(frozen=True)
class Count:
    """What a process holds on to."""

    processes: int
    descriptors: int
    threads: int
    memory_mb: float

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name):g}" for field in fields(self))


def count() -> Count:
    """This process and all that descend from it, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return Count(_descendants(), descriptors, threading.active_count(), round(pages * 4096 / 1e6, 1))


def _descendants() -> int:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parents[folder.name] = stat.rpartition(")")[2].split()[1]
    ours, new = {"self"}, {Path("/proc/self").readlink().name}
    while new:
        ours |= new
        new = {child for child, parent in parents.items() if parent in new}
    return len(ours) - 2


def grew(before: Count, after: Count) -> list[str]:
    """The names of what grew."""
    names = [
        name
        for name in ("processes", "descriptors", "threads")
        if getattr(after, name) > getattr(before, name)
    ]
    return names + (["memory"] if after.memory_mb > before.memory_mb + MEMORY_SLACK_MB else [])


async def soak(episodes: int, folder: Path, warm_up: int = WARM_UP) -> tuple[Count, Count]:
    """Play `warm_up` and then `episodes` episodes of one click each; returns the counts after each part."""
    settings = Settings(max_steps=1, quiet_ms=20, settle_cap_s=0.2)
    counts = []
    number = 0
    for part in (warm_up, episodes):
        with EventLog(folder) as events:
            async with Player(settings, events, Policy(), asyncio.Event()) as player:
                for _ in range(part):
                    task = miniwob_task("click-test", seed=number)
                    shared = (number + 1) % EPISODES_PER_BOX != 0
                    job = Job(
                        number,
                        task.name,
                        environment_for(task),
                        task.tools,
                        task.limits,
                        number,
                        shared=shared,
                    )
                    await player.play(job, random_clicks(number))
                    number += 1
                    if number % 50 == 0:
                        print(f"{number} of {warm_up + episodes}", file=sys.stderr, flush=True)
        await asyncio.sleep(0.5)
        counts.append(count())
    return counts[0], counts[1]


def main() -> None:
    """Read the command line, play, and compare."""
    parser = argparse.ArgumentParser(description="Play many episodes in one process and look for growth.")
    parser.add_argument("--episodes", type=int, default=1000)
    episodes = parser.parse_args().episodes
    with tempfile.TemporaryDirectory() as folder:
        before, after = asyncio.run(soak(episodes, Path(folder)))
    print(f"after {WARM_UP} episodes: {before}")
    print(f"after {WARM_UP + episodes} episodes: {after}")
    names = grew(before, after)
    print(f"grew: {', '.join(names)}" if names else "nothing grew")
    sys.exit(1 if names else 0)


if __name__ == "__main__":
    main()
