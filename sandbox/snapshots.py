# ruff: noqa: PTH103
"""Snapshots of a workspace: taken, listed, compared, gone back to.

    STORE/records/N     one snapshot each, by its number
    STORE/objects/      what they are made of; equal content is there once
    STORE/lock, stamp   one process at a time; a word that changes when objects were removed

Everything that lies in the workspace is kept: files that git would ignore, repositories and what is in their
`.git`, empty folders, modes, times and hard links. Not kept are sockets, devices, other file systems mounted
there, and files that are too big; they are neither made nor replaced by a restore. No program is run and no
configuration of the workspace is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from pilotfish.sandbox.differences import Diff, compare
from pilotfish.sandbox.entries import (
    EMPTY,
    Entry,
    Node,
    entries_of,
    loaded,
    names_in,
    others_of,
    without_lost,
)
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.objects import Damaged, Objects, Unreadable
from pilotfish.sandbox.putback import Did, PutBack
from pilotfish.sandbox.records import Records, Snapshot, trouble
from pilotfish.sandbox.scan import Bounds, Scan

GoesOn = Callable[[], None]
"""Called often during long work; raises to break it off, which leaves whole snapshots only."""
_LEFT_OUT, _NAME = 5, 100
"""How many things that could not be kept are named, and with how many characters of their path."""


def _always() -> None:
    pass


@dataclass(frozen=True)
class Restored:
    """changed: how many files and folders were written or removed, and done: the first of them, and how.

    problems: what was not brought back, as sentences without their full stop; refused: how many of these
    would go another time.
    """

    changed: int
    problems: tuple[str, ...] = ()
    done: tuple[tuple[str, Did], ...] = ()
    refused: int = 0


class Snapshots:
    """The snapshots of one folder in one store. Raises `SandboxError`, one sentence each.

    A store may hold snapshots of other folders too. It is outside the workspace: what programs inside could
    write would be worth nothing.
    """

    def __init__(self, workspace: Path, store: Path, bounds: Bounds | None = None) -> None:
        self._workspace = workspace.resolve()
        self._store = store.absolute()
        self._bounds = bounds or Bounds()
        self._records = Records(self._store / "records")
        self._objects: Objects | None = None
        self._known: Node | None = None
        self._stamp = b""
        if self._store.resolve().is_relative_to(self._workspace):
            raise SandboxError(
                f"snapshots would be kept in {str(store)!r}, where programs of the workspace could change "
                "them: choose a folder outside of it."
            )

    def take(self, label: str = "", goes_on: GoesOn = _always, *, needed: Collection[str] = ()) -> str:
        """Keep what is in the workspace now; returns the id. Reads only what changed since the last one.

        needed: snapshots that are not to be dropped for it.
        """
        with self._locked("the snapshot could not be taken") as objects, self._open_workspace() as root:
            objects.forget_added()
            try:
                tree = Scan(root, objects, self._bounds, goes_on).run(self._newest(objects))
                found = os.fstat(root)
                left_out = (f"{path[-_NAME:]} ({entry.data})" for path, entry in others_of(tree))
                made = Snapshot(
                    str(max(self._records.numbers(), default=0) + 1),
                    label,
                    round(time.time(), 3),
                    str(self._workspace),
                    tree.files,
                    tree.size,
                    tree.others,
                    0,
                    tree.id,
                    stat.S_IMODE(found.st_mode) & 0o1777,
                    found.st_mtime_ns,
                    tuple(islice(left_out, _LEFT_OUT)),
                )
                self._records.write(made)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    objects.take_back()
                if isinstance(error, RecursionError | MemoryError):
                    message = "the snapshot could not be taken (the workspace is too big for this process)."
                    raise SandboxError(message) from error
                raise
            self._known = tree
            if objects.size > self._bounds.store_bytes:
                self._records.write(replace(made, dropped=self._make_room(objects, made.id, needed)))
            return made.id

    def restore(self, snapshot: str, goes_on: GoesOn = _always, *, since: str | None = None) -> Restored:
        """Make the workspace what it was. What is already so is not touched, nor the folder itself.

        since: a snapshot of what is there now; what was changed after it is left alone and named.
        When it cannot be finished, what was done stays and the snapshot too, so that it can be tried again.
        """
        wanted = self.find(snapshot)
        have = None if since is None else self.tree(since)
        return self.become(self.tree(snapshot), goes_on, have=have, root_like=wanted)

    def become(
        self,
        want: Node,
        goes_on: GoesOn = _always,
        *,
        have: Node | None = None,
        root_like: Snapshot | None = None,
    ) -> Restored:
        """Make the workspace any tree whose content is in the store.

        have: what was found there; what was changed after that is left alone and named. root_like: the
        snapshot whose folder's own mode and time are to be had too.
        """
        with self._locked("not all files could be written") as objects, self._open_workspace() as root:
            there = have or Scan(root, None, self._bounds, goes_on).run(self._newest(objects))
            work = PutBack(root, objects, goes_on, careful=have is not None)
            before = os.fstat(root)
            mode = before_mode = stat.S_IMODE(before.st_mode)
            if mode & 0o700 != 0o700:
                with contextlib.suppress(PermissionError):
                    os.fchmod(root, mode | 0o700)
            try:
                work.run(want, there)
                if root_like is not None:
                    mode = root_like.mode
            finally:
                if stat.S_IMODE(os.fstat(root).st_mode) != mode or mode != before_mode:
                    with contextlib.suppress(PermissionError):
                        os.fchmod(root, mode)
            if root_like is not None:
                with contextlib.suppress(PermissionError):  # another user's, who lets us write in it
                    os.utime(root, ns=(root_like.modified_ns, root_like.modified_ns))
        return Restored(work.changed, tuple(work.problems), tuple(work.done), work.refused)

    def tree(self, snapshot: str) -> Node:
        """What a snapshot holds."""
        wanted = self.find(snapshot)
        with self._locked("the snapshot cannot be read") as objects:
            try:
                return loaded(objects, wanted.tree, self._newest(objects))
            except Damaged as error:
                raise SandboxError(
                    f"snapshot {snapshot!r} is damaged ({error}), nothing was changed: choose another."
                ) from error

    def diff(self, before: str, after: str | None = None, *, text: bool = False) -> Diff:
        """What changed from one snapshot to another, or to now. text: with the lines that changed."""
        old, new, root = self.tree(before), None if after is None else self.tree(after), None
        with (
            self._locked("the snapshots could not be compared") as objects,
            contextlib.ExitStack() as stack,
        ):
            if new is None:
                root = stack.enter_context(self._open_workspace())
                new = Scan(root, None, self._bounds, _always).run(self._newest(objects))
            return compare(old, new, objects if text else None, root)

    def all(self) -> list[Snapshot]:
        """All snapshots of the store whose records can be read, oldest first."""
        found = []
        for number in self._records.numbers():
            with contextlib.suppress(SandboxError):
                found.append(self.find(str(number)))
        return found

    def damaged(self) -> list[str]:
        """A sentence on each snapshot whose record cannot be read."""
        said = []
        for number in self._records.numbers():
            try:
                self.find(str(number))
            except SandboxError as error:
                said.append(str(error))
        return said

    def find(self, snapshot: str) -> Snapshot:
        """A snapshot by its id."""
        return self._records.find(snapshot)

    def entries(self, snapshot: str) -> dict[str, Entry]:
        """Everything in a snapshot, by path."""
        return dict(entries_of(self.tree(snapshot)))

    def relabel(self, snapshot: str, label: str) -> None:
        """Give a snapshot another label."""
        with self._locked("the snapshot could not be marked"):
            self._records.write(replace(self.find(snapshot), label=label))

    def remove(self, *snapshots: str) -> None:
        """Forget snapshots, and what only they were made of."""
        for snapshot in snapshots:
            self._records.check(snapshot)
        with self._locked("the snapshot could not be removed") as objects:
            for snapshot in snapshots:
                self._records.remove(snapshot)
            self._sweep(objects)

    def clear(self) -> None:
        """Forget all snapshots."""
        with self._locked("the snapshots could not be removed") as objects:
            for number in self._records.numbers():
                self._records.remove(str(number))
            self._sweep(objects)

    def _make_room(self, objects: Objects, made: str, needed: Collection[str]) -> int:
        """Drop snapshots, the oldest first, until a tenth is free; returns how many.

        The first one, the one just `made` and those `needed` stay. If they do not fit, the one just made goes
        and none else. Raises `SandboxError` then.
        """
        numbers = [str(number) for number in self._records.numbers()]
        stay = {numbers[0], made, *needed}
        sizes = objects.sizes()
        if sum(sizes.get(name, 0) for name in self._needed(objects, stay)) > self._bounds.store_bytes:
            self._records.remove(made)
            self._sweep(objects)
            self._known = None
            raise SandboxError(
                "the snapshot could not be taken (with the first one it is more than the "
                f"{self._bounds.store_bytes >> 20} MiB that are kept), remove what is not needed."
            )
        going = [number for number in numbers if number not in stay]
        dropped = 0
        while objects.size > self._bounds.store_bytes * 0.9 and going:
            # A quarter at a time: what is not needed any more is found out for all at once.
            count = max(1, (len(going) + len(stay)) // 4)
            for number in going[:count]:
                self._records.remove(number)
                dropped += 1
            del going[:count]
            self._sweep(objects)
        return dropped

    def _needed(self, objects: Objects, snapshots: Collection[str]) -> set[str]:
        """The objects that snapshots are made of, as far as they can be told. Raises `Unreadable`."""
        names: set[str] = set()
        for snapshot in snapshots:
            with contextlib.suppress(SandboxError):
                names_in(objects, self.find(snapshot).tree, names)
        return names

    def _sweep(self, objects: Objects) -> None:
        """Remove the objects that no snapshot needs."""
        try:
            needed = self._needed(objects, [str(number) for number in self._records.numbers()])
        except Unreadable:  # what cannot be told to be needless stays
            return
        self._stamp = secrets.token_hex(8).encode()
        (self._store / "stamp").write_bytes(self._stamp)
        objects.keep_only(needed)

    def _newest(self, objects: Objects) -> Node:
        """What is known of the workspace without reading it, and in the store."""
        if self._known is None:
            self._known = EMPTY
            for number in reversed(self._records.numbers()):
                with contextlib.suppress(Damaged, SandboxError):
                    found = self.find(str(number))
                    if found.of == str(self._workspace):
                        self._known = without_lost(loaded(objects, found.tree), objects.sizes())
                        break
        return self._known

    @contextlib.contextmanager
    def _locked(self, failed: str) -> Iterator[Objects]:
        """The store, for this process alone. failed: how to say that what is done with it did not succeed."""
        try:
            os.makedirs(self._store / "records", mode=0o700, exist_ok=True)
            fd = os.open(self._store / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SandboxError(trouble(f"snapshots cannot be kept in {self._store}", error)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            stamp = b""
            with contextlib.suppress(FileNotFoundError):
                stamp = (self._store / "stamp").read_bytes()
            if self._objects is None or stamp != self._stamp:
                self._objects, self._known, self._stamp = Objects(self._store / "objects"), None, stamp
            yield self._objects
        except OSError as error:
            raise SandboxError(trouble(failed, error)) from error
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _open_workspace(self) -> Iterator[int]:
        try:
            root = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxError(trouble(f"the folder {self._workspace} cannot be read", error)) from error
        try:
            yield root
        finally:
            os.close(root)
