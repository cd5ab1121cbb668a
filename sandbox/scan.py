"""What lies in a workspace: a tree of entries, with their content put into a store or only named.

Programs inside may change anything at any moment, so each folder is opened relative to its parent without
following links, and a file that changed while it was read is read again. A file is not read when it is the
one that was read before: same inode, size and times, and old enough then that no later write can have them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pilotfish.sandbox.entries import EMPTY, Entry, Kind, Node, encoded
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.objects import Objects, digest_of, digest_of_file
from pilotfish.sandbox.parts import BIG, data_bytes
from pilotfish.sandbox.trees import FILE, FOLDER, open_anyway

_TRIES = 4
# What comes of a name that was removed or became something else since it was listed.
_GONE = frozenset((errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EINVAL))
_TICK_NS = 20_000_000
"""Two writes this far apart never have the same time stamp; kernels count in ticks of at most 10 ms."""

_SHUT = "cannot be read"
ELSEWHERE = "on another file system"


@dataclass(frozen=True)
class Bounds:
    """What is kept at most, in bytes without the holes of big files. store_bytes: all of a store together."""

    store_bytes: int = 4 << 30
    file_bytes: int = 256 << 20
    entries: int = 200_000
    depth: int = 200


@dataclass
class Scan:
    """One look at a workspace.

    root: an open descriptor of it. objects: where content goes; None names it only. goes_on: called often;
    raises to break off.
    """

    root: int
    objects: Objects | None
    bounds: Bounds
    goes_on: Callable[[], None]
    _entries: int = 0
    _bytes: int = 0
    _device: int = field(init=False)

    def __post_init__(self) -> None:
        self._device = os.fstat(self.root).st_dev

    def run(self, before: Node) -> Node:
        """The tree as it is; `before` is what is known of it. Raises `SandboxError` beyond the bounds."""
        if before is EMPTY and self.objects is not None:
            self._weigh(self.root, 0)
            self._entries = self._bytes = 0
        return self._folder(self.root, before, 0)

    def _weigh(self, folder: int, depth: int) -> None:
        """Find out before all is read that it is too much."""
        self.goes_on()
        below = []
        with os.scandir(folder) as found:
            for item in found:
                with contextlib.suppress(FileNotFoundError):
                    look = item.stat(follow_symlinks=False)
                    if stat.S_ISDIR(look.st_mode) and look.st_dev == self._device:
                        below.append(item.name)
                    elif stat.S_ISREG(look.st_mode):
                        size = look.st_size if look.st_size <= BIG else self._look(folder, item.name)
                        self._count_bytes(size if size <= self.bounds.file_bytes else 0)
                    self._count_entry()
        for name in below if depth < self.bounds.depth else ():
            try:
                inner = os.open(name, FOLDER, dir_fd=folder)
            except OSError:
                continue
            try:
                self._weigh(inner, depth + 1)
            finally:
                os.close(inner)

    def _look(self, folder: int, name: str) -> int:
        """How much there is to read of a big file; 0 if none can be."""
        try:
            source = os.open(name, FILE, dir_fd=folder)
        except OSError:
            return 0
        try:
            return data_bytes(source, os.fstat(source).st_size, self.bounds.file_bytes)
        finally:
            os.close(source)

    def _count_entry(self) -> None:
        self._entries += 1
        if self._entries > self.bounds.entries:
            raise SandboxError(
                f"the workspace has more than {self.bounds.entries} files, too many to keep: work in a "
                "smaller folder."
            )

    def _count_bytes(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self.bounds.store_bytes:
            raise SandboxError(
                f"the workspace holds more than the {self.bounds.store_bytes >> 20} MiB that are kept of it: "
                "work in a smaller folder."
            )

    def _folder(self, folder: int, before: Node, depth: int) -> Node:
        self.goes_on()
        known = before.entries
        entries: dict[str, Entry] = {}
        below: list[tuple[str, os.stat_result]] = []
        kept = 0
        with os.scandir(folder) as found:
            for item in found:
                try:
                    look = item.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed since it was listed
                    continue
                name = item.name
                entry = known.get(name)
                if (
                    entry is not None
                    and entry.changed_ns == look.st_ctime_ns
                    and entry.inode == look.st_ino
                    and entry.modified_ns == look.st_mtime_ns
                    and entry.size == look.st_size
                ):
                    entries[name] = entry
                    kept += 1
                elif stat.S_ISDIR(look.st_mode):
                    below.append((name, look))
                elif (entry := self._entry(folder, name, look)) is not None:
                    entries[name] = entry
        self._entries += len(entries) + len(below)
        if self._entries > self.bounds.entries:
            self._count_entry()
        folders: dict[str, Node] = {}
        for name, look in below:
            self._below(folder, name, look, before, depth, entries, folders)
        kept += sum(name in entries and entries[name] is known.get(name) for name, _ in below)
        if before.id and kept == len(entries) == len(known):
            return before
        data = encoded(entries)
        return Node(entries, folders, self.objects.put(data) if self.objects else digest_of(data))

    def _below(
        self,
        parent: int,
        name: str,
        look: os.stat_result,
        before: Node,
        depth: int,
        entries: dict[str, Entry],
        folders: dict[str, Node],
    ) -> None:
        if look.st_dev != self._device or depth >= self.bounds.depth:
            why = "nested too deep" if look.st_dev == self._device else ELSEWHERE
            entries[name] = self._made(name, "other", look, why)
            return
        try:
            inner = open_anyway(parent, name, FOLDER)
        except PermissionError:
            entries[name] = self._made(name, "other", look, _SHUT)
            return
        except OSError as error:  # the next snapshot has what it is now
            if error.errno not in _GONE:
                raise
            return
        try:
            with _entered(inner):
                node = self._folder(inner, before.folders.get(name, EMPTY), depth + 1)
            look = os.fstat(inner)
        except _Shut:
            entries[name] = self._made(name, "other", look, _SHUT)
            return
        finally:
            os.close(inner)
        folders[name] = node
        made = Entry(
            name,
            "folder",
            stat.S_IMODE(look.st_mode),
            look.st_uid,
            look.st_gid,
            look.st_mtime_ns,
            0,
            0,
            0,
            node.id,
        )
        entry = before.entries.get(name)
        entries[name] = entry if entry == made else made

    def _entry(self, parent: int, name: str, look: os.stat_result) -> Entry | None:
        """What is not a folder; None when it is gone."""
        if stat.S_ISREG(look.st_mode):
            return self._file(parent, name, look)
        if stat.S_ISLNK(look.st_mode):
            try:
                return self._made(name, "link", look, os.readlink(name, dir_fd=parent))
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                return None
        if stat.S_ISFIFO(look.st_mode):
            return self._made(name, "pipe", look, "")
        return self._made(name, "other", look, "a socket or device")

    def _file(self, parent: int, name: str, look: os.stat_result) -> Entry | None:
        try:
            source = open_anyway(parent, name, FILE)
        except PermissionError:
            return self._made(name, "other", look, _SHUT)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return None
        try:
            for _ in range(_TRIES):
                began_ns = time.time_ns()
                look = os.fstat(source)
                if not stat.S_ISREG(look.st_mode):
                    return None
                limit = self.bounds.file_bytes
                if (size := data_bytes(source, look.st_size, limit)) > limit:
                    return self._made(name, "other", look, f"more than {limit >> 20} MiB")
                if self.objects is None:
                    data = digest_of_file(source, look.st_size, limit, self.goes_on)
                else:
                    self._count_bytes(size)
                    data = self.objects.put_file(source, look.st_size, limit, self.goes_on)
                after = os.fstat(source)
                if (after.st_ctime_ns, after.st_size) == (look.st_ctime_ns, look.st_size):
                    settled = look.st_ctime_ns + _TICK_NS < began_ns
                    return self._made(name, _file_kind(look), look, data, settled)
            return self._made(name, _file_kind(look), look, data, False)
        finally:
            os.close(source)

    @staticmethod
    def _made(name: str, kind: Kind, look: os.stat_result, data: str, settled: bool = True) -> Entry:
        return Entry(
            name,
            kind,
            stat.S_IMODE(look.st_mode),
            look.st_uid,
            look.st_gid,
            look.st_mtime_ns,
            look.st_size,
            look.st_ino,
            look.st_ctime_ns if settled else 0,
            data,
        )


class _Shut(Exception):
    """A folder that is not ours, and that we may not look into."""


@contextlib.contextmanager
def _entered(folder: int) -> Iterator[None]:
    """Look into a folder of ours whose mode forbids it; it has its mode back afterwards."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & 0o500 == 0o500 or os.geteuid() == 0:
        yield
        return
    try:
        os.fchmod(folder, mode | 0o500)
    except PermissionError:
        raise _Shut from None
    try:
        yield
    finally:
        os.fchmod(folder, mode)


def _file_kind(look: os.stat_result) -> Kind:
    return "linked" if look.st_nlink > 1 else "file"
