"""Published figures for MiniWoB++, from `miniwob_published.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pilotfish.tasks.miniwob_tasks import check_name
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
    """What others report. people: task name to people's success, for the tasks of which it is known."""

    means: tuple[PublishedMean, ...]
    people: dict[str, float]


def read_published(path: Path | None = None) -> Published:
    """The figures of a file, by default those that ship. Raises `TaskError` for an unknown task or a figure
    that is no share.
    """
    path = path or Path(__file__).with_name("miniwob_published.yaml")
    data = read_data(path)
    means = tuple(
        PublishedMean(str(m["who"]), str(m["of"]), float(m["low"]), float(m["high"]), str(m["source"]))
        for m in data["means"]
    )
    people = {check_name(name): float(share) for name, share in (data["people"] or {}).items()}
    for share in [*people.values(), *(s for m in means for s in (m.low, m.high))]:
        if not 0 <= share <= 1:
            raise TaskError(f"{path} has the figure {share:g}; write shares from 0 to 1.")
    return Published(means, people)
