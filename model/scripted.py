"""A `Model` that plays a script: for tests, demonstrations and replays.

It keeps the engine's contract: chunks in the order a model writes them, an `EndChunk` last, `stop` and
`limits` obeyed. One word (with the blanks before it) counts as one token, and so does one call.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

from pilotfish.model.parser import AnswerParser
from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    EndChunk,
    Limits,
    Message,
    ModelError,
    TextChunk,
    ThinkingChunk,
    ToolSpec,
    Usage,
)

Answer = str | Message | Sequence[Chunk]
"""Raw text as a model would write it, markers included; or a whole turn; or its chunks."""
AnswerFunction = Callable[[Sequence[Message], Sequence[ToolSpec]], Answer | Awaitable[Answer]]
Script = Sequence[Answer] | AnswerFunction


class ScriptedModel:
    """Plays answers one after another, or asks a function for each.

    `requests` holds the conversation and the tools of every call so far.
    """

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self._script = script
        self._name = name
        self._played = 0
        self.requests: list[tuple[tuple[Message, ...], tuple[ToolSpec, ...]]] = []

    @property
    def name(self) -> str:
        return self._name

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        stop: asyncio.Event,
        limits: Limits,
    ) -> AsyncIterator[Chunk]:
        """Stream the next answer. Raises `ModelError` when the script has no more."""
        deadline = time.monotonic() + limits.max_seconds
        self.requests.append((tuple(conversation), tuple(tools)))
        answer = await self._next_answer(conversation, tools, stop, deadline)
        tokens = 0
        if answer is not None:
            for chunk, cost in _pieces(answer, tools, limits):
                await asyncio.sleep(0)
                if stop.is_set() or time.monotonic() >= deadline:
                    break
                if tokens + cost > limits.max_tokens:
                    yield EndChunk("length", Usage(output_tokens=tokens))
                    return
                tokens += cost
                if chunk is not None:
                    yield chunk
                if isinstance(chunk, EndChunk):
                    return
            else:
                yield EndChunk("end", Usage(output_tokens=tokens))
                return
        yield EndChunk("stop" if stop.is_set() else "time", Usage(output_tokens=tokens))

    async def _next_answer(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        stop: asyncio.Event,
        deadline: float,
    ) -> Answer | None:
        """The next answer; None if `stop` or the deadline came before it."""
        if not callable(self._script):
            if self._played == len(self._script):
                raise ModelError(
                    f"the script of {self._name!r} ends after {self._played} answers; add one for this turn"
                )
            self._played += 1
            return self._script[self._played - 1]
        answer = self._script(conversation, tools)
        if not inspect.isawaitable(answer):
            return answer
        answering = asyncio.ensure_future(answer)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            left = max(0.0, deadline - time.monotonic())
            await asyncio.wait({answering, stopping}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() and not stop.is_set() else None
        finally:
            for task in (answering, stopping):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def _pieces(answer: Answer, tools: Sequence[ToolSpec], limits: Limits) -> Iterator[tuple[Chunk | None, int]]:
    """The chunks of an answer and what each costs in tokens; None where a token shows nothing yet."""
    if isinstance(answer, str):
        parser = AnswerParser(tools, starts_in_thinking=limits.thinking == "enabled")
        words = _words(answer)
        for word in words[: limits.max_tokens]:
            events = parser.feed(word)
            yield from ((event, int(n == 0)) for n, event in enumerate(events))
            if not events:
                yield None, 1
        yield from ((event, 0) for event in parser.close())
        if len(words) > limits.max_tokens:
            yield None, 1
        elif parser.faults:
            yield EndChunk("end", Usage(output_tokens=len(words)), tuple(parser.faults)), 0
        return
    for chunk in _chunks(answer) if isinstance(answer, Message) else answer:
        if isinstance(chunk, TextChunk | ThinkingChunk):
            yield from ((type(chunk)(word), 1) for word in _words(chunk.text))
        else:
            yield chunk, int(isinstance(chunk, CallChunk))


def _chunks(message: Message) -> Iterator[Chunk]:
    """A turn in the order a model writes it."""
    if message.reasoning:
        yield ThinkingChunk(message.reasoning)
    yield from (TextChunk(part) for part in message.parts if isinstance(part, str))
    yield from (CallChunk(call) for call in message.tool_calls)


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)
