# ruff: noqa: PTH103, PTH104, PTH108, PTH110, PTH116, PTH118, PTH120, PTH123, PTH208
"""The content that snapshots keep: one file per distinct content, named by its digest.

Nothing here is shared with the workspace, not even by a hard link, so what programs do there cannot reach it.
An object is whole or absent: it is renamed into place. One process works on a store at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

CHUNK = 1 << 20
_ZEROS = bytes(CHUNK)
_DIGEST_BYTES = 20


class Damaged(Exception):
    """An object is missing, or is not what its name says."""


def digest_of(data: bytes) -> str:
    """The name of a content."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


class Objects:
    """Contents by name. `added` lists what was stored since `forget_added`, `size` is in bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._draft = os.path.join(self._folder, "draft")
        self._size: int | None = None
        self.added: list[str] = []
        os.makedirs(self._folder, mode=0o700, exist_ok=True)

    @property
    def size(self) -> int:
        """The bytes of all objects."""
        if self._size is None:
            self._size = sum(size for _, size in self._all())
        return self._size

    def put(self, data: bytes) -> str:
        """Store a content and return its name."""
        name = digest_of(data)
        if not self._has(name, len(data)):
            with open(self._draft, "wb", buffering=0) as file:
                _write(file.fileno(), data)
            self._keep(name, len(data))
        return name

    def put_file(self, source: int, size: int, goes_on: Callable[[], None]) -> str:
        """Store the first `size` bytes that can be read from a descriptor; returns their name.

        goes_on: called between pieces; may raise to break off.
        """
        if size <= CHUNK:
            return self.put(b"".join(_pieces(source, size)))
        digest, length = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
        with open(self._draft, "wb", buffering=0) as file:
            for piece in _pieces(source, size):
                goes_on()
                digest.update(piece)
                length += len(piece)
                _write_sparsely(file.fileno(), piece)
            os.ftruncate(file.fileno(), length)
        name = digest.hexdigest()
        if self._has(name, length):
            os.unlink(self._draft)
        else:
            self._keep(name, length)
        return name

    def get(self, name: str, limit: int | None = None) -> bytes:
        """A content, at most `limit` bytes of it. Raises `Damaged`; cut content is not checked."""
        try:
            with open(self._path(name), "rb") as file:
                data = file.read() if limit is None else file.read(limit)
        except FileNotFoundError:
            raise Damaged(name) from None
        if limit is None and digest_of(data) != name:
            raise Damaged(name)
        return data

    def write_to(self, name: str, target: int) -> None:
        """Copy a content into an empty file. Raises `Damaged`, perhaps after having written."""
        digest, length = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
        try:
            source = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Damaged(name) from None
        try:
            while piece := os.read(source, CHUNK):
                digest.update(piece)
                length += len(piece)
                _write_sparsely(target, piece)
        finally:
            os.close(source)
        os.ftruncate(target, length)
        if digest.hexdigest() != name:
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

    def _has(self, name: str, size: int) -> bool:
        # After a power cut an object may be there without its content.
        try:
            return os.stat(self._path(name)).st_size == size
        except FileNotFoundError:
            return False

    def _keep(self, name: str, size: int) -> None:
        path = self._path(name)
        try:
            os.rename(self._draft, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.rename(self._draft, path)
        self.added.append(name)
        if self._size is not None:
            self._size += size

    def _remove(self, name: str) -> None:
        path = self._path(name)
        if self._size is not None:
            self._size -= os.stat(path).st_size
        os.unlink(path)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name[:2]}/{name[2:]}"

    def _all(self) -> Iterator[tuple[str, int]]:
        for first in os.listdir(self._folder):
            if len(first) == 2:
                with os.scandir(os.path.join(self._folder, first)) as found:
                    yield from ((first + entry.name, entry.stat().st_size) for entry in found)


def digest_of_file(source: int, size: int, goes_on: Callable[[], None]) -> str:
    """The name that `Objects.put_file` would give."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in _pieces(source, size):
        goes_on()
        digest.update(piece)
    return digest.hexdigest()


def _pieces(source: int, size: int) -> Iterator[bytes]:
    """At most `size` bytes of a file, however much it grows meanwhile."""
    while size > 0 and (piece := os.read(source, min(size, CHUNK))):
        yield piece
        size -= len(piece)


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _write_sparsely(target: int, piece: bytes) -> None:
    """Write, or leave a hole where there is nothing but zeros."""
    if piece == _ZEROS or piece == _ZEROS[: len(piece)]:
        os.lseek(target, len(piece), os.SEEK_CUR)
    else:
        _write(target, piece)
