"""A `Model` that is any OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted one.

A request is asked again only while nothing of an answer has come, and calls are passed on only when the
answer is whole; so no failure of a server or a network can repeat an action or leave half of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from pilotfish.model.protocol import Chunk, EndChunk, Limits, Message, ModelError, ToolSpec
from pilotfish.model.remote_http import Ended, Patience, Server, Unwanted, Watch
from pilotfish.model.remote_request import OPTIONAL, Clips, Media, request_body
from pilotfish.model.remote_stream import AnswerReader, Said, Trouble

BROKEN_OFF = 2
"""Answers in a row that may break off before the server is given up."""
LONGEST_PAUSE_S = 8.0


class RemoteModel:
    """One model of one server."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        clips: Clips = "frames",
        patience: Patience | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """url: what `/chat/completions` is appended to. model: the name that the server knows.

        key: sent as a bearer token, and nowhere else. clips: see `Media`. extra: fields put into each
        request. Raises ModelError for a URL or key that cannot be used.
        """
        self.server = Server(url, key, patience or Patience())
        self._model = model
        self._media = Media(clips)
        self._extra = dict(extra or {})
        self._unwanted: set[str] = set()  # fields that the server refused
        self._reasoning_field: str | None = None
        self._broken_off = 0

    @property
    def name(self) -> str:
        """The model's name at the server."""
        return self._model

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        stop: asyncio.Event,
        limits: Limits,
    ) -> AsyncIterator[Chunk]:
        """Stream one answer; the last chunk is an `EndChunk`. Setting `stop` ends it within a second.

        An answer that breaks off ends with a fault and without calls. Raises ModelError when the server
        cannot be reached, refuses, answers with something else, or breaks off too often.
        """
        reader = AnswerReader(tools)
        reason: Literal["end", "length", "time", "stop"] = "end"
        faults: list[str] | None = None
        async with Watch(stop, limits.max_seconds) as watch:
            try:
                render = partial(self._body, tuple(conversation), tuple(tools), limits)
                body = await watch.wait(asyncio.to_thread(render))
                async with contextlib.aclosing(self._ask(body, reader, watch)) as said:
                    async for chunk in said:
                        yield chunk
                reason = "length" if reader.finish == "length" else "end"
                self._broken_off = 0
            except Trouble as trouble:
                faults = [self._break_off(trouble)]
            except Ended as ended:
                reason = ended.reason
        for chunk in reader.close():
            yield chunk
        if faults is None and reason != "stop":
            tokens = f"the limit of {limits.max_tokens} tokens"
            for call in reader.calls({"length": tokens, "time": "the time limit"}.get(reason)):
                yield call
            faults = reader.faults
            if reason == "length" and not faults and not reader.answered:
                faults.append(f"{tokens} was used up before an answer began")
        self._reasoning_field = reader.reasoning_field or self._reasoning_field
        logprobs = tuple(reader.logprobs) if limits.logprobs and reader.logprobs else None
        yield EndChunk(reason, reader.usage(), tuple(faults or ()), logprobs)

    async def _ask(
        self, body: dict[str, Any], reader: AnswerReader, watch: Watch
    ) -> AsyncGenerator[Said, None]:
        """Ask until an answer begins, and read it. Raises `Trouble` when it then breaks off."""
        async with await watch.wait(asyncio.to_thread(self.server.client)) as client:
            while True:
                try:
                    answer = self.server.ask(client, self._wanted(body), reader, watch)
                    async with contextlib.aclosing(answer) as said:
                        async for chunk in said:
                            yield chunk
                    return
                except Unwanted as unwanted:
                    self._unwanted.add(unwanted.field)
                except Trouble as trouble:
                    if reader.begun:
                        raise
                    reader.retries += 1
                    pause_s = self._pause(trouble, reader.retries, watch.left_s)
                    with contextlib.suppress(TimeoutError):
                        await watch.wait(asyncio.sleep(pause_s + 1), pause_s)

    def _body(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec], limits: Limits
    ) -> dict[str, Any]:
        return (
            request_body(
                conversation,
                tools,
                limits,
                model=self._model,
                media=self._media,
                reasoning_field=self._reasoning_field,
            )
            | self._extra
        )

    def _wanted(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request without the fields that the server refused."""
        wanted: dict[str, Any] = {}
        for name, value in body.items():
            kept = OPTIONAL[name] if name in self._unwanted else name
            if kept is not None:
                wanted[kept] = value
        return wanted

    def _pause(self, trouble: Trouble, failures: int, left_s: float) -> float:
        """Seconds until the request may be asked again; raises ModelError when it may not."""
        told = f"{self.server} {self.server.masked(str(trouble))}"
        if trouble.final:
            raise ModelError(f"{told}.")
        if failures > self.server.patience.retries:
            raise ModelError(f"{told}, and so {failures} times; see that it runs and try again.")
        pause_s = min(LONGEST_PAUSE_S, self.server.patience.pause_s * 2 ** (failures - 1)) * random.uniform(
            0.75, 1.25
        )
        if trouble.wait_s is not None:
            pause_s = max(trouble.wait_s, 0.0)
        if pause_s >= left_s:
            raise ModelError(
                f"{told}; it may be asked again in {pause_s:.0f} s, but the answer has {left_s:.0f} s left; "
                "try later, or raise answer_seconds."
            )
        return pause_s

    def _break_off(self, trouble: Trouble) -> str:
        """The fault of an answer that broke off; raises ModelError when too many did in a row."""
        self._broken_off += 1
        what = f"{self.server.masked(str(trouble))} in the middle of the answer"
        if self._broken_off > BROKEN_OFF:
            times, self._broken_off = self._broken_off, 0
            raise ModelError(
                f"{self.server} {what}, {times} answers in a row; see that it runs and try again."
            )
        return f"the server {what}, so nothing of it was executed"
