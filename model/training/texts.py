"""Shards of conversations without pictures, in the agent's own words.

A shard is `MAGIC`, then a compressed JSON object: `strings`, and `episodes` with task, seed, tools, turns and
which of the model's are to be imitated.

Texts and tools are numbers of `strings`, since many episodes begin with the same long text. The recorder
stands above this package and writes with the functions that are here.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.model.protocol import Message, ToolCall, ToolSpec

MAGIC = b"PFTEXTS1"
TEXT_SHARDS = "texts-*.bin"
"""How the names of such shards look."""


@dataclass(frozen=True)
class TextEpisode:
    """One conversation. trained: for each turn of the model, whether it is to be imitated."""

    task: str
    seed: int
    turns: list[Message]
    tools: list[ToolSpec]
    trained: list[bool]


class _Strings:
    """Texts, each once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def write_texts(path: Path, episodes: Sequence[TextEpisode]) -> None:
    """Write one shard; the file appears under its name only when it is complete.

    Raises `ValueError` for a turn with a picture, or where `trained` does not fit the turns.
    """
    strings = _Strings()
    rows: list[dict[str, Any]] = []
    for episode in episodes:
        said = sum(turn.role == "assistant" for turn in episode.turns)
        if said != len(episode.trained):
            raise ValueError(f"{episode.task} has {said} turns of the model and {len(episode.trained)} marks")
        tools = [[tool.name, tool.description, tool.parameters] for tool in episode.tools]
        rows.append(
            {
                "task": episode.task,
                "seed": episode.seed,
                "tools": strings.number(json.dumps(tools)),
                "turns": [_packed(turn, strings) for turn in episode.turns],
                "trained": episode.trained,
            }
        )
    data = json.dumps({"strings": list(strings.numbers), "episodes": rows}, ensure_ascii=True).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(MAGIC + zlib.compress(data, 6))
    temporary.replace(path)


def read_texts(path: Path | str) -> list[TextEpisode]:
    """Read one shard; raises `ValueError` when it is not one or is damaged."""
    data = Path(path).read_bytes()
    if not data.startswith(MAGIC):
        raise ValueError(f"{path} is no shard of text episodes (it begins with {data[:8]!r}); record again.")
    try:
        about = json.loads(zlib.decompress(data[len(MAGIC) :]))
        strings = about["strings"]
        return [
            TextEpisode(
                row["task"],
                row["seed"],
                [_unpacked(turn, strings) for turn in row["turns"]],
                [ToolSpec(*tool) for tool in json.loads(strings[row["tools"]])],
                row["trained"],
            )
            for row in about["episodes"]
        ]
    except (zlib.error, ValueError, KeyError, IndexError, TypeError):
        raise ValueError(f"{path} is cut short or damaged; record it again.") from None


def _packed(turn: Message, strings: _Strings) -> list[Any]:
    parts = []
    for part in turn.parts:
        if not isinstance(part, str):
            raise ValueError(f"a turn of {turn.role} shows a picture; text episodes have none")
        parts.append(strings.number(part))
    calls = [[call.id, call.name, call.arguments] for call in turn.tool_calls]
    return [turn.role, parts, calls]


def _unpacked(turn: list[Any], strings: list[str]) -> Message:
    role, parts, calls = turn
    return Message(role, tuple(strings[n] for n in parts), None, tuple(ToolCall(*call) for call in calls))
