# ruff: noqa: PTH103, PTH208
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
import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pilotfish.sandbox.differences import Diff, compare
from pilotfish.sandbox.entries import EMPTY, Entry, Node, entries_of, loaded, names_in
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.objects import Damaged, Objects
from pilotfish.sandbox.putback import PutBack
from pilotfish.sandbox.scan import Bounds, Scan

GoesOn = Callable[[], None]
"""Called often during long work; raises to break it off, which leaves whole snapshots only."""


def _always() -> None:
    pass


@dataclass(frozen=True)
class Snapshot:
    """One snapshot. time: Unix seconds. of: the folder. files, bytes: what it holds.

    others: how many things could not be kept. dropped: how many older snapshots had to go for it.
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


@dataclass(frozen=True)
class Restored:
    """changed: how many files and folders were written or removed. problems: what was not brought back."""

    changed: int
    problems: tuple[str, ...] = ()


class Snapshots:
    """The snapshots of one folder in one store. Raises `SandboxError`, one sentence each.

    A store may hold snapshots of other folders too. It is outside the workspace: what programs inside could
    write would be worth nothing.
    """

    def __init__(self, workspace: Path, store: Path, bounds: Bounds | None = None) -> None:
        self._workspace = workspace.resolve()
        self._store = store.absolute()
        self._bounds = bounds or Bounds()
        self._objects: Objects | None = None
        self._known: Node | None = None
        self._stamp = ""
        if self._store.resolve().is_relative_to(self._workspace):
            raise SandboxError(
                f"snapshots would be kept in {str(store)!r}, where programs of the workspace could change "
                "them: choose a folder outside of it."
            )

    def take(self, label: str = "", goes_on: GoesOn = _always) -> str:
        """Keep what is in the workspace now; returns the id. Reads only what changed since the last one."""
        with self._locked() as objects, self._open_workspace() as root:
            objects.forget_added()
            try:
                tree = Scan(root, objects, self._bounds, goes_on).run(self._newest(objects))
                found = os.fstat(root)
                made = Snapshot(
                    str(max(self._numbers(), default=0) + 1),
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
                )
                self._record(made)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    objects.take_back()
                if isinstance(error, OSError):
                    raise SandboxError(_trouble("the snapshot could not be taken", error)) from error
                if isinstance(error, RecursionError | MemoryError):
                    message = "the snapshot could not be taken (the workspace is too big for this process)."
                    raise SandboxError(message) from error
                raise
            self._known = tree
            if objects.size > self._bounds.store_bytes:
                self._record(replace(made, dropped=self._make_room(objects)))
            return made.id

    def restore(self, snapshot: str, goes_on: GoesOn = _always) -> Restored:
        """Make the workspace what it was. What is already so is not touched, nor the folder itself.

        When it cannot be finished, what was done stays and the snapshot too, so that it can be tried again.
        """
        wanted = self.find(snapshot)
        done = self.become(self.tree(snapshot), goes_on)
        with self._open_workspace() as root:
            os.fchmod(root, wanted.mode)
            os.utime(root, ns=(wanted.modified_ns, wanted.modified_ns))
        return done

    def become(self, want: Node, goes_on: GoesOn = _always) -> Restored:
        """Make the workspace any tree whose content is in the store."""
        with self._locked() as objects, self._open_workspace() as root:
            try:
                have = Scan(root, None, self._bounds, goes_on).run(self._newest(objects))
                work = PutBack(root, objects, goes_on)
                os.fchmod(root, 0o700 | stat.S_IMODE(os.fstat(root).st_mode))
                work.run(want, have)
            except OSError as error:
                raise SandboxError(_trouble("not all files could be written", error)) from error
        return Restored(work.changed, tuple(work.problems))

    def tree(self, snapshot: str) -> Node:
        """What a snapshot holds."""
        wanted = self.find(snapshot)
        with self._locked() as objects:
            try:
                return loaded(objects, wanted.tree, self._newest(objects))
            except Damaged as error:
                raise SandboxError(
                    f"snapshot {snapshot!r} is damaged ({error}), nothing was changed: choose another."
                ) from error

    def diff(self, before: str, after: str | None = None, *, text: bool = False) -> Diff:
        """What changed from one snapshot to another, or to now. text: with the lines that changed."""
        old, new, root = self.tree(before), None if after is None else self.tree(after), None
        with self._locked() as objects, contextlib.ExitStack() as stack:
            try:
                if new is None:
                    root = stack.enter_context(self._open_workspace())
                    new = Scan(root, None, self._bounds, _always).run(self._newest(objects))
                return compare(old, new, objects if text else None, root)
            except Damaged as error:
                raise SandboxError(f"a snapshot is damaged ({error}): compare others.") from error
            except OSError as error:
                raise SandboxError(_trouble("the snapshots could not be compared", error)) from error

    def all(self) -> list[Snapshot]:
        """All snapshots of the store, oldest first."""
        return [self.find(str(number)) for number in sorted(self._numbers())]

    def find(self, snapshot: str) -> Snapshot:
        """A snapshot by its id."""
        try:
            if not (snapshot.isascii() and snapshot.isdigit()):
                raise FileNotFoundError
            return Snapshot(**json.loads(self._record_of(snapshot).read_bytes()))
        except FileNotFoundError:
            known = sorted(self._numbers())
            mend = f"there are {known[0]} to {known[-1]}" if known else "take one first"
            raise SandboxError(f"there is no snapshot {snapshot!r}, {mend}.") from None
        except (ValueError, TypeError):
            raise SandboxError(f"the record of snapshot {snapshot!r} is damaged, choose another.") from None

    def entries(self, snapshot: str) -> dict[str, Entry]:
        """Everything in a snapshot, by path."""
        return dict(entries_of(self.tree(snapshot)))

    def remove(self, snapshot: str) -> None:
        """Forget one snapshot, and what only it was made of."""
        self.find(snapshot)
        with self._locked() as objects:
            self._record_of(snapshot).unlink(missing_ok=True)
            self._sweep(objects)

    def clear(self) -> None:
        """Forget all snapshots."""
        with self._locked() as objects:
            for number in self._numbers():
                self._record_of(str(number)).unlink(missing_ok=True)
            self._sweep(objects)

    def _make_room(self, objects: Objects) -> int:
        """Drop snapshots, the oldest first, until a tenth is free; the first and the last of all stay.

        Raises `SandboxError`, and keeps the first alone, when these two do not fit.
        """
        dropped = 0
        numbers = sorted(self._numbers())
        while objects.size > self._bounds.store_bytes * 0.9 and len(numbers) > 2:
            # A quarter at a time: what is not needed any more is found out for all at once.
            going = numbers[1:-1][: max(1, len(numbers) // 4)]
            for number in going:
                self._record_of(str(number)).unlink()
            numbers = [number for number in numbers if number not in going]
            dropped += len(going)
            self._sweep(objects)
        if objects.size > self._bounds.store_bytes and len(numbers) == 2:
            self._record_of(str(numbers[1])).unlink()
            self._sweep(objects)
            self._known = None
            raise SandboxError(
                "the snapshot could not be taken (with the first one it is more than the "
                f"{self._bounds.store_bytes >> 20} MiB that are kept), remove what is not needed."
            )
        return dropped

    def _sweep(self, objects: Objects) -> None:
        """Remove the objects that no snapshot needs."""
        needed: set[str] = set()
        for number in self._numbers():
            with contextlib.suppress(Damaged, SandboxError):
                tree = self.find(str(number)).tree
                if tree not in needed:
                    needed.update(names_in(loaded(objects, tree)))
        self._stamp = secrets.token_hex(8)
        (self._store / "stamp").write_text(self._stamp)
        objects.keep_only(needed)

    def _newest(self, objects: Objects) -> Node:
        """What is known of the workspace without reading it."""
        if self._known is None:
            self._known = EMPTY
            for number in sorted(self._numbers(), reverse=True):
                with contextlib.suppress(Damaged, SandboxError):
                    found = self.find(str(number))
                    if found.of == str(self._workspace):
                        self._known = loaded(objects, found.tree)
                        break
        return self._known

    def _numbers(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._store / "records") if name.isdigit()]
        except FileNotFoundError:
            return []

    def _record_of(self, snapshot: str) -> Path:
        return self._store / "records" / snapshot

    def _record(self, made: Snapshot) -> None:
        draft = self._store / "records" / "draft"
        draft.write_text(json.dumps(asdict(made)))
        draft.rename(self._record_of(made.id))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Objects]:
        """The store, for this process alone."""
        try:
            os.makedirs(self._store / "records", mode=0o700, exist_ok=True)
            fd = os.open(self._store / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SandboxError(_trouble(f"snapshots cannot be kept in {self._store}", error)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            stamp = ""
            with contextlib.suppress(FileNotFoundError):
                stamp = (self._store / "stamp").read_text()
            if self._objects is None or stamp != self._stamp:
                self._objects, self._known, self._stamp = Objects(self._store / "objects"), None, stamp
            yield self._objects
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _open_workspace(self) -> Iterator[int]:
        try:
            root = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxError(_trouble(f"the folder {self._workspace} cannot be read", error)) from error
        try:
            yield root
        finally:
            os.close(root)


def _trouble(what: str, error: OSError) -> str:
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
