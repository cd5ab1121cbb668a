"""How many episodes were played and kept, and how: of each task, and of all workers together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass
class Count:
    """Of the episodes of one task. Where a model played, also: alone, those that it was to play by itself;
    passed, those of them that were rewarded without the expert's help; steps, and those that were right, the
    expert's; lost, those in which the expert could not go on.
    """

    played: int = 0
    kept: int = 0
    alone: int = 0
    passed: int = 0
    steps: int = 0
    right: int = 0
    lost: int = 0

    def add(self, other: Count) -> None:
        """Count those of another too."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Totals:
    """What the workers reported so far."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.counts: defaultdict[str, Count] = defaultdict(Count)
        self.restarts = 0
        self.unplayed = 0
        self._last = (self.begun, 0)

    @property
    def kept(self) -> int:
        """Of all tasks."""
        return sum(count.kept for count in self.counts.values())

    def add(self, counts: Mapping[str, Count], restarts: int, unplayed: int) -> None:
        """Add one report: `counts` are those of each task since the one before."""
        self.restarts += restarts
        self.unplayed += unplayed
        for task, count in counts.items():
            self.counts[task].add(count)

    def line(self) -> str:
        """A progress line: rate, totals, and every task below 99 %."""
        now, kept = time.monotonic(), self.kept
        rate = (kept - self._last[1]) / max(now - self._last[0], 1e-9)
        self._last = (now, kept)
        weak = [
            f"{task} {count.kept}/{count.played}"
            for task, count in sorted(self.counts.items())
            if count.kept < 0.99 * count.played
        ]
        return (
            f"{now - self.begun:6.0f} s  {kept} episodes  {rate:.1f}/s"
            f"  {self.restarts} restarts  {self.unplayed} unplayed"
            f"  below 99 %: {', '.join(weak) or 'none'}"
        )

    def table(self) -> list[str]:
        """A line for each task."""
        counts = sorted(self.counts.items())
        return [f"  {task}: {count.kept} of {count.played} kept" for task, count in counts]
