"""Questions to an engine, and what tests read from its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from pilotfish.model.engine import Engine
from pilotfish.model.protocol import (
    Chunk,
    EndChunk,
    Limits,
    Message,
    ProgressChunk,
    TextChunk,
    ToolSpec,
)
from pilotfish.model.tokenizer import Tokenizer

HELLO = (Message("user", ("Say hello.",)),)
FILLER = "The quick brown fox jumps over the lazy dog. " * 40


async def answer(
    engine: Engine, conversation: Sequence[Message], stop: asyncio.Event | None = None, **limits: Any
) -> list[Chunk]:
    stop = stop or asyncio.Event()
    return [c async for c in said(engine, conversation, stop, Limits(**limits))]


async def said(
    engine: Engine, conversation: Sequence[Message], stop: asyncio.Event, limits: Limits, *tools: ToolSpec
) -> AsyncGenerator[Chunk, None]:
    """An answer without the reports of how far its prompt is."""
    async with aclosing(engine.respond(conversation, tools, stop=stop, limits=limits)) as stream:
        async for chunk in stream:
            if not isinstance(chunk, ProgressChunk):
                yield chunk


async def holds(engine: Engine, tokens: int, task: asyncio.Task[Any]) -> None:
    """Wait until the engine has computed so many tokens for a task."""
    while engine.sequence.length < tokens and not task.done():  # noqa: ASYNC110 - the engine signals nothing
        await asyncio.sleep(0.001)


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(c.text for c in chunks if isinstance(c, TextChunk))


def end_of(chunks: Sequence[Chunk]) -> EndChunk:
    assert [isinstance(c, EndChunk) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    end = chunks[-1]
    assert isinstance(end, EndChunk)
    return end


def chain(tokenizer: Tokenizer, *parts: str) -> list[int]:
    ids = [i for part in parts for i in tokenizer.encode_markers(part)]
    assert len(set(ids)) == len(ids), "a chain visits each token once"
    return ids
