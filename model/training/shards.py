"""Reads recorded episodes from the shard files of `tasks/episodes`.

    b"PFSHARD1" | uint64 little-endian: length of the index | index (JSON, UTF-8) | PNG files

The trainer may not import the recorder's room, so the format is read here on its own; a test holds both
equal.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"PFSHARD1"
WIDTH, HEIGHT = 336, 420


class Widget(NamedTuple):
    """Something on the screen that can be named; the box is in pixels."""

    text: str
    kind: str
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def centre(self) -> tuple[float, float]:
        return (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2


@dataclass
class Episode:
    """One recorded episode; `frames[i]` is the settled screen before the step that names it.

    letters: per frame (character, centre x, centre y) in pixels. steps: {"frame", "action", "train", "box"}.
    """

    task: str
    seed: int
    instruction: str
    frames: list[bytes]
    widgets: list[list[Widget]]
    letters: list[list[tuple[str, int, int]]]
    steps: list[dict[str, Any]] = field(default_factory=list)
    width: int = WIDTH
    height: int = HEIGHT


def read_shard(path: Path | str) -> list[Episode]:
    """All episodes of one shard; raises ValueError for a file that is not one."""
    data = memoryview(Path(path).read_bytes())
    if bytes(data[:8]) != MAGIC or len(data) < 16:
        raise ValueError(f"{path} is not an episode shard; record it again.")
    (length,) = struct.unpack("<Q", data[8:16])
    blob = data[16 + length :]
    try:
        rows = json.loads(bytes(data[16 : 16 + length]))["episodes"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is cut short or damaged: its index cannot be read; record it again."
        ) from None
    episodes = []
    for row in rows:
        frames = [bytes(blob[start : start + size]) for start, size in row["frames"]]
        if any(len(png) != size for png, (_, size) in zip(frames, row["frames"], strict=True)):
            raise ValueError(f"{path} is cut short: its pictures end early; record it again.")
        widgets = [[Widget(*w) for w in frame] for frame in row["widgets"]]
        letters = [list(zip(f["c"], f["xy"][::2], f["xy"][1::2], strict=True)) for f in row["letters"]]
        size = row.get("size", (WIDTH, HEIGHT))
        episodes.append(
            Episode(
                row["task"], row["seed"], row["instruction"], frames, widgets, letters, row["steps"], *size
            )
        )
    return episodes
