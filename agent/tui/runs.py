"""The runs of a folder, newest first, as a list of them needs to know them. No widgets."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from pilotfish.agent.events import EVENTS, LogError
from pilotfish.agent.events.tail import LogTail
from pilotfish.agent.tui.link import may_be_played
from pilotfish.agent.tui.model import Summary

_AT_ONCE = 4 << 20
"""Bytes of logs that one look reads, so that the list is soon there however much lies in the folder."""


@dataclass(eq=False)
class Run:
    """One run of the list."""

    folder: Path
    tail: LogTail
    summary: Summary = field(default_factory=Summary)
    trouble: str = ""
    """Why its log cannot be read."""
    complete: bool = False
    """Whether all that the log held has been read."""
    has_socket: bool = False


class Runs:
    """The runs below a folder. `look` blocks and belongs in a thread; it is one look at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def look(self) -> tuple[list[Run], bool]:
        """All runs, newest first, and whether something has changed since the last look."""
        with self._lock:
            names = self._names()
            changed = False
            for name in list(self._runs):
                if name not in names:
                    del self._runs[name]
                    changed = True
            left = _AT_ONCE
            for name in sorted(names, reverse=True):
                run = self._runs.get(name)
                if run is None:
                    folder = self.folder / name
                    run = self._runs[name] = Run(folder, LogTail(folder))
                    changed = True
                has_socket = run.summary.ended is None and may_be_played(run.folder)
                changed |= has_socket != run.has_socket
                run.has_socket = has_socket
                if left > 0:
                    left -= _read(run)
                    changed |= bool(run.tail.grew)
            return [self._runs[name] for name in sorted(self._runs, reverse=True)], changed

    def _names(self) -> set[str]:
        try:
            with os.scandir(self.folder) as entries:
                return {entry.name for entry in entries if os.path.lexists(f"{entry.path}/{EVENTS}")}
        except OSError:
            return set()


def _read(run: Run) -> int:
    """Read on in a run's log; returns about how many bytes that were."""
    try:
        news = run.tail.read()
    except LogError as error:
        run.trouble, run.complete = str(error), True
        return 0
    if news.again:
        run.summary = Summary()
    for event in news.events:
        run.summary.add(event)
    run.trouble, run.complete = "", not news.more
    return run.tail.grew
