"""What the index and its worker processes send each other: lists of byte strings with their lengths before
them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_LENGTH = struct.Struct("<I")
MAX_FRAME = 256_000_000
"""The largest list in bytes that is read."""


def packed(parts: Sequence[bytes]) -> bytes:
    """The list as bytes: the length of all that follows, how many parts, the length of each, the parts."""
    sizes = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    return b"".join((_LENGTH.pack(len(sizes) + sum(map(len, parts))), sizes, *parts))


class Frames:
    """Lists taken out of a stream of bytes as they become complete."""

    def __init__(self) -> None:
        self._held = bytearray()

    def add(self, data: bytes) -> list[list[bytes]]:
        """The lists that are complete with `data`. Raises ValueError for what `packed` never makes."""
        self._held += data
        found = []
        while len(self._held) >= 4:
            (size,) = _LENGTH.unpack_from(self._held)
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes")
            if len(self._held) < 4 + size:
                break
            found.append(_parts(bytes(self._held[4 : 4 + size])))
            del self._held[: 4 + size]
        return found


def _parts(body: bytes) -> list[bytes]:
    if len(body) < 4 or (count := _LENGTH.unpack_from(body)[0]) > len(body) // 4:
        raise ValueError("a frame without its lengths")
    sizes = struct.unpack_from(f"<{count}I", body, 4)
    if sum(sizes) + 4 * count + 4 != len(body):
        raise ValueError("a frame of other lengths than it says")
    parts, at = [], 4 + 4 * count
    for size in sizes:
        parts.append(body[at : at + size])
        at += size
    return parts
