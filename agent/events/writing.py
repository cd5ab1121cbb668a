"""Writing a run's log: one process, under a lock, each record on disk before anything depends on it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from pilotfish.agent.events.errors import LogError, cannot
from pilotfish.agent.events.frames import FRAMES, FrameStore
from pilotfish.agent.events.reading import EVENTS, read_run
from pilotfish.agent.events.records import Event


class EventLog:
    """The one writer of a run's log. Use as a context manager, which holds the lock."""

    def __init__(self, folder: Path, on_event: Callable[[Event], None] | None = None) -> None:
        """Open the log of a run folder, which is created if need be; records are added after those there are.

        on_event: told each record after it was written.
        Raises `LogError` when the folder cannot be written or another process holds the lock.
        """
        self.folder = folder
        self.frames = FrameStore(folder / FRAMES)
        self.path = folder / EVENTS
        self._on_event = on_event
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogError(cannot("write", folder, error)) from error
        if not self._lock():
            os.close(self._fd)
            raise LogError(f"The run {folder} is being written by another process; wait for it or stop it.")
        run = read_run(folder)
        # Lines that this reader skips have ordinals too.
        self._last = max([event.n for event in run.events], default=0) + len(run.warnings)
        self._end_torn_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @property
    def last(self) -> int:
        """The ordinal of the newest record."""
        return self._last

    def under(self, parent: int) -> EventLog:
        """The same log for a sub-task: what is appended there says of which call it is a part."""
        return _Part(self, parent)

    def lane(self, number: int) -> EventLog:
        """The same log for one of several episodes that are played at once, counted from 1."""
        return _Lane(self, number)

    def append(self, event: Event) -> None:
        """Write one record. When this returns, the record is on disk.

        Raises `LogError` when it cannot be written; the records before it are intact then.
        """
        event = event.model_copy(update={"n": self._last + 1, "t": round(time.time(), 3)})
        line = json.dumps(event.model_dump(mode="python"), default=str) + "\n"
        self._write(line.encode())
        self._last += 1
        if self._on_event is not None:
            self._on_event(event)

    def _lock(self) -> bool:
        """Take the lock. One who only looks whether it is held has it for a moment, which is waited for."""
        for _ in range(10):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.02)
            else:
                return True
        return False

    def _write(self, data: bytes) -> None:
        about = os.fstat(self._fd)
        size = about.st_size
        # Some file systems count no links, so the path is asked too.
        if not about.st_nlink and not self.path.exists():
            raise LogError(f"The log {self.path} was removed while the run was played; start the run anew.")
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, size)
            raise LogError(cannot("write", self.path, error)) from error

    def _end_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write(b"\n")


class _Part(EventLog):
    """Passes records on to the log that it is a part of, which is opened and closed elsewhere."""

    def __init__(self, whole: EventLog, parent: int) -> None:
        self._whole = whole
        self._parent = parent
        self.folder, self.frames, self.path = whole.folder, whole.frames, whole.path

    @property
    def last(self) -> int:
        return self._whole.last

    def append(self, event: Event) -> None:
        self._whole.append(event.model_copy(update={"parent": self._parent}))


class _Lane(EventLog):
    """Passes records on likewise; others may come between them."""

    def __init__(self, whole: EventLog, number: int) -> None:
        self._whole = whole
        self._number = number
        self._last = 0
        self.folder, self.frames, self.path = whole.folder, whole.frames, whole.path

    def append(self, event: Event) -> None:
        self._whole.append(event.model_copy(update={"lane": self._number}))
        self._last = self._whole.last
