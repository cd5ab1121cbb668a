"""One answer of the model, put together from its pieces."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    EndChunk,
    Message,
    ProgressChunk,
    TextChunk,
    ThinkingChunk,
)

OnProgress = Callable[[ProgressChunk], None]
"""Told how far a prompt is computed."""
OnPiece = Callable[[Literal["thinking", "text"], str], None]
"""Told each piece of an answer as it is written."""


@dataclass(frozen=True)
class Reply:
    """One complete answer of the model."""

    text: str
    reasoning: str | None
    calls: tuple[CallChunk, ...]
    end: EndChunk
    seconds: float

    @property
    def message(self) -> Message:
        """The assistant turn of this reply."""
        calls = tuple(said.call for said in self.calls)
        return Message("assistant", (self.text,) if self.text else (), self.reasoning, calls)

    @property
    def faults(self) -> tuple[str, ...]:
        """What kept it from being whole, one sentence each."""
        if self.end.reason == "end" or self.end.faults:
            return self.end.faults
        tokens, seconds = self.end.usage.output_tokens, self.seconds
        after = f"{tokens} tokens" if self.end.reason == "length" else f"{seconds:.1f} s"
        return (f"the reply was cut off after {after}, so it is no answer; be brief",)


async def read_reply(
    chunks: AsyncIterator[Chunk], on_progress: OnProgress | None = None, on_piece: OnPiece | None = None
) -> Reply:
    """Read an answer to its end."""
    began_s = time.monotonic()
    text, thinking, calls, end = [], [], [], EndChunk("end")
    async for chunk in chunks:
        match chunk:
            case TextChunk():
                text.append(chunk.text)
                if on_piece is not None:
                    on_piece("text", chunk.text)
            case ThinkingChunk():
                thinking.append(chunk.text)
                if on_piece is not None:
                    on_piece("thinking", chunk.text)
            case CallChunk():
                calls.append(chunk)
            case ProgressChunk() if on_progress is not None:
                on_progress(chunk)
            case EndChunk():
                end = chunk
    reasoning = "".join(thinking) or None
    return Reply("".join(text), reasoning, tuple(calls), end, time.monotonic() - began_s)
