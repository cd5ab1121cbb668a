"""Keeps root's powers out of a sandbox that root starts: the trusted side of `drop.py`."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from pilotfish.sandbox.drop import STAGE
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.pieces import find_python, script_argv

DROP_SCRIPT = Path(__file__).with_name("drop.py")

_USERS, _SMALL_USERS = range(2_000_000_000, 2_100_000_000), range(61_200, 65_200)
"""Where user ids of sandboxes come from; the second where the first do not exist (a small container)."""


def is_real_root() -> bool:
    """Whether this process is root to the kernel of the host, not just to a user namespace."""
    return os.geteuid() == 0 and any(inner == outer == 0 for inner, outer, _ in _id_ranges())


def user_for(sandbox_id: str) -> int:
    """A user id that nobody has, different for each sandbox as far as that can be."""
    known = max(first + count for first, _, count in _id_ranges())
    users = _USERS if known >= _USERS.stop else _SMALL_USERS
    start = int(sandbox_id, 16)
    for attempt in range(len(users)):
        user = users[(start + attempt) % len(users)]
        try:
            pwd.getpwuid(user)
        except KeyError:
            return user
    raise SandboxError(f"every user id from {users.start} to {users.stop} has a name, remove one.")


def _id_ranges() -> list[tuple[int, int, int]]:
    text = Path("/proc/self/uid_map").read_text()
    return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in text.splitlines())]


class Shares:
    """The files and folders that the user without powers gets to see, and where."""

    def __init__(self) -> None:
        self._found: dict[str, bool] = {}

    def add(self, source: str, writable: bool) -> str:
        """Share something; returns the path that it will have."""
        self._found[source] = self._found.get(source, False) or writable
        return f"{STAGE}/{list(self._found).index(source)}"

    def command(self, user: int, argv: Sequence[str]) -> list[str]:
        """`argv`, run by `user`."""
        shares = [f"{'rw' if writable else 'ro'}:{source}" for source, writable in self._found.items()]
        return script_argv(find_python()[0], str(DROP_SCRIPT), str(user), *shares, "--", *argv)


# What everybody may read where it lies.
_COMMON = ("/usr", "/etc", "/proc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/var/cache")


def bwrap_as(user: int, argv: Sequence[str]) -> list[str]:
    """A bubblewrap command, run by `user`; what it binds is shared with that user."""
    shares = Shares()
    lowered = list(argv)
    if not _is_common(argv[0]):
        lowered[0] = shares.add(argv[0], False)
    for at, word in enumerate(argv):
        if word in ("--bind", "--ro-bind") and not _is_common(argv[at + 1]):
            lowered[at + 1] = shares.add(argv[at + 1], word == "--bind")
        elif word == "--":
            break
    return shares.command(user, lowered)


def _is_common(path: str) -> bool:
    return path in _COMMON or path.startswith(tuple(f"{place}/" for place in _COMMON))
