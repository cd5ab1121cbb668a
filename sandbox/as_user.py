"""Keeps root's powers out of a sandbox that root starts.

To the host's kernel a program started by root is root, whatever namespace it is in: limits on processes do
not count for it, and a mistake in the sandbox is a mistake with root's powers. So all of it runs as a user
that nobody is, to whom what it needs is shown (`idmap.py`).
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.idmap import STAGE, mount_namespace
from pilotfish.sandbox.pieces import need

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

    def command(self, user: int, argv: Sequence[str]) -> tuple[list[str], int]:
        """`argv`, run by `user`, and a descriptor to keep open until it runs, which it is not to inherit.

        Raises `SandboxUnavailable`.
        """
        enter = need("nsenter", "for a sandbox that root starts", "util-linux")
        mounts = mount_namespace(self._found, user)
        # Not /proc/self, which would be a descriptor that it inherits.
        place = f"/proc/{Path('/proc/self').readlink()}/fd/{mounts}"
        return [enter, f"--mount={place}", f"--setgid={user}", f"--setuid={user}", "--", *argv], mounts


# What everybody may read where it lies.
_COMMON = ("/usr", "/etc", "/proc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/var/cache")


def bwrap_as(user: int, argv: Sequence[str]) -> tuple[list[str], int]:
    """A bubblewrap command, run by `user`, and a descriptor as `Shares.command` gives it.

    What it binds is shared with that user.
    """
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
