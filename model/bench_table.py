"""The bench's table: what a line holds, what was aimed at, and how it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

AIMS = {("prefill", 8192): 6.0, ("prefill", 16_384): 20.0, ("step", 8192): 3.0}
"""How many times faster than transformers, by job and tokens (a step: those before it)."""


@dataclass(frozen=True)
class Side:
    """What one side took: seconds (a median), of how many runs; the most bytes that its process held."""

    seconds: float
    runs: int
    peak_bytes: int


@dataclass(frozen=True)
class Row:
    """One line of the table.

    difference: greatest difference of the two sides' last scores, in standard deviations of ours.
    most_s, most_bytes: what is aimed at where transformers is not run.
    """

    job: str
    tokens: int
    before: int
    ours: Side
    theirs: Side | None
    difference: float | None = None
    most_s: float | None = None
    most_bytes: int | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times faster than transformers."""
        return None if self.theirs is None else self.theirs.seconds / self.ours.seconds

    @property
    def aim(self) -> float | None:
        """The ratio aimed at."""
        return AIMS.get((self.job, self.before or self.tokens))

    @property
    def met(self) -> bool | None:
        """Whether the row's aims are met; None where it has none, or where transformers was not run."""
        met = [] if self.aim is None or self.ratio is None else [self.ratio >= self.aim]
        met += [] if self.most_s is None else [self.ours.seconds <= self.most_s]
        met += [] if self.most_bytes is None else [self.ours.peak_bytes <= self.most_bytes]
        return all(met) if met else None

    def as_json(self) -> dict[str, Any]:
        """The row with what follows from it."""
        return {**asdict(self), "ratio": self.ratio, "aim": self.aim, "met": self.met}


_COLUMNS = (
    ("job", 9), ("tokens", -10), ("after", -11), ("ours", -10), ("transformers", -14), ("ratio", -8),
    ("aim", -11), ("", 8), ("memory", -9), ("theirs", -9), ("difference", -12),
)  # fmt: skip


def headline(machine: Mapping[str, Any]) -> str:
    """The machine and the checkpoint."""
    peer = machine["transformers"]
    beside = "ours alone" if peer is None else f"transformers {peer}"
    threads = f"{machine['threads']} thread" + "s" * (machine["threads"] > 1)
    return (
        f"{machine['device']}, {threads}, torch {machine['torch']}, {beside}\n"
        f"{machine['model']}: {machine['parameters'] / 1e6:.1f} M parameters in {machine['dtype']}"
    )


def columns() -> str:
    """The names of the columns."""
    return _cells([name for name, _ in _COLUMNS])


def line(row: Row) -> str:
    """A row of the table."""
    aims = [] if row.aim is None else [f">= {row.aim:g}x"]
    aims += [] if row.most_s is None else [f"<= {row.most_s:.2g} s"]
    aims += [] if row.most_bytes is None else [f"<= {row.most_bytes / 1e9:g} GB"]
    cells = [
        row.job,
        f"{row.tokens:,}",
        f"{row.before:,}" if row.before else "-",
        _time(row.ours.seconds),
        "-" if row.theirs is None else _time(row.theirs.seconds),
        "-" if row.ratio is None else f"{row.ratio:.1f}x",
        ", ".join(aims) or "-",
        "" if row.met is None else "  met" if row.met else "  missed",
        _memory(row.ours.peak_bytes),
        "-" if row.theirs is None else _memory(row.theirs.peak_bytes),
        "-" if row.difference is None else f"{row.difference:.2g}",
    ]
    return f"{_cells(cells)}  {row.note}".rstrip()


def _cells(cells: list[str]) -> str:
    widths = [width for _, width in _COLUMNS]
    return "".join(c.ljust(w) if w > 0 else c.rjust(-w) for c, w in zip(cells, widths, strict=True)).rstrip()


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _memory(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
