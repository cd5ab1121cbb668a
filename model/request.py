"""One question to the engine: what was asked, whom to tell, when it has to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pilotfish.model.images import Media
from pilotfish.model.protocol import Chunk, Limits, ToolSpec
from pilotfish.model.sequence import Tokens

Reason = Literal["end", "length", "time", "stop"]


@dataclass(frozen=True, eq=False)
class Laid:
    """A rendered prompt."""

    tokens: Tokens
    media: Sequence[Media]


@dataclass
class Request:
    """What was asked, whom to tell, and what it cost so far in wall seconds."""

    prompt: Laid
    tools: Sequence[ToolSpec]
    limits: Limits
    stopped: Callable[[], bool]
    tell: Callable[[Chunk], None]
    came_s: float
    """When it came, before it was rendered."""
    rendered_s: float
    deadline_s: float | None = None
    begun_s: float | None = None
    vision_s: float = 0.0
    prefill_s: float = 0.0
    together: int = 1
    """The most answers that were computed at once meanwhile."""

    def cut_short(self) -> Reason | None:
        """Why the answer ends now, if it does."""
        if self.stopped():
            return "stop"
        return None if self.deadline_s is None or time.perf_counter() < self.deadline_s else "time"
