"""What the `edit` tool changed, so that it can be taken back, newest first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 64 << 20
"""How much former content is kept; the oldest goes first."""

File = tuple[str, Path]
"""A file by its workspace and its path."""


@dataclass(frozen=True)
class Step:
    """One change of a file: its bytes before (None: there was no file), a digest of those after."""

    file: File
    before: bytes | None
    after: bytes


class History:
    """The changes of all files, bounded in memory."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._steps: deque[Step] = deque()
        self._size = 0

    def add(self, step: Step) -> None:
        """Remember a change that has just been made."""
        self._steps.append(step)
        self._size += len(step.before or b"")
        while self._size > self._max_bytes:
            self._size -= len(self._steps.popleft().before or b"")

    def last(self, file: File) -> Step | None:
        """The newest change of a file that has not been taken back."""
        return next((step for step in reversed(self._steps) if step.file == file), None)

    def remove(self, step: Step) -> None:
        """Forget a change, because it has been taken back: this one, not an equal one before it."""
        del self._steps[next(i for i, kept in enumerate(self._steps) if kept is step)]
        self._size -= len(step.before or b"")

    def copy(self) -> History:
        """The same changes, kept apart from here on."""
        other = History(self._max_bytes)
        other._steps, other._size = self._steps.copy(), self._size
        return other

    def clear(self) -> None:
        self._steps.clear()
        self._size = 0
