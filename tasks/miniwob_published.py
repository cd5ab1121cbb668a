"""Published figures for MiniWoB++, from `miniwob_published.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pilotfish.tasks.reader import TaskError, read_data


@dataclass(frozen=True)
class PublishedMean:
    """What somebody reports as the mean over some tasks, 0 to 1; `low` and `high` where retellings differ."""

    who: str
    of: str
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Published:
    """What others report. people: people's mean, the lowest that is told."""

    means: tuple[PublishedMean, ...]
    people: float


def read_published(path: Path | None = None) -> Published:
    """The figures of a file, by default those that ship. Raises `TaskError` for a figure that is no share,
    and where people's mean is missing.
    """
    path = path or Path(__file__).with_name("miniwob_published.yaml")
    data = read_data(path)
    means = tuple(
        PublishedMean(str(m["who"]), str(m["of"]), float(m["low"]), float(m["high"]), str(m["source"]))
        for m in data["means"]
    )
    for share in (share for mean in means for share in (mean.low, mean.high)):
        if not 0 <= share <= 1:
            raise TaskError(f"{path} has the figure {share:g}; write shares from 0 to 1.")
    people = [mean.low for mean in means if mean.who == "people"]
    if not people:
        raise TaskError(f"{path} has no mean of people; write one with `who: people`.")
    return Published(means, min(people))
