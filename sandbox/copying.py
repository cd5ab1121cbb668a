"""Copies a folder of the user's without changing anything of it.

No link is followed, no step uses a path of more than one name, and no file's mode or time is touched.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.parts import data_bytes
from pilotfish.sandbox.records import trouble
from pilotfish.sandbox.scan import Bounds
from pilotfish.sandbox.trees import FILE, FOLDER

_PIECE = 8 << 20


@dataclass
class Copied:
    """What a copy holds. missing: path and reason of what is not in it, in the order met."""

    files: int = 0
    bytes: int = 0
    missing: dict[str, str] = field(default_factory=dict)


def copy_folder(
    source: Path,
    target: Path,
    *,
    without: frozenset[str] = frozenset(),
    bounds: Bounds | None = None,
    goes_on: Callable[[], None] = lambda: None,
) -> Copied:
    """Make `target`, a new folder, what `source` is: files, links, empty folders, modes, times.

    without: paths that are left out. Left out too, and named in `missing`, are sockets, devices and pipes,
    what lies on another file system, what cannot be read, files that are too big, folders nested too deep.
    goes_on: called often; raises to break off. Raises `SandboxError` beyond the bounds and on a full disk;
    what was copied until then stays.
    """
    work = _Copy(bounds or Bounds(), without, goes_on)
    try:
        target.mkdir(mode=0o700, parents=True)
        above = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        into = os.open(target, FOLDER)
        try:
            work.device = os.fstat(above).st_dev
            work.folder(above, into, "", 0)
        finally:
            os.close(above)
            os.close(into)
    except OSError as error:
        raise SandboxError(trouble(f"the folder {str(source)!r} could not be copied", error)) from error
    return work.copied


class _Copy:
    def __init__(self, bounds: Bounds, without: frozenset[str], goes_on: Callable[[], None]) -> None:
        self._bounds = bounds
        self._without = without
        self._goes_on = goes_on
        self._entries = 0
        self.device = 0
        self.copied = Copied()

    def folder(self, source: int, target: int, above: str, depth: int) -> None:
        self._goes_on()
        with os.scandir(source) as found:
            names = sorted(item.name for item in found)
        for name in names:
            path = above + name
            if path in self._without:
                continue
            self._count()
            try:
                look = os.stat(name, dir_fd=source, follow_symlinks=False)
            except FileNotFoundError:  # removed since it was listed
                continue
            if stat.S_ISDIR(look.st_mode):
                self._below(source, target, name, path, depth)
            elif stat.S_ISLNK(look.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                self.copied.files += 1
            elif stat.S_ISREG(look.st_mode):
                self._file(source, target, name, path)
            else:
                self.copied.missing[path] = "a socket, pipe or device"

    def _below(self, source: int, target: int, name: str, path: str, depth: int) -> None:
        try:
            inner = os.open(name, FOLDER, dir_fd=source)
        except OSError as error:
            self._unreadable(path, error)
            return
        try:
            look = os.fstat(inner)
            if look.st_dev != self.device or depth >= self._bounds.depth:
                why = "nested too deep" if look.st_dev == self.device else "on another file system"
                self.copied.missing[path + "/"] = why
                return
            os.mkdir(name, 0o700, dir_fd=target)
            into = os.open(name, FOLDER, dir_fd=target)
            try:
                self.folder(inner, into, f"{path}/", depth + 1)
                # Whatever its mode, programs inside and snapshots have to get in.
                os.fchmod(into, stat.S_IMODE(look.st_mode) & 0o777 | 0o700)
                os.utime(into, ns=(look.st_mtime_ns, look.st_mtime_ns))
            finally:
                os.close(into)
        finally:
            os.close(inner)

    def _file(self, source: int, target: int, name: str, path: str) -> None:
        try:
            given = os.open(name, FILE, dir_fd=source)
        except OSError as error:
            self._unreadable(path, error)
            return
        try:
            look = os.fstat(given)
            limit = self._bounds.file_bytes
            if not stat.S_ISREG(look.st_mode) or data_bytes(given, look.st_size, limit) > limit:
                self.copied.missing[path] = f"more than {limit >> 20} MiB"
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            made = os.open(name, flags, 0o600, dir_fd=target)
            try:
                self._data(given, made, look.st_size)
                os.fchmod(made, stat.S_IMODE(look.st_mode) & 0o777 | 0o600)
                os.utime(made, ns=(look.st_mtime_ns, look.st_mtime_ns))
            finally:
                os.close(made)
        finally:
            os.close(given)
        self.copied.files += 1

    def _data(self, given: int, made: int, size: int) -> None:
        """The bytes of a file; its holes stay holes."""
        at = 0
        while at < size:
            try:
                at = os.lseek(given, at, os.SEEK_DATA)
                end = min(size, os.lseek(given, at, os.SEEK_HOLE))
            except OSError as error:
                if error.errno != errno.ENXIO:  # no more data from here on
                    raise
                break
            os.lseek(given, at, os.SEEK_SET)
            os.lseek(made, at, os.SEEK_SET)
            while at < end:
                self._goes_on()
                piece = os.read(given, min(_PIECE, end - at))
                if not piece:  # cut off meanwhile
                    return
                self._write(made, piece)
                at += len(piece)
        os.ftruncate(made, size)

    def _write(self, made: int, piece: bytes) -> None:
        self.copied.bytes += len(piece)
        if self.copied.bytes > self._bounds.store_bytes:
            raise SandboxError(
                f"the folder holds more than the {self._bounds.store_bytes >> 20} MiB that are copied: "
                "give a smaller one, or a clone without what is built or downloaded."
            )
        view = memoryview(piece)
        while view:
            view = view[os.write(made, view) :]

    def _unreadable(self, path: str, error: OSError) -> None:
        if error.errno in (errno.EACCES, errno.EPERM):
            self.copied.missing[path] = "cannot be read"
        elif error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise error

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self._bounds.entries:
            raise SandboxError(
                f"the folder has more than {self._bounds.entries:,} files, too many to copy: give a smaller "
                "one, or a clone without what is built or downloaded."
            )
