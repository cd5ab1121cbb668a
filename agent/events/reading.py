"""Reading a run's log: what a crash has torn or this reader does not know is skipped and named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from pilotfish.agent.events.errors import LogError, cannot
from pilotfish.agent.events.frames import FRAMES, FrameStore
from pilotfish.agent.events.records import (
    VERSION,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    HandedBack,
    Networked,
    Resumed,
    RunEnded,
    RunStarted,
)

EVENTS = "events.jsonl"
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])
_TYPES = tuple(kind.model_fields["type"].default for kind in Event.__args__)


@dataclass(frozen=True)
class RunLog:
    """A run as its folder tells it."""

    folder: Path
    events: Sequence[Event]
    warnings: Sequence[str] = field(default_factory=tuple)

    @property
    def frames(self) -> FrameStore:
        return FrameStore(self.folder / FRAMES)

    @property
    def started(self) -> RunStarted:
        """The run's first record. Raises `LogError` when it has none."""
        for event in self.events:
            if isinstance(event, RunStarted):
                return event
        raise LogError(f"The log {self.folder / EVENTS} holds no run; give the folder of a run.")

    @property
    def ended(self) -> RunEnded | None:
        """How the run ended, or None while it runs or after it was killed."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, RunEnded) else None

    def episodes(self) -> list[list[Event]]:
        """The records of each episode, from its start to its end or to where it broke off.

        An episode that was stopped goes on where the run was resumed. Of episodes that were played at once,
        each has its own.
        """
        groups: list[list[Event]] = []
        placing = Placing()
        for event in self.events:
            for number in placing.place(event):
                if number == len(groups):
                    groups.append([])
                groups[number].append(event)
        return groups


class Placing:
    """Tells of one record after the other to which episodes it belongs, counted from 0 as they began."""

    def __init__(self) -> None:
        self._episodes = 0
        self._newest: dict[int, int] = {}  # of each lane
        self._open: set[int] = set()
        self._over: set[int] = set()  # lanes whose newest episode has an end that a resume would not undo

    def place(self, event: Event) -> list[int]:
        """The episodes of the next record."""
        lane = event.lane
        if event.parent:  # starts and ends of sub-tasks are none of the episode
            return [self._newest[lane]] if lane in self._open else []
        match event:
            case EpisodeStarted():
                self._newest[lane] = self._episodes
                self._episodes += 1
                self._open.add(lane)
                self._over.discard(lane)
            case RunEnded():
                self._open.clear()
            case Resumed():
                self._open = set(self._newest) - self._over
                return [self._newest[lane] for lane in self._newest if lane in self._open]
            case Networked() | HandedBack() if lane in self._newest and lane not in self._open:
                return [self._newest[lane]]  # told a moment after the end
        if lane not in self._open:
            return []
        if has_ended([event]):
            self._open.discard(lane)
            self._over.add(lane)
        return [self._newest[lane]]


def has_ended(group: Sequence[Event]) -> bool:
    """Whether an episode's records hold an end that a resume would not undo."""
    return any(
        isinstance(event, EpisodeEnded) and event.end != "stopped" and not event.parent for event in group
    )


def read_run(folder: Path) -> RunLog:
    """Read a run's log. What cannot be understood is skipped and named in `warnings`.

    Raises `LogError` when there is no log.
    """
    path = folder / EVENTS
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LogError(cannot("read", path, error)) from error
    events: list[Event] = []
    warnings: list[str] = []
    for number, line, whole in _lines(data):
        try:
            events.append(parse(line))
        except ValueError as error:
            what = str(error) if whole else "it was torn by a crash"
            warnings.append(f"Line {number} of {path} was skipped: {what}.")
    return RunLog(folder, events, warnings)


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Number, content and whether it ends in a line feed, of each line that is not blank."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line, number < len(lines)


def parse(line: bytes) -> Event:
    """One record. Raises ValueError with the end of a sentence that says why it was skipped."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not a JSON object") from None
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    if not isinstance(fields.get("v"), int) or fields["v"] > VERSION:
        raise ValueError(f"its version is {fields.get('v')!r} and this program reads up to {VERSION}")
    if fields.get("type") not in _TYPES:
        raise ValueError(f"its type {fields.get('type')!r} is not known")
    try:
        return _EVENT.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"its field {'.'.join(map(str, first['loc'][1:]))} is wrong") from None


def option_of(started: RunStarted, name: str) -> dict[str, Any]:
    """One of the options a run was started with. Raises `LogError` when its log was changed by hand."""
    option = started.options.get(name)
    if not isinstance(option, dict):
        raise LogError(cannot_go_on(started))
    return dict(option)


def cannot_go_on(started: RunStarted) -> str:
    """The sentence about a run whose log does not say what it was to do."""
    return f"The log of {started.run} does not say what the run was to do; start a new one."
