"""The shard file: episodes on disk, readable without any other code of this package.

    b"PFSHARD1" | uint64 little-endian: length of the index | index (JSON, UTF-8) | blob

The index is `{"episodes": [...]}`. Each episode has the fields of `Episode`, except that `frames` are
`[offset, length]` of PNG files in the blob, `letters` of a frame are `{"c": string, "xy": [x, y, ...]}`, and
`size` is the width and height; without it they are 336 and 420.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAGIC = b"PFSHARD1"

Widget = tuple[str, str, int, int, int, int]
Letter = tuple[str, int, int]


@dataclass
class Episode:
    """One recorded episode. Pixels are device pixels of a frame, which is `width` x `height`.

    frames: PNG files; the frame a step names is the settled screen before that step.
    widgets: per frame `(text, kind, x0, y0, x1, y1)` of what can be clicked or read.
    letters: per frame `(character, centre x, centre y)` of every visible character but spaces.
    steps: `{"frame": i, "action": {...}, "train": bool, "box": [x0, y0, x1, y1] | None}`; coordinates of
    actions are on the model's grid 0..999. `train` is false for deliberate slips, which must not be imitated.
    A step may have `"mid": j`: frame j (without labels) was taken while the mouse button was held down.
    """

    task: str
    seed: int
    instruction: str
    success: bool
    frames: list[bytes] = field(default_factory=list)
    widgets: list[list[Widget]] = field(default_factory=list)
    letters: list[list[Letter]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    width: int = 336
    height: int = 420


def write_shard(path: Path, episodes: Sequence[Episode]) -> None:
    """Write one shard; the file appears under its name only when it is complete."""
    blob = bytearray()
    rows: list[dict[str, Any]] = []
    for episode in episodes:
        places = []
        for png in episode.frames:
            places.append([len(blob), len(png)])
            blob += png
        letters = [
            {"c": "".join(c for c, _, _ in frame), "xy": [n for _, x, y in frame for n in (x, y)]}
            for frame in episode.letters
        ]
        rows.append(
            {
                "task": episode.task,
                "seed": episode.seed,
                "instruction": episode.instruction,
                "success": episode.success,
                "frames": places,
                "widgets": episode.widgets,
                "letters": letters,
                "steps": episode.steps,
                "size": [episode.width, episode.height],
            }
        )
    index = json.dumps({"episodes": rows}, ensure_ascii=False, separators=(",", ":")).encode()
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(MAGIC + struct.pack("<Q", len(index)))
        file.write(index)
        file.write(blob)
    temporary.replace(path)


def read_shard(path: Path | str) -> list[Episode]:
    """Read one shard; raises `ValueError` when it is not one or is cut short."""
    data = memoryview(Path(path).read_bytes())
    if bytes(data[:8]) != MAGIC or len(data) < 16:
        raise ValueError(
            f"{path} is not an episode shard: it begins with {bytes(data[:8])!r}, not {MAGIC!r}."
        )
    (length,) = struct.unpack("<Q", data[8:16])
    blob = data[16 + length :]
    try:
        rows = json.loads(bytes(data[16 : 16 + length]))["episodes"]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is cut short or damaged: its index cannot be read; record it again."
        ) from error
    episodes = []
    for row in rows:
        frames = [bytes(blob[start : start + size]) for start, size in row["frames"]]
        if any(len(png) != size for png, (_, size) in zip(frames, row["frames"], strict=True)):
            raise ValueError(f"{path} is cut short: its pictures end early; record it again.")
        letters = [
            [(c, xy[0], xy[1]) for c, xy in zip(f["c"], zip(*[iter(f["xy"])] * 2, strict=True), strict=True)]
            for f in row["letters"]
        ]
        widgets: list[list[Widget]] = [
            [(w[0], w[1], w[2], w[3], w[4], w[5]) for w in frame] for frame in row["widgets"]
        ]
        width, height = row.get("size", (336, 420))
        episodes.append(
            Episode(
                task=row["task"],
                seed=row["seed"],
                instruction=row["instruction"],
                success=row["success"],
                frames=frames,
                widgets=widgets,
                letters=letters,
                steps=row["steps"],
                width=width,
                height=height,
            )
        )
    return episodes
