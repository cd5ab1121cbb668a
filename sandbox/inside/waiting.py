# ruff: noqa: PTH116, PTH123, PTH208
"""Whether a program waits for what a person types: not guessed from silence, but read from /proc.

A program waits when it sleeps in a read of its terminal, or in a poll, select or epoll that watches it. The
call and its arguments are in /proc/PID/syscall, what the arguments point to is in /proc/PID/mem. This runs
inside the sandbox, with the standard library only; a process that may not be looked at counts as not waiting.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from pilotfish.sandbox.inside.processes import Entry

_MAX_THREADS = 64
_MAX_FDS = 4096
_READABLE = 0x41  # POLLIN | POLLRDNORM, the same bits in an epoll set
_DEV_TTY = os.makedev(5, 0)  # what /dev/tty is, whichever terminal it stands for

# Numbers of the calls, by what their arguments are: asm/unistd_64.h and asm-generic/unistd.h.
_CALLS = {
    "x86_64": {
        0: "read",
        19: "read",
        7: "poll",
        271: "poll",
        23: "select",
        270: "select",
        232: "epoll",
        281: "epoll",
        441: "epoll",
    },
    "aarch64": {63: "read", 65: "read", 73: "poll", 72: "select", 22: "epoll", 441: "epoll"},
}.get(os.uname().machine, {})


class Waiter:
    """A thread that waits for the terminal. Two equal looks mean that it did not run between them.

    alone: it waits for nothing else. A program that does, such as `script` or an event loop, may as well be
    waiting for its own work.
    """

    __slots__ = ("alone", "call", "pid", "switches", "thread")

    def __init__(self, pid: int, thread: int, call: str, switches: str, alone: bool) -> None:
        self.pid = pid
        self.thread = thread
        self.call = call
        self.switches = switches
        self.alone = alone

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Waiter) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash((self.pid, self.thread, self.switches))


def find_waiter(group: Iterable[Entry], device: int) -> Waiter | None:
    """The first thread of these processes that waits for the terminal of this device number."""
    for entry in group:
        if entry.state != "S":
            continue
        try:
            threads = os.listdir(f"/proc/{entry.pid}/task")[:_MAX_THREADS]
        except OSError:
            continue
        for thread in threads:
            if waiter := _waits(entry.pid, int(thread), device):
                return waiter
    return None


def program_of(pid: int) -> str:
    """The name of a process's program, as far as the kernel keeps it (15 bytes)."""
    return _text(f"/proc/{pid}/comm").strip() or "a program"


def _waits(pid: int, thread: int, device: int) -> Waiter | None:
    folder = f"/proc/{pid}/task/{thread}"
    call = _text(f"{folder}/syscall")
    try:
        number, *arguments = (int(word, 0) for word in call.split()[:4])
        watched = [_is_terminal(pid, fd, device) for fd in _watched(pid, number, arguments)]
        if any(watched):
            status = _text(f"{folder}/status")
            switches = status[status.find("voluntary_ctxt_switches") :]
            return Waiter(pid, thread, call, switches, all(watched))
    except (ValueError, IndexError, OSError, struct.error):
        pass  # it runs just now, has ended, or cannot be looked at
    return None


def _watched(pid: int, number: int, arguments: list[int]) -> list[int]:
    """The descriptors that a call of these arguments waits to read from."""
    match _CALLS.get(number):
        case "read":
            return arguments[:1]
        case "poll":
            size = min(arguments[1], _MAX_FDS)
            entries = struct.iter_unpack("<ihh", _memory(pid, arguments[0], size * 8))
            return [fd for fd, events, _ in entries if fd >= 0 and events & _READABLE]
        case "select":
            count = min(arguments[0], _MAX_FDS)
            if not arguments[1]:
                return []
            # Whole machine words, least significant bit first: on these machines the same as bytes in order.
            bits = int.from_bytes(_memory(pid, arguments[1], (count + 63) // 64 * 8), "little")
            return [fd for fd in range(count) if bits >> fd & 1]
        case "epoll":
            return _epoll_set(pid, arguments[0])
        case _:
            return []


def _epoll_set(pid: int, fd: int) -> list[int]:
    """Lines of fdinfo are `tfd: 0 events: 19 data: ...`, the events in hexadecimal."""
    words = (line.split() for line in _text(f"/proc/{pid}/fdinfo/{fd}").splitlines())
    return [int(word[1]) for word in words if word[:1] == ["tfd:"] and int(word[3], 16) & _READABLE]


def _is_terminal(pid: int, fd: int, device: int) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev in (device, _DEV_TTY)


def _memory(pid: int, address: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, address)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
