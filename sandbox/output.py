"""What programs print, bounded: the beginning and the end stay, the middle is counted and dropped."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import termios
from collections import deque
from collections.abc import Callable

KEPT_BYTES = 32 * 1024
_CHUNK = 64 * 1024


class BoundedOutput:
    """Keeps the first and the last `kept // 2` bytes of a stream, whatever its length."""

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._half = kept // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._total = 0

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data[-self._half :])
            self._tail_size += len(self._tail[-1])
            while self._tail_size - len(self._tail[0]) >= self._half:
                self._tail_size -= len(self._tail.popleft())

    def _parts(self) -> tuple[bytes, bytes]:
        """Head and tail; where something was dropped between them both end on a border of characters."""
        head, tail = bytes(self._head), b"".join(self._tail)[-self._half :]
        if self._total > len(head) + len(tail):
            head, tail = _drop_cut_end(head), _drop_cut_start(tail)
        return head, tail

    @property
    def dropped_bytes(self) -> int:
        head, tail = self._parts()
        return self._total - len(head) - len(tail)

    @property
    def text(self) -> str:
        """What was kept: bytes that are not UTF-8 become U+FFFD, a line stands for what was dropped."""
        return self.shown(lambda data: data.decode("utf-8", "replace"))

    def shown(self, decode: Callable[[bytes], str], place: str | None = None) -> str:
        """What was kept, by `decode`; the line for what was dropped names the `place` that has all of it."""
        head, tail = self._parts()
        dropped = self._total - len(head) - len(tail)
        if dropped == 0:
            return decode(head + tail)
        where = f", everything is in {place}" if place else ""
        return f"{decode(head)}\n[... {dropped} bytes left out{where} ...]\n{decode(tail)}"


def _drop_cut_end(data: bytes) -> bytes:
    """Without the beginning of a UTF-8 character whose rest was cut off."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return data
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
    return data


def _drop_cut_start(data: bytes) -> bytes:
    """Without the continuation bytes of a UTF-8 character whose beginning was cut off."""
    skip = 0
    while skip < min(3, len(data)) and 0x80 <= data[skip] < 0xC0:
        skip += 1
    return data[skip:]


class OutputReader:
    """Reads a pipe into a `BoundedOutput` until every writer has closed it.

    It goes on reading (and dropping) when nobody waits any more, so that a server left in the background does
    not stop at a full pipe or die of a closed one.
    """

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self.output = BoundedOutput(kept)
        read, self._write = os.pipe()
        os.set_blocking(read, False)
        self._read: int | None = read
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(read, self._readable)

    @property
    def write_fd(self) -> int:
        """The end that is handed to the program; `handed_over` closes it here."""
        return self._write

    def handed_over(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def _readable(self) -> None:
        if self._read is None:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._read, _CHUNK)
            if data:
                self.output.feed(data)
            else:
                self.close()

    def drain(self) -> None:
        """Take in what is in the pipe now. After a program has ended that is all that it wrote itself."""
        if self._read is None:
            return
        waiting = int.from_bytes(fcntl.ioctl(self._read, termios.FIONREAD, b"\0" * 4), "little")
        while waiting > 0 and (data := os.read(self._read, min(waiting, _CHUNK))):
            self.output.feed(data)
            waiting -= len(data)

    def close(self) -> None:
        self.handed_over()
        if self._read is not None:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = None
