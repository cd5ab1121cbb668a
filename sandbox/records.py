# ruff: noqa: PTH208
"""What a store says of its snapshots: one small file each, named by the snapshot's number."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pilotfish.sandbox.errors import SandboxError


@dataclass(frozen=True)
class Snapshot:
    """One snapshot. time: Unix seconds. of: the folder. files, bytes: what it holds.

    others: how many things could not be kept, and left_out: the first of them, with the reason. dropped: how
    many older snapshots had to go for it.
    """

    id: str
    label: str
    time: float
    of: str
    files: int
    bytes: int
    others: int = 0
    dropped: int = 0
    tree: str = ""
    mode: int = 0o755
    modified_ns: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """What could not be kept, in words; '' for nothing."""
        more = self.others - len(self.left_out)
        return ", ".join(self.left_out) + (f" and {more} more" if more > 0 else "")


class Records:
    """The records in a folder. Files there that are none are left alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def numbers(self) -> list[int]:
        """The numbers of all snapshots, oldest first."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SandboxError(trouble(f"the snapshots in {self._folder} cannot be read", error)) from error
        return sorted(int(name) for name in names if _is_number(name))

    def find(self, snapshot: str) -> Snapshot:
        """A snapshot by its id. Raises `SandboxError`."""
        self.check(snapshot)
        try:
            return _read(json.loads((self._folder / snapshot).read_bytes()), snapshot)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            why = f" ({error.strerror})" if isinstance(error, OSError) else ""
            raise SandboxError(
                f"the record of snapshot {snapshot!r} is damaged{why}, choose another."
            ) from None

    def check(self, snapshot: str) -> None:
        """Raise `SandboxError` if there is no record of this id, be it damaged."""
        if not _is_number(snapshot) or not os.path.lexists(self._folder / snapshot):
            known = self.numbers()
            mend = f"there are {known[0]} to {known[-1]}" if known else "take one first"
            raise SandboxError(f"there is no snapshot {snapshot!r}, {mend}.")

    def write(self, made: Snapshot) -> None:
        """Write a record, anew if it is there."""
        draft = self._folder / "draft"
        draft.write_text(json.dumps(asdict(made)))
        draft.rename(self._folder / made.id)

    def remove(self, snapshot: str) -> None:
        """Remove a record."""
        (self._folder / snapshot).unlink(missing_ok=True)


def trouble(what: str, error: OSError) -> str:
    """A sentence about what failed and why."""
    mends = {
        errno.ENOSPC: "free some space, earlier snapshots are kept",
        errno.EDQUOT: "free some space, earlier snapshots are kept",
        errno.EMFILE: "raise the limit on open files",
        errno.EACCES: "check the permissions",
        errno.EPERM: "check the permissions",
        errno.EROFS: "choose a place that can be written",
        errno.ENOENT: "check the path",
        errno.EBUSY: "end what runs there and try again",
    }
    return f"{what} ({error.strerror}): {mends.get(error.errno or 0, 'try again')}."


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and not name.startswith("0")


def _read(fields: Any, name: str) -> Snapshot:
    """Raises ValueError or TypeError for what was not written by `Records.write`."""
    if not isinstance(fields, dict):
        raise TypeError(name)
    found = Snapshot(**fields | {"left_out": tuple(fields.get("left_out", ()))})
    texts = (found.id, found.label, found.of, found.tree, *found.left_out)
    numbers = (found.files, found.bytes, found.others, found.dropped, found.mode, found.modified_ns)
    if (
        found.id != name
        or not all(isinstance(text, str) for text in texts)
        or not all(isinstance(number, int) for number in numbers)
        or not isinstance(found.time, int | float)
    ):
        raise ValueError(name)
    return found
