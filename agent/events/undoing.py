"""What a step back has undone. It stays in the log and counts for nothing but what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pilotfish.agent.events.records import (
    Answered,
    Asked,
    Decided,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    GaveBack,
    Intended,
    Planned,
    Resulted,
    SentBack,
    SnapshotTaken,
    Spoken,
    SteppedBack,
    Tested,
    Told,
    TookOver,
)

UNDOABLE = (
    EpisodeStarted  # of a sub-task, as its end
    | EpisodeEnded
    | Answered
    | SnapshotTaken
    | Intended
    | Resulted
    | Tested
    | SentBack
    | Planned
    | Told
    | Asked
    | Decided
    | Spoken
    | TookOver
    | GaveBack
)
"""What a step back undoes; all else is of the run, or of what a person did to it."""


def undone(events: Iterable[Event]) -> frozenset[int]:
    """The ordinals of the records that were undone, among those of a run or of an episode, in their order."""
    gone: set[int] = set()
    standing: dict[int, list[Event]] = {}  # of the newest episode in each lane
    for event in events:
        here = standing.setdefault(event.lane, [])
        if isinstance(event, EpisodeStarted) and not event.parent:
            here.clear()
        elif isinstance(event, SteppedBack):
            at = step_begins(here, event.to)
            gone |= {one.n for one in here[at:] if isinstance(one, UNDOABLE)}
            here[at:] = [one for one in here[at:] if not isinstance(one, UNDOABLE)]
        here.append(event)
    return frozenset(gone)


def live(group: Sequence[Event]) -> list[Event]:
    """The records of an episode without those that were undone."""
    gone = undone(group)
    return [event for event in group if event.n not in gone] if gone else list(group)


def step_begins(group: Sequence[Event], step: int) -> int:
    """Where a step begins in an episode's records: at the first answer of it; at their end if it has none.

    What a person said or did before the model was asked belongs to the time before.
    """
    for place, event in enumerate(group):
        if isinstance(event, Answered) and not event.parent and event.step >= step:
            return place
    return len(group)
