# ruff: noqa: PTH116, PTH208
"""Stops programs so that they cannot go on by themselves. Loaded by PID 1 at its first `freeze`.

A program that SIGSTOP holds goes on when a SIGCONT comes, and it can have the kernel send it one later: by a
timer, at the end of another program, or when something can be read. One that a debugger holds goes on only
when that lets it, so PID 1 becomes the debugger of each thread.
"""

from __future__ import annotations

import os

from . import calls, processes

_SEIZE, _INTERRUPT = 0x4206, 0x4207
_SIGKILL = 9

_libc = calls.Library()


def hold_below(root: int) -> None:
    """Stop every descendant of `root` for good. A program that forbids it is killed."""
    held: set[int] = set()
    while True:
        processes.stop_below(root)
        found = processes.below(root, processes.processes())
        fresh = [(pid, thread) for pid in found for thread in _threads(pid) if thread not in held]
        if not fresh:
            return
        for pid, thread in fresh:
            held.add(thread)
            if _libc.ptrace(_SEIZE, thread, 0, 0) == 0:
                _libc.ptrace(_INTERRUPT, thread, 0, 0)
            elif _forbids_it(pid):
                processes.send_signal(pid, _SIGKILL)


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _forbids_it(pid: int) -> bool:
    """Whether a program has made itself nobody's to look into (PR_SET_DUMPABLE), as one that another of its
    kind debugs, and a kernel that permits no debuggers, have not.
    """
    try:
        return os.stat(f"/proc/{pid}/fd").st_uid != os.getuid()
    except OSError:
        return False
