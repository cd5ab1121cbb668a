"""The event log of a run: `events.jsonl`, one record a line, and `frames/`, one PNG per distinct frame.

A record is on disk before anything depends on it: every line is flushed with fsync, and a call is written
as an intent before it runs and as a result after. One process writes, under a lock; anyone may read at any
time. A line that a crash has torn is ignored, and so is a record of a type or version that this reader does
not know.
"""

from pilotfish.agent.events.errors import LogError
from pilotfish.agent.events.frames import FRAMES, FrameStore
from pilotfish.agent.events.reading import EVENTS, RunLog, cannot_go_on, has_ended, option_of, read_run
from pilotfish.agent.events.records import (
    VERSION,
    Answered,
    AttemptData,
    CallData,
    ClipData,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    HandedBack,
    Intended,
    LaidOut,
    Networked,
    PlanItem,
    Planned,
    Prefilled,
    Record,
    Resulted,
    Resumed,
    RunEnded,
    RunStarted,
    SentBack,
    SnapshotTaken,
    Tested,
    Told,
)
from pilotfish.agent.events.writing import EventLog

__all__ = [
    "EVENTS",
    "FRAMES",
    "VERSION",
    "Answered",
    "AttemptData",
    "CallData",
    "ClipData",
    "EpisodeEnded",
    "EpisodeStarted",
    "Event",
    "EventLog",
    "FrameStore",
    "HandedBack",
    "Intended",
    "LaidOut",
    "LogError",
    "Networked",
    "PlanItem",
    "Planned",
    "Prefilled",
    "Record",
    "Resulted",
    "Resumed",
    "RunEnded",
    "RunLog",
    "RunStarted",
    "SentBack",
    "SnapshotTaken",
    "Tested",
    "Told",
    "cannot_go_on",
    "has_ended",
    "option_of",
    "read_run",
]
