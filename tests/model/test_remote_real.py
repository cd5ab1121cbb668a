"""A real language model behind a real server, where both are installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pilotfish.model.protocol import CallChunk, Chunk, EndChunk, Limits, Message, TextChunk, ToolSpec
from pilotfish.model.remote import RemoteModel

from ..real_server import served_small_model

ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The server's base URL."""
    with served_small_model(2048) as url:
        yield url


async def ask(model: RemoteModel, question: str, tools: list[ToolSpec], **limits: Any) -> list[Chunk]:
    answer = model.respond(
        [Message("developer", ("Be short.",)), Message("user", (question,))],
        tools,
        stop=asyncio.Event(),
        limits=Limits(**limits),
    )
    return [chunk async for chunk in answer]


async def test_it_answers_counts_and_keeps_its_prefix(url: str) -> None:
    model = RemoteModel(url, "SmolLM2")
    *said, end = await ask(model, "What is the capital of France?", [], max_tokens=30)
    assert "Paris" in "".join(chunk.text for chunk in said if isinstance(chunk, TextChunk))
    assert isinstance(end, EndChunk)
    assert end.reason == "end"
    assert 10 < end.usage.input_tokens < 60
    assert 0 < end.usage.output_tokens <= 30
    *_, again = await ask(model, "What is the capital of France?", [], max_tokens=3)
    assert isinstance(again, EndChunk)
    assert (again.reason, again.usage.output_tokens) == ("length", 3)
    assert again.usage.cached_tokens > 10


async def test_a_call_that_it_writes_as_text_is_a_call(url: str) -> None:
    call = {"name": {"const": "add"}, "arguments": ADD.parameters}
    schema = {"type": "object", "properties": call, "required": list(call), "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
    model = RemoteModel(url, "SmolLM2", extra={"response_format": wanted})
    chunks = await ask(
        model, 'Add 2 and 3. Answer as {"name": "add", "arguments": {"a": ..., "b": ...}}.', [ADD]
    )
    (found,) = (chunk.call for chunk in chunks if isinstance(chunk, CallChunk))
    assert found.name == "add"
    assert set(found.arguments) == {"a", "b"}
    assert all(isinstance(value, int) for value in found.arguments.values())


async def test_stop_is_heard_while_it_writes(url: str) -> None:
    model, stop, written = RemoteModel(url, "SmolLM2"), asyncio.Event(), 0
    story = [Message("user", ("Write a very long story.",))]
    async for chunk in model.respond(story, [], stop=stop, limits=Limits(max_tokens=1500)):
        written += isinstance(chunk, TextChunk)
        if written == 5:
            stop.set()
    assert isinstance(chunk, EndChunk)
    assert chunk.reason == "stop"
    assert written < 100
