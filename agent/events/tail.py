"""Reading a log while it grows: each look takes what has come since the last one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pilotfish.agent.events.errors import LogError, cannot
from pilotfish.agent.events.reading import EVENTS, parse
from pilotfish.agent.events.records import Event

_PIECE = 1 << 20


@dataclass(frozen=True)
class News:
    """What one look at a log found. again: it is another log by now, or was cut short: forget what came
    before. more: there is more to read at once.
    """

    events: list[Event] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    again: bool = False
    more: bool = False


class LogTail:
    """The log of a run folder as it grows. Only whole lines are read: a torn last one is looked at again
    when more has come.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS
        self.grew = 0
        """Bytes that the last look has read."""
        self._offset = 0
        self._number = 0
        self._seen: tuple[int, int, int] | None = None  # device, inode, bytes

    def read(self, most: int = _PIECE) -> News:
        """What has come since, of about `most` bytes at a time. A log that is not there yet has no news.

        Raises `LogError` when it cannot be read.
        """
        self.grew = 0
        try:
            status = self.path.stat()
            now = (status.st_dev, status.st_ino, status.st_size)
            if now == self._seen:
                return News()
            again = self._seen is not None and (now[:2] != self._seen[:2] or now[2] < self._offset)
            if again:
                self._offset = self._number = 0
            data = self._lines(most)
        except FileNotFoundError:
            return News()
        except OSError as error:
            raise LogError(cannot("read", self.path, error)) from error
        self.grew = len(data)
        self._offset += self.grew
        more = bool(data) and self._offset < status.st_size
        # Whoever has more to read is not to be told that nothing has changed.
        self._seen = (*now[:2], -1) if more else now
        events, warnings = self._parsed(data)
        return News(events, warnings, again, more)

    def _lines(self, most: int) -> bytes:
        """The whole lines that come next, at least one if there is one."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            pieces = [file.read(most)]
            while b"\n" not in pieces[-1] and (further := file.read(most)):
                pieces.append(further)
        data = b"".join(pieces)
        return data[: data.rfind(b"\n") + 1]

    def _parsed(self, data: bytes) -> tuple[list[Event], list[str]]:
        events: list[Event] = []
        warnings: list[str] = []
        for line in data.split(b"\n")[:-1]:
            self._number += 1
            if line.strip():
                try:
                    events.append(parse(line))
                except ValueError as error:
                    warnings.append(f"Line {self._number} of {self.path} was skipped: {error}.")
        return events, warnings
