# ruff: noqa: PTH123, SIM105
"""Processes as /proc lists them, and the end of everything below one of them.

Loaded by PID 1 and by each session of the shell, inside, and by the trusted side for what is below a PID 1
that does not react. Every sandbox waits for it, so it imports next to nothing.
"""

from __future__ import annotations

import posix
import time

_SIGKILL, _SIGSTOP = 9, 19  # the same on x86-64 and aarch64
_PAUSE_S = 0.002


class Entry:
    """One living process: parent, process group, state as in /proc, start time and processor time used, both
    in clock ticks.
    """

    __slots__ = ("group", "parent", "pid", "start", "state", "ticks")

    def __init__(self, pid: int, parent: int, group: int, state: str, start: int, ticks: int) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.state = state
        self.start = start
        self.ticks = ticks

    @property
    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP holds it; one that a debugger holds is not meant."""
        return self.state == "T"


Table = dict[int, Entry]
Known = frozenset[tuple[int, int]]
"""Processes by number and start time: a number may be used again."""


def processes() -> Table:
    """Every living process by its number; zombies are left out, they are dead already."""
    found = {}
    for name in posix.listdir("/proc"):
        if name.isdigit() and (entry := look_at(int(name))):
            found[entry.pid] = entry
    return found


def look_at(pid: int) -> Entry | None:
    """One process, None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command name is in parentheses and may hold anything, so read after the last one.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0].decode()
    if state in "ZX":
        return None
    ticks = int(fields[11]) + int(fields[12])
    return Entry(pid, int(fields[1]), int(fields[2]), state, int(fields[19]), ticks)


def children(pid: int) -> set[int] | None:
    """The children of a process with one thread; None where the kernel does not list them."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return {int(word) for word in file.read().split()}
    except OSError:
        return None


def below(root: int, table: Table, apart: Known = frozenset()) -> set[int]:
    """Descendants of a process; those of `apart` are left out with all that is below them."""
    children: dict[int, list[int]] = {}
    for entry in table.values():
        if (entry.pid, entry.start) not in apart:
            children.setdefault(entry.parent, []).append(entry.pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        fresh = set(children.get(waiting.pop(), ())) - found
        found |= fresh
        waiting += fresh
    return found


def end_below(root: int, seconds: float, *, apart: Known = frozenset(), keep: int = 0) -> bool:
    """Kill every descendant of `root` but those of `apart` with what is below them, and the process `keep`.

    All are stopped before any is killed, so that none can fork meanwhile. Tried for so many seconds; returns
    whether nothing is left.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        stopped = stop_below(root, apart=apart, keep=keep)
        if not stopped:
            return True
        for pid in stopped:
            send_signal(pid, _SIGKILL)
        time.sleep(_PAUSE_S)
    return False


def stop_below(root: int, *, apart: Known = frozenset(), keep: int = 0) -> set[int]:
    """Stop every descendant of `root`, and those that they start meanwhile; `apart` and `keep` as below."""
    stopped: set[int] = set()
    while fresh := below(root, processes(), apart) - stopped - {keep}:
        for pid in fresh:
            send_signal(pid, _SIGSTOP)
        stopped |= fresh
    return stopped


def send_signal(pid: int, number: int) -> None:
    """Send a signal, if the process is still there and may be signalled."""
    try:
        posix.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
