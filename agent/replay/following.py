"""A run's story while its log is being written by another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.events.tail import LogTail
from pilotfish.agent.replay.page import run_data
from pilotfish.agent.replay.story import Story

_BEGINNING, _PIECE = 1 << 16, 1 << 20
"""Bytes of a log that are read before it is served, and at a time after that."""


class Following:
    """What a log has told so far, at first its beginning. `read` takes what comes next; not safe for several
    threads at once.

    What changed in the workspace is left out: to look there would keep the run from its own snapshots.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.frames = log.FrameStore(folder / log.FRAMES)
        self.version = 0
        """Grows with every change."""
        self.epoch = 0
        """Grows when the log was taken back, so that all that was told counts no more."""
        self.more = True
        """Whether the log holds more that was not read yet."""
        self._tail = LogTail(folder)
        self._begin()
        self.read(_BEGINNING)

    def _begin(self) -> None:
        self._events: list[log.Event] = []
        self._warnings: list[str] = []
        self._story = Story()
        self._stamps: list[list[tuple[object, ...]]] = []
        self._versions: list[list[int]] = []

    def read(self, most: int = _PIECE) -> bool:
        """Take what comes next, of about `most` bytes; whether there was anything. Raises `log.LogError`."""
        before = self.version
        news = self._tail.read(most)
        if news.again:
            self._begin()
            self.epoch += 1
        if news.again or news.events or news.warnings or news.more != self.more:
            self.version += 1
        self.more = news.more
        self._events += news.events
        self._warnings += news.warnings
        for number in {number for event in news.events for number in self._story.feed(event)}:
            self._compare(number)
        return self.version > before

    def _compare(self, number: int) -> None:
        """Give the entries of an episode that have changed the newest version."""
        while len(self._stamps) <= number:
            self._stamps.append([])
            self._versions.append([])
        stamps, versions = self._stamps[number], self._versions[number]
        for at, entry in enumerate(self._story.episodes[number].entries):
            stamp = entry.stamp()
            if at == len(stamps):
                stamps.append(stamp)
                versions.append(self.version)
            elif stamps[at] != stamp:
                stamps[at], versions[at] = stamp, self.version

    def changes(self, since: int) -> dict[str, Any]:
        """What is another since a version, as the page reads it; 0 is everything."""
        run = log.RunLog(self.folder, self._events, self._warnings)
        begun = any(isinstance(event, log.RunStarted) for event in self._events[:1])
        changed = [
            [number, at, self._story.episodes[number].entries[at].as_json()]
            for number, versions in enumerate(self._versions)
            for at, version in enumerate(versions)
            if version > since
        ]
        return {
            "version": self.version,
            "epoch": self.epoch,
            "more": self.more,
            "run": run_data(run) if begun else None,
            "episodes": [episode.as_json() for episode in self._story.episodes],
            "changed": changed,
        }
