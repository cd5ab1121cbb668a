"""What has become of a run, in a word or two: the same one wherever it is told."""

from __future__ import annotations

from collections.abc import Iterable

from pilotfish.agent import events as log


class Outcome:
    """What the beginnings and ends in a run's log amount to; `add` takes its records in their order."""

    def __init__(self) -> None:
        self.started: log.RunStarted | None = None
        self.ended: log.RunEnded | None = None
        """Where the run's end is the newest record."""
        self.last: log.EpisodeEnded | None = None
        """How the newest episode ended."""
        self.over = self.passed = 0
        """Episodes that have come to their end, one that was stopped not counted, and that passed."""

    def add(self, event: log.Event) -> None:
        """Take a record in."""
        self.ended = event if isinstance(event, log.RunEnded) else None
        match event:
            case log.RunStarted():
                self.started = event
            case log.EpisodeStarted() if not event.parent:
                self.last = None
            case log.EpisodeEnded() if not event.parent:
                self.last = event
                self.over += log.has_ended([event])
                self.passed += bool(event.passed)

    @property
    def word(self) -> str:
        """How a run that no process plays stands."""
        if self.ended is None:
            return "broken off" if self.started else "starting"
        if self.ended.status == "interrupted":
            return "stopped"
        if self.ended.status == "failed":
            return "failed"
        if self.over > 1:
            return f"{self.passed}/{self.over} passed"
        if self.last is None or self.last.passed is None:
            return "done" if self.last is not None and self.last.end in ("done", "answered") else "ended"
        return "passed" if self.last.passed else "not passed"


def outcome_of(events: Iterable[log.Event]) -> str:
    """The word for a run of which these are all the records."""
    outcome = Outcome()
    for event in events:
        outcome.add(event)
    return outcome.word
