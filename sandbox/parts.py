"""Big files as objects: only those parts of them that are not all zeros.

A file of 100 GB that is nearly all holes takes the time and the room of what is in it. An object is a list of
records, each an offset and a length of 8 bytes and as many bytes of content; the last one gives the file's
size and has the length 0. Parts that hold nothing but zeros are left out wherever they come from, so equal
content makes equal objects.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator

BIG = 1 << 20
"""Bytes; files that are bigger are packed."""
_PART = 64 << 10
_ZEROS = bytes(_PART)
_HEAD = struct.Struct("<QQ")


class NotPacked(Exception):
    """An object is no list of records."""


def data_bytes(source: int, size: int, limit: int) -> int:
    """How many of the first `size` bytes of a file have to be read; counted up to a bit above `limit`."""
    if size <= BIG:
        return size
    found = 0
    for start, end in _filled(source, size):
        found += end - start
        if found > limit:
            break
    return found


def packed(source: int, size: int, limit: int) -> Iterator[bytes]:
    """The first `size` bytes of a file as an object, piece by piece.

    At most `limit` bytes are read, however much a program fills in meanwhile.
    """
    for start, end in _filled(source, size):
        while start < end and limit > 0:
            piece = os.pread(source, min(BIG, end - start), start)
            if not piece:  # the file was cut
                break
            yield b"".join(_records(piece, start))
            start += len(piece)
            limit -= len(piece)
    yield _HEAD.pack(size, 0)


def unpack(read: Callable[[int], bytes], target: int, size: int) -> None:
    """Write a packed object of a file of `size` bytes into an empty file. Raises `NotPacked`.

    read: gives so many bytes of the object, or fewer at its end.
    """
    while True:
        try:
            offset, length = _HEAD.unpack(read(_HEAD.size))
        except struct.error:
            raise NotPacked from None
        if length == 0:
            break
        content = read(length) if offset + length <= size and length <= _PART else b""
        if len(content) < length:
            raise NotPacked
        view = memoryview(content)
        while view:
            written = os.pwrite(target, view, offset)
            view, offset = view[written:], offset + written
    if offset != size:
        raise NotPacked
    os.ftruncate(target, size)


def _records(piece: bytes, start: int) -> Iterator[bytes]:
    for at in range(0, len(piece), _PART):
        part = piece[at : at + _PART]
        if part != _ZEROS and part != _ZEROS[: len(part)]:
            yield _HEAD.pack(start + at, len(part))
            yield part


def _filled(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has no holes, in whole parts."""
    at = 0
    while at < size:
        start = _seek(source, at, os.SEEK_DATA, size) // _PART * _PART
        if start >= size:
            break
        end = _seek(source, max(at, start), os.SEEK_HOLE, size)
        if end <= start:  # the data has gone since
            end = start + 1
        at = min(size, -(-end // _PART) * _PART)
        yield start, at


def _seek(source: int, at: int, what: int, size: int) -> int:
    try:
        return os.lseek(source, at, what)
    except OSError as error:
        if error.errno == errno.ENXIO:  # no more data, or the file was cut
            return size
        if error.errno == errno.EINVAL:  # a file system that knows of no holes
            return at if what == os.SEEK_DATA else size
        raise
