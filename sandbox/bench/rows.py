"""What a benchmark measures: rows of numbers, each with an aim or without, beside what others take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What was measured, in `unit`, `n` times; p50 should be at most `aim`, 0 for a row to compare with.

    note: why there are no numbers, or what else should be known.
    """

    what: str
    n: int = 0
    p50: float = 0.0
    p95: float = 0.0
    aim: float = 0.0
    unit: str = "ms"
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the aim was met, '' where there is none."""
        return "" if not self.aim else "met" if self.p50 <= self.aim else "MISSED"


def row(what: str, taken: Sequence[float], aim: float = 0.0, unit: str = "ms", note: str = "") -> Row:
    """A row of what was taken each time."""
    ordered = sorted(taken)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return Row(what, len(ordered), statistics.median(ordered), p95, aim, unit, note)


async def times_ms(count: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    """Milliseconds of each of `count` runs, after one that is not counted."""
    await work()
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - start) * 1000)
    return taken


def table(rows: Sequence[Row]) -> str:
    """Lines to be read."""
    lines = [f"{'':62} {'n':>4} {'p50':>9} {'p95':>9} {'aim':>7}"]
    for found in rows:
        numbers = f"{found.n:4} {found.p50:9.2f} {found.p95:9.2f} {found.aim or '':>7} {found.unit:3} "
        numbers += found.verdict
        lines.append(f"{found.what:62} {numbers if found.n else ''}{'  ' if found.note else ''}{found.note}")
    return "\n".join(line.rstrip() for line in lines)
