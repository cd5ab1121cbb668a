# ruff: noqa: PTH103, PTH108, PTH118
"""Files with the whole output of the last few commands of a session."""

from __future__ import annotations

import contextlib
import os

LOG_BYTES = 16 << 20
"""How much of one command's output is written at most."""
LOGS_KEPT = 4
KEPT_BACK = 32 * 1024
"""Output of at most this many bytes reaches the reader whole, so there is no file of it."""


class Log:
    """One command at a time; `begin`, `feed`, `end`."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = folder, name
        self._number = 0
        self._beginning = bytearray()
        self._size = 0
        self._fd = -1

    def begin(self) -> None:
        """Start with the output of another command."""
        self.end()
        # A command may have emptied /tmp; where there is no room for files there are none.
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._beginning.clear()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """More output. Where no file can be made, or no room is left, there is no file of this command."""
        before, self._size = self._size, self._size + len(data)
        if self._size <= KEPT_BACK:
            self._beginning += data
            return
        try:
            if before <= KEPT_BACK:
                self._open()
                self._write(self._beginning)
            if self._fd >= 0 and before < LOG_BYTES:
                self._write(data)
        except OSError:
            self._give_up()

    def _write(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _give_up(self) -> None:
        """A part of the output must not pass for the whole."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                os.unlink(self._path(self._number))

    def _open(self) -> None:
        self._number += 1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(self._number - LOGS_KEPT))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._path(self._number), flags, 0o600)

    def end(self) -> str | None:
        """The file with the command's output; None when it is short, or there is no file."""
        if self._fd < 0:
            return None
        os.close(self._fd)
        self._fd = -1
        return self._path(self._number)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{self._name}-{number}.txt")
