# ruff: noqa: PTH103, PTH105, PTH108, PTH110, PTH116, PTH118, PTH120, PTH123, PTH208
"""The content that snapshots keep: one file per distinct content, named by its digest.

Nothing here is shared with the workspace, not even by a hard link, so what programs do there cannot reach it.
An object is whole or absent: it is renamed into place. One process works on a store at a time. Files that
are no objects are left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from pilotfish.sandbox.parts import BIG, NotPacked, packed, unpack

CHUNK = 1 << 20
_DIGEST_BYTES = 20
_PACKED = "p"
"""What the name of an object ends with that has only parts of a big file."""
_NAME = re.compile(f"[0-9a-f]{{{2 * _DIGEST_BYTES}}}{_PACKED}?")


class Damaged(Exception):
    """An object is missing, or is not what its name says."""


class Unreadable(Damaged):
    """An object is there, and cannot be read; says why."""


def digest_of(data: bytes) -> str:
    """The name of a content."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


class Objects:
    """Contents by name. `added` lists what was stored since `forget_added`, `size` is in bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._draft = os.path.join(self._folder, "draft")
        self._size: int | None = None
        self._sure: set[str] = set()
        """Objects that were found to be what their names say."""
        self.added: list[str] = []
        os.makedirs(self._folder, mode=0o700, exist_ok=True)

    @property
    def size(self) -> int:
        """The bytes of all objects."""
        if self._size is None:
            self._size = sum(self.sizes().values())
        return self._size

    def sizes(self) -> dict[str, int]:
        """Every object that there is, and its bytes."""
        return dict(self._all())

    def put(self, data: bytes) -> str:
        """Store a content and return its name."""
        name = digest_of(data)
        if not self._has(name, len(data)):
            with open(self._draft, "wb", buffering=0) as file:
                _write(file.fileno(), data)
            self._keep(name, len(data))
        return name

    def put_file(self, source: int, size: int, limit: int, goes_on: Callable[[], None]) -> str:
        """Store the first `size` bytes that can be read from a descriptor; returns their name.

        limit: so many bytes of them are read at most. goes_on: called between pieces; may raise to break off.
        """
        if size <= BIG:
            return self.put(_whole(source, size))
        digest, length = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
        with open(self._draft, "wb", buffering=0) as file:
            for piece in packed(source, size, limit):
                goes_on()
                digest.update(piece)
                length += len(piece)
                _write(file.fileno(), piece)
        name = digest.hexdigest() + _PACKED
        if self._has(name, length):
            os.unlink(self._draft)
        else:
            self._keep(name, length)
        return name

    def get(self, name: str) -> bytes:
        """A content that is not packed. Raises `Damaged`."""
        with self._opened(name) as file:
            data = file.read()
        if digest_of(data) != name:
            raise Damaged(name)
        self._sure.add(name)
        return data

    def write_to(self, name: str, target: int, size: int) -> None:
        """Copy a content of `size` bytes into an empty file. Raises `Damaged`, perhaps after writing."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        with self._opened(name) as file:

            def read(length: int) -> bytes:
                piece = file.read(length)
                digest.update(piece)
                return piece

            if name.endswith(_PACKED):
                try:
                    unpack(read, target, size)
                except NotPacked:
                    raise Damaged(name) from None
            else:
                while piece := read(CHUNK):
                    _write_sparsely(target, piece)
                os.ftruncate(target, os.lseek(target, 0, os.SEEK_CUR))
        if digest.hexdigest() != name.removesuffix(_PACKED):
            raise Damaged(name)

    def forget_added(self) -> None:
        """What was added stays."""
        self.added.clear()

    def take_back(self) -> None:
        """Remove what was added."""
        for name in self.added:
            self._remove(name)
        self.added.clear()
        if os.path.exists(self._draft):
            os.unlink(self._draft)

    def keep_only(self, names: set[str]) -> None:
        """Remove all others."""
        for name, _ in list(self._all()):
            if name not in names:
                self._remove(name)

    def _opened(self, name: str) -> BinaryIO:
        try:
            return open(self._path(name), "rb")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise Damaged(name) from None
        except OSError as error:
            raise Unreadable(error.strerror) from None

    def _has(self, name: str, size: int) -> bool:
        """Whether there is such an object, and it is still what it was."""
        try:
            if os.stat(self._path(name)).st_size != size:
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        if name not in self._sure:
            digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            try:
                with self._opened(name) as file:
                    while piece := file.read(CHUNK):
                        digest.update(piece)
            except (Damaged, OSError):
                return False
            if digest.hexdigest() != name.removesuffix(_PACKED):
                return False
            self._sure.add(name)
        return True

    def _keep(self, name: str, size: int) -> None:
        path = self._path(name)
        try:
            was = os.stat(path).st_size
        except FileNotFoundError:
            was = -1
        try:
            os.replace(self._draft, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(self._draft, path)
        self._sure.add(name)
        if was < 0:  # or it is mended, for the snapshots that need it too
            self.added.append(name)
        if self._size is not None:
            self._size += size - max(was, 0)

    def _remove(self, name: str) -> None:
        path = self._path(name)
        self._sure.discard(name)
        try:
            size = os.stat(path).st_size
            os.unlink(path)
        except FileNotFoundError:
            return
        if self._size is not None:
            self._size -= size

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name[:2]}/{name[2:]}"

    def _all(self) -> Iterator[tuple[str, int]]:
        for first in os.listdir(self._folder):
            if len(first) != 2:
                continue
            try:
                found = os.scandir(os.path.join(self._folder, first))
            except NotADirectoryError:
                continue
            with found:
                for entry in found:
                    name = first + entry.name
                    if _NAME.fullmatch(name) and entry.is_file(follow_symlinks=False):
                        yield name, entry.stat().st_size


def digest_of_file(source: int, size: int, limit: int, goes_on: Callable[[], None]) -> str:
    """The name that `Objects.put_file` would give."""
    if size <= BIG:
        return digest_of(_whole(source, size))
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in packed(source, size, limit):
        goes_on()
        digest.update(piece)
    return digest.hexdigest() + _PACKED


def _whole(source: int, size: int) -> bytes:
    """At most `size` bytes of a file from its beginning, however much it grows meanwhile."""
    data = os.pread(source, size, 0)
    while len(data) < size and (more := os.pread(source, size - len(data), len(data))):
        data += more
    return data


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _write_sparsely(target: int, piece: bytes) -> None:
    """Write, or leave a hole where there is nothing but zeros."""
    if piece.count(0) == len(piece):
        os.lseek(target, len(piece), os.SEEK_CUR)
    else:
        _write(target, piece)
