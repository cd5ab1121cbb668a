"""What training conversations say of the agent, whose words are fixed for the models trained on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pilotfish.model.protocol import ToolSpec

WORDS_PATH = Path(__file__).parent / "data" / "words.json"


@dataclass(frozen=True)
class TrainingWords:
    """The text of the developer's turn and that in the place of a clip which was dropped; the tool; how many
    clips the agent keeps, and how many go at once.
    """

    developer: str
    pruned_clip: str
    tool: ToolSpec
    max_clips: int
    clip_block: int


def training_words() -> TrainingWords:
    """As they are in the file beside the trainer."""
    words = json.loads(WORDS_PATH.read_text(encoding="utf-8"))
    return TrainingWords(**words | {"tool": ToolSpec(**words["tool"])})
