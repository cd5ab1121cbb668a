"""The frames that a page holds: each once, and only as many as fit."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

from pilotfish.agent import events as log
from pilotfish.agent.replay.entries import Entry

_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
MISSING, DAMAGED = "This frame is missing.", "This frame is damaged."
THINNED = "This frame was left out to keep the page small; --max-mib raises the limit."


def frame_bytes(store: log.FrameStore, name: str) -> bytes | str:
    """A frame as PNG, or a sentence on why there is none."""
    try:
        data = store.path(name).read_bytes()
    except (OSError, ValueError, log.LogError):
        return MISSING
    return data if data.startswith(_PNG) and data.endswith(_PNG_END) else DAMAGED


def data_uri(png: bytes) -> str:
    """A PNG as the address of itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


class Embedding:
    """Which frames of some runs go into a page."""

    def __init__(self, told: Sequence[tuple[log.FrameStore, Sequence[Entry]]], max_bytes: float) -> None:
        """told: where the frames of a run are, and its entries. max_bytes: of all frames as they are
        written into the page.
        """
        self.absent: dict[str, str] = {}
        """Why a frame is not in the page."""
        self.of = 0
        """How many there are that could be."""
        self._stores: dict[str, log.FrameStore] = {}
        sizes: dict[str, int] = {}
        for store, entries in told:
            for name in (name for entry in entries for name in [*entry.frames, entry.image] if name):
                if name not in sizes:
                    found = frame_bytes(store, name)
                    if isinstance(found, bytes):
                        self._stores[name], sizes[name] = store, len(found)
                        self.absent.pop(name, None)
                    else:
                        self.absent[name] = found
        self.of = len(sizes)
        self.left_out = 0
        left = max_bytes
        kept: set[str] = set()
        for name in _by_weight([entries for _, entries in told]):
            if name in sizes and name not in kept:
                left -= sizes[name] * 4 // 3 + 64
                if left < 0:
                    break
                kept.add(name)
        for name in sizes:
            if name not in kept:
                self.absent[name] = THINNED
                self.left_out += 1
                del self._stores[name]

    def uris(self) -> Iterator[tuple[str, str]]:
        """Name and data URI of each, in the order in which they are needed."""
        for name, store in self._stores.items():
            found = frame_bytes(store, name)
            if isinstance(found, bytes):
                yield name, data_uri(found)


def _by_weight(runs: Sequence[Sequence[Entry]]) -> Iterator[str]:
    """Names, what is worth most first: how each entry ends, how it began, then what was between; of each of
    these every 64th first, then every 32nd, so that what is left out is spread evenly.
    """
    for place in (-1, 0, 1, 2):
        for apart in (64, 32, 16, 8, 4, 2, 1):
            for entries in runs:
                for entry in entries[::apart]:
                    if place == -1 and entry.image:
                        yield entry.image
                    if -len(entry.frames) <= place < len(entry.frames):
                        yield entry.frames[place]
