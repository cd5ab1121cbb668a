"""What a run's log amounts to: rows to list, the plan, what it cost, and what it does now. No widgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pilotfish.agent import events as log
from pilotfish.agent.outcome import Outcome

Kind = Literal["task", "step", "note", "told", "you", "tests", "net", "mark", "end"]
"""What a row is: a task begins, an answer with its calls, a word of the set-up, of the loop or of a person,
a run of tests, the network, something a person did to the run, an end.
"""


@dataclass(eq=False)
class Row:
    """One line of the list of steps, and the records that belong to it."""

    kind: Kind
    index: int
    t: float
    step: int = 0
    lane: int = 0
    depth: int = 0
    """1 in a sub-task."""
    undone: bool = False
    events: list[log.Event] = field(default_factory=list)
    version: int = 0
    """Grows when the row changes."""

    @property
    def answer(self) -> log.Answered | None:
        """The model's answer of a step."""
        first = self.events[0] if self.events else None
        return first if isinstance(first, log.Answered) else None

    @property
    def results(self) -> list[log.Resulted]:
        """What came of its calls."""
        return [event for event in self.events if isinstance(event, log.Resulted)]

    @property
    def seconds(self) -> float:
        """Wall time of the answer and of its calls."""
        answer = self.answer
        return (answer.seconds if answer else 0.0) + sum(result.seconds for result in self.results)

    @property
    def clip(self) -> log.ClipData | None:
        """The newest clip that belongs to it."""
        clips = [clip for event in self.events if (clip := getattr(event, "clip", None)) is not None]
        return clips[-1] if clips else None

    def add(self, event: log.Event) -> None:
        """Put a record to it."""
        self.events.append(event)
        self.version += 1


@dataclass
class Cost:
    """Sums over all answers, those of undone steps too: they were paid for."""

    answers: int = 0
    tokens_in: int = 0
    cached: int = 0
    tokens_out: int = 0
    seconds: float = 0.0

    def add(self, answer: log.Answered) -> None:
        """Count one answer."""
        usage = answer.usage
        self.answers += 1
        self.tokens_in += usage.input_tokens or 0
        self.cached += usage.cached_tokens or 0
        self.tokens_out += usage.output_tokens
        self.seconds += answer.seconds

    @property
    def hits(self) -> float | None:
        """The share of the prompts' tokens that were in the cache; None where nothing was read."""
        return self.cached / self.tokens_in if self.tokens_in else None


class Summary(Outcome):
    """The few figures of a run that a list of runs shows."""

    def __init__(self) -> None:
        super().__init__()
        self.task = ""
        self.instruction = ""
        self.episodes = 0
        self.step = 0
        """The newest step of the newest task."""
        self.began = self.newest = 0.0
        self.cost = Cost()

    def add(self, event: log.Event) -> None:
        super().add(event)
        self.began = self.began or event.t
        self.newest = max(self.newest, event.t)
        match event:
            case log.EpisodeStarted() if not event.parent:
                self.task, self.instruction = event.task, event.instruction
                self.episodes += 1
                self.step = 0
            case log.Answered():
                self.cost.add(event)
                if not event.parent:
                    self.step = event.step
            case log.SteppedBack() if not event.parent:
                self.step = event.to - 1

    @property
    def seconds(self) -> float:
        """From its first record to its newest."""
        return self.newest - self.began


class RunModel(Summary):
    """A run, record by record. Feed it all of them in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.lanes: set[int] = set()
        self.waiting: log.Asked | None = None
        """A call that waited for a person when the log ended."""
        self.clip: log.ClipData | None = None
        """The newest clip of all."""
        self.events: list[log.Event] = []
        self._open: dict[tuple[int, int], Row] = {}  # the newest step of each lane and sub-task

    @property
    def plan(self) -> Sequence[log.PlanItem]:
        """The model's plan as it is; steps that were undone have no say in it."""
        for row in reversed(self.rows):
            if not row.undone and not row.depth:
                for event in reversed(row.events):
                    if isinstance(event, log.Planned):
                        return event.items
                if row.kind == "task":
                    break
        return ()

    def take(self, events: Iterable[log.Event]) -> None:
        """Take records in."""
        for event in events:
            self.add(event)

    def add(self, event: log.Event) -> None:
        super().add(event)
        self.events.append(event)
        self.clip = getattr(event, "clip", None) or self.clip
        match event:
            case log.RunStarted() | log.Networked() | log.LaidOut() | log.Prefilled():
                self._aside(event)
            case log.EpisodeStarted():
                if not event.parent:
                    self.lanes.add(event.lane)
                self._open.pop((event.lane, event.parent), None)
                self._row("task", event)
            case log.Answered():
                self._open[(event.lane, event.parent)] = self._row("step", event, event.step)
            case log.Intended() | log.Resulted() | log.SnapshotTaken() | log.Planned() | log.Decided():
                self._belongs(event)
            case log.Asked():
                self._belongs(event)
                self.waiting = event
            case log.Told() | log.SentBack():
                self._row("told", event, event.step)
            case log.Spoken():
                self._row("you", event, event.step)
            case log.Tested():
                self._row("tests", event)
            case log.SteppedBack():
                self._undo(event)
                last = self.rows[-1].events[-1] if self.rows else None
                if isinstance(last, log.SteppedBack) and not last.over:
                    self.rows[-1].add(event)
                else:
                    self._row("mark", event)
            case log.Paused() | log.TookOver() | log.GaveBack() | log.RuleAdded() | log.Resumed():
                self._row("mark", event)
            case log.RunEnded(status="finished") if self.rows and self.rows[-1].kind == "end":
                self.rows[-1].add(event)  # it says nothing that the end of its task does not
            case log.EpisodeEnded() | log.RunEnded() | log.HandedBack():
                self._row("end", event)
        if isinstance(event, log.Decided | log.Resulted | log.EpisodeEnded | log.RunEnded):
            self.waiting = None

    def _row(self, kind: Kind, event: log.Event, step: int = 0) -> Row:
        row = Row(
            kind,
            len(self.rows),
            event.t,
            step,
            event.lane,
            int(bool(event.parent)),
            events=[event],
        )
        self.rows.append(row)
        return row

    def _belongs(self, event: log.Event) -> None:
        row = self._open.get((event.lane, event.parent))
        if row is None:  # the start of its step is missing from the log
            step = getattr(event, "step", 0)
            row = self._open[(event.lane, event.parent)] = self._row("step", event, step)
        else:
            row.add(event)

    def _aside(self, event: log.Event) -> None:
        """Network attempts in a row share a line; what is only said once has its own."""
        last = self.rows[-1] if self.rows else None
        if isinstance(event, log.Networked):
            if last is not None and last.kind == "net" and last.lane == event.lane:
                last.add(event)
            else:
                self._row("net", event)
        else:
            self._row("note", event)

    def _undo(self, event: log.SteppedBack) -> None:
        """Mark what a step back has undone, as `events.undone` tells it of records."""
        standing: list[Row] = []
        for row in reversed(self.rows):
            if row.lane == event.lane and not row.undone:
                if row.kind == "task" and not row.depth:
                    break
                standing.append(row)
        steps = [row for row in standing if row.kind == "step" and not row.depth]
        begins = min((row.index for row in steps if row.step >= event.to), default=len(self.rows))
        for row in standing:
            if row.index >= begins and isinstance(row.events[0], log.UNDOABLE):
                row.undone = True
                row.version += 1
        self._open.pop((event.lane, event.parent), None)
