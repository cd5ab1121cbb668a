"""What is kept of one file, and how it is written down."""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass
from functools import lru_cache

from pilotfish.tools.index.tags import Definition, Tags

SHOWN_STATES = ("parsed", "text", "failed")
"""The states of files that are searched and shown; of the others only their number is told."""


@dataclass(frozen=True)
class PackedTags:
    """A file's tags as they are stored: names are 8-byte ids, in arrays of little-endian numbers.

    definitions: JSON rows; defined: the ids of their names, in their order. used: the ids of the names that
    are used, ascending; counts: how often each; places: all their places one after another, see
    `Tags.uses`.
    """

    definitions: bytes = b"[]"
    imports: bytes = b"[]"
    defined: bytes = b""
    used: bytes = b""
    counts: bytes = b""
    places: bytes = b""


EMPTY = PackedTags()


@dataclass(frozen=True)
class FileFacts:
    """A file of the index.

    state: parsed; text, of no language that is parsed or too large for it; failed, where parsing did not end
    well; binary, generated, minified, too large or unreadable, which are left out. lines: how many. note: a
    sentence's end on what went wrong. racy: it changed so shortly before it was read that it may change again
    without its times telling.
    """

    path: bytes
    size: int
    mtime_ns: int
    ctime_ns: int
    racy: bool = False
    digest: bytes = b""
    state: str = "text"
    language: str | None = None
    lines: int = 0
    note: str = ""
    tags: PackedTags = EMPTY


@lru_cache(maxsize=200_000)
def name_id(name: str) -> int:
    """The number that stands for a name, in every index alike: 62 bits of its BLAKE2 digest, then two that
    say how telling it is: 0 for one of up to two letters, 1 for a private one, 3 for a long one of several
    words, else 2.
    """
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    several = "_" in name.strip("_") or "-" in name or (name != name.lower() and name != name.upper())
    telling = 0 if len(name) < 3 else 1 if name.startswith("_") else 3 if several and len(name) >= 8 else 2
    return int.from_bytes(digest, "little") & ~3 | telling


def pack(tags: Tags) -> PackedTags:
    """Tags as they are stored."""
    rows = [
        [one.kind, one.name, one.qualified, one.line, one.end_line, one.signature, one.doc]
        for one in tags.definitions
    ]
    uses = sorted((name_id(name), places) for name, places in tags.uses.items())
    places = array("I")
    for _, some in uses:
        places.extend(some)
    return PackedTags(
        json.dumps(rows, separators=(",", ":")).encode() if rows else b"[]",
        json.dumps(tags.imports, separators=(",", ":")).encode() if tags.imports else b"[]",
        array("Q", [name_id(one.name) for one in tags.definitions]).tobytes(),
        array("Q", [number for number, _ in uses]).tobytes(),
        array("I", [len(some) for _, some in uses]).tobytes(),
        places.tobytes(),
    )


def unpack_definitions(definitions: bytes) -> list[Definition]:
    """The definitions that `pack` wrote."""
    return [Definition(*row) for row in json.loads(definitions)]


def names_in(definitions: bytes) -> set[str]:
    """The names in what `pack` wrote: five times faster than to make definitions of it."""
    return {row[1] for row in json.loads(definitions)}
