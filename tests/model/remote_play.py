"""What the tests of remote models share: one way to ask, and what an answer holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    EndChunk,
    Limits,
    Message,
    Model,
    TextChunk,
    ThinkingChunk,
    ToolSpec,
)
from pilotfish.model.remote import RemoteModel
from pilotfish.model.remote_http import Patience

from ..scripted_server import (
    ScriptedServer,
)

ASK = [Message("user", ("Hello.",))]
NS = "]<]minimax[>["
TOOLS = [
    ToolSpec(
        "wait",
        "Wait.",
        {"type": "object", "properties": {"duration": {"type": "integer"}, "why": {"type": "string"}}},
    )
]
QUICK = Patience(retries=2, pause_s=0.01)
WAIT = [("wait", {"duration": 2, "why": '日本 "quoted"'})]


async def play(
    server: ScriptedServer | Model,
    conversation: Sequence[Message] = ASK,
    limits: Limits | None = None,
    stop: asyncio.Event | None = None,
    **options: Any,
) -> list[Chunk]:
    model: Any = server
    if isinstance(server, ScriptedServer):
        model = RemoteModel(server.url, "m", **({"patience": QUICK} | options))
    answering = model.respond(conversation, TOOLS, stop=stop or asyncio.Event(), limits=limits or Limits())
    return [chunk async for chunk in answering]


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))


def thought_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, ThinkingChunk))


def calls_of(chunks: Sequence[Chunk]) -> list[tuple[str, dict[str, Any]]]:
    return [(chunk.call.name, chunk.call.arguments) for chunk in chunks if isinstance(chunk, CallChunk)]


def end_of(chunks: Sequence[Chunk]) -> EndChunk:
    assert isinstance(chunks[-1], EndChunk)
    assert sum(isinstance(chunk, EndChunk) for chunk in chunks) == 1
    return chunks[-1]
