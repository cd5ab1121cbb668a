"""What the tests look at on the host: processes and descriptors."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def process_tree(root: int) -> set[tuple[int, str]]:
    """Living descendants of a process, as (pid, start time): a number that is used again is another one."""
    parents: dict[int, int] = {}
    starts: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (found := _stat(int(folder.name))):
            parents[int(folder.name)], starts[int(folder.name)] = found
    tree, fresh = set(), {root}
    while fresh:
        tree |= fresh
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - tree
    return {(pid, starts[pid]) for pid in tree - {root} if pid in starts}


def alive(processes: set[tuple[int, str]]) -> list[str]:
    """The command lines of those that still live."""
    return [line for pid, start in processes if (line := _command_line(pid, start)) is not None]


def _command_line(pid: int, start: str) -> str | None:
    """The command line of a process, None when it is dead: before the look, or between one file and the
    next.

    One that has none has given its memory back and is about to be dead, or is just becoming another program:
    which of the two shows soon.
    """
    until = time.monotonic() + 5
    while True:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        found = _stat(pid)
        if found is None or found[1] != start:
            return None
        if line or time.monotonic() > until:
            return line.replace(b"\0", b" ").decode("utf-8", "replace")
        time.sleep(0.001)


def _stat(pid: int) -> tuple[int, str] | None:
    """Parent and start time of a process; None when it is dead or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), fields[19])


def open_fds() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@contextlib.contextmanager
def small_disk(where: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    folder = where / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "small", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
