"""The runs that there are, read from their logs, of which few records are parsed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.agent.events import EVENTS, LogError
from pilotfish.agent.events.errors import cannot
from pilotfish.agent.events.reading import parse
from pilotfish.agent.outcome import Outcome

_HEAD, _TAIL = 64 << 10, 4 << 10
"""Bytes read of a log's beginning and end. Records of settings or of a long instruction may be longer than
the tail; then a field that is not found is empty.
"""
_TELLING = (b'"run_started"', b'"run_ended"', b'"episode_started"', b'"episode_ended"')
"""What is in each record that an outcome depends on, and in hardly any other."""


@dataclass(frozen=True)
class RunInfo:
    """One run, in short. What its log does not say is ''.

    playing: whether a process plays it. status: finished, interrupted or failed; '' while it is played and
    after it was killed. outcome: what has become of it, as `Outcome.word` has it, `running` or `unreadable`.
    what: the task, or the instruction. began, changed: Unix times.
    unread: a sentence on whose it is, where it may not be read.
    """

    id: str
    folder: Path
    playing: bool
    command: str = ""
    model: str = ""
    what: str = ""
    status: str = ""
    outcome: str = ""
    began: float = 0.0
    changed: float = 0.0
    unread: str = ""


def runs_in(record_dir: Path) -> list[RunInfo]:
    """The runs in a folder, newest first. What is no run is passed over; a missing folder has none.

    Raises `LogError` where the folder may not be read.
    """
    try:
        with os.scandir(record_dir) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir()]
    except PermissionError as error:
        raise LogError(cannot("read", record_dir, error)) from error
    except OSError:
        return []
    found = []
    for folder in folders:
        with contextlib.suppress(OSError):
            try:
                found.append(look_at(folder))
            except PermissionError as error:
                found.append(_unread(folder, cannot("read", folder / EVENTS, error)))
    return newest_first(found)


def _unread(folder: Path, why: str) -> RunInfo:
    """What is known of a run that may not be read."""
    changed = folder.stat().st_mtime
    return RunInfo(
        folder.name, folder, playing=False, outcome="unreadable", began=changed, changed=changed, unread=why
    )


def newest_first(runs: Iterable[RunInfo]) -> list[RunInfo]:
    """Runs of whatever folders in the order in which they are listed."""
    return sorted(runs, key=lambda run: (run.began, run.id), reverse=True)


def look_at(folder: Path) -> RunInfo:
    """One run. Raises OSError where there is no log that can be read."""
    descriptor = os.open(folder / EVENTS, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        head = os.pread(descriptor, _HEAD, 0)
        tail = head if found.st_size <= len(head) else os.pread(descriptor, _TAIL, found.st_size - _TAIL)
        playing = _is_locked(descriptor)
        started, last = _record(head.partition(b"\n")[0]), _record(tail.rstrip(b"\n").rpartition(b"\n")[2])
        status = last.get("status") if last.get("type") == "run_ended" and not playing else None
        outcome = "running" if playing else _outcome(descriptor, is_over=status is not None)
    finally:
        os.close(descriptor)
    options = started.get("options")
    target = options.get("target") if isinstance(options, dict) else None
    what = (target.get("task") or target.get("instruction")) if isinstance(target, dict) else None
    began = started.get("t")
    return RunInfo(
        id=folder.name,
        folder=folder,
        playing=playing,
        command=_text(started.get("command")),
        model=_text(started.get("model")),
        what=_text(what),
        status=_text(status),
        outcome=outcome,
        began=float(began) if isinstance(began, int | float) and 0 <= began <= 253e9 else found.st_mtime,
        changed=found.st_mtime,
    )


def _outcome(descriptor: int, *, is_over: bool) -> str:
    """What has become of a run. is_over: whether its log ends in its end."""
    outcome = Outcome()
    with open(descriptor, "rb", closefd=False) as file:
        for line in file:
            if any(kind in line for kind in _TELLING):
                with contextlib.suppress(ValueError):
                    outcome.add(parse(line))
    outcome.ended = outcome.ended if is_over else None
    return outcome.word


def _is_locked(descriptor: int) -> bool:
    """Whether a process holds the log's lock. It is let go at once where there is none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
