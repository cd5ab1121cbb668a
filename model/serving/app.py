"""The HTTP server: who may ask, how much at once, and answers that end when the one who asked has gone."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Http
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pilotfish.model.chat import Thinking
from pilotfish.model.protocol import Chunk, EndChunk, Message, Model, ModelError, ToolSpec
from pilotfish.model.serving import anthropic_api, openai_api
from pilotfish.model.serving.slots import Slot, Slots
from pilotfish.model.serving.wire import Request, RequestError

MAX_BODY = 64 * 1024**2
BODY_S = 30.0
"""Seconds a client may take to send a request's body."""
READERS = 2
"""Bodies made into requests at once: that takes more memory than what comes of it."""
PING_S = 10.0
"""Seconds without a word after which a stream says that it is alive."""


class _Json(JSONResponse):
    """JSON of what a model wrote, half a character among it too."""

    def render(self, content: object) -> bytes:
        return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")


class CountingModel(Model, Protocol):
    """A model that can count a conversation's tokens without computing them."""

    def count(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        thinking: Thinking,
    ) -> int: ...


@dataclass
class Tally:
    """What was served: answers that ended, of these those that were broken off, requests that were refused,
    and tokens.
    """

    answers: int = 0
    broken_off: int = 0
    refused: int = 0
    read: int = 0
    written: int = 0

    def words(self, now: int) -> str:
        """It in words; now: answers that are being written."""
        parts = [f"{self.answers:,} answer{'' if self.answers == 1 else 's'}"]
        parts[0] += f" ({self.broken_off:,} broken off)" if self.broken_off else ""
        parts += [f"{now} more being ended"] if now else []
        parts += (
            [f"{self.refused:,} request{'' if self.refused == 1 else 's'} refused"] if self.refused else []
        )
        return f"{', '.join(parts)}; {self.read:,} tokens read, {self.written:,} written"


class Service:
    """One model for many who ask, as many as `slots` has places and memory for."""

    def __init__(self, model: CountingModel, token: str) -> None:
        """token: the secret that every request has to bring, as a bearer token or as `x-api-key`."""
        self.model, self.token = model, token
        self.slots = Slots()
        self.tally = Tally()
        self._readers = ThreadPoolExecutor(READERS, "request")
        self._stops: set[asyncio.Event] = set()
        self._began = int(time.time())

    def app(self) -> Starlette:
        """The ASGI application."""
        completions = self._endpoint(openai_api, self._complete)
        messages = self._endpoint(anthropic_api, self._message)
        count = self._endpoint(anthropic_api, self._count)
        models = self._endpoint(openai_api, self._models)
        return Starlette(
            routes=[
                Route("/v1/chat/completions", completions, methods=["POST"]),
                Route("/v1/messages", messages, methods=["POST"]),
                Route("/v1/messages/count_tokens", count, methods=["POST"]),
                Route("/v1/models", models, methods=["GET"]),
                Route("/health", _health, methods=["GET"]),
            ],
            exception_handlers={404: _no_such_path, 405: _wrong_method},
        )

    def served(self) -> str:
        """What was served so far, in words."""
        return self.tally.words(len(self._stops))

    def stop_all(self) -> None:
        """End every answer that is being written."""
        for stop in self._stops:
            stop.set()

    def _endpoint(
        self, api: ModuleType, serve: Callable[[Http], Awaitable[Response]]
    ) -> Callable[[Http], Awaitable[Response]]:
        async def endpoint(http: Http) -> Response:
            try:
                self._admit(http)
                return await serve(http)
            except RequestError as failed:
                self.tally.refused += 1
                headers = {"retry-after": "1"} if failed.status == 429 else None
                return _Json(api.error(failed), failed.status, headers)
            except ModelError as failed:
                self.tally.refused += 1
                return _Json(api.error(RequestError(str(failed))), 400)
            except ClientDisconnect:
                return Response(status_code=499)

        return endpoint

    def _admit(self, http: Http) -> None:
        given = http.headers.get("x-api-key") or http.headers.get("authorization", "").partition(" ")[2]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise RequestError(
                "The token is missing or wrong; send the one that `pilotfish serve` names as the API key.",
                status=401,
            )

    async def _body(self, http: Http, slot: Slot) -> bytes:
        """A request's body, refused before it is read where its head says that it is too large."""
        announced = http.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > MAX_BODY:
            raise _too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in http.stream():
                    slot.hold(len(piece))
                    body += piece
                    if len(body) > MAX_BODY:
                        raise _too_large()
        except TimeoutError:
            raise RequestError(
                f"The body did not come within {BODY_S:g} s ({len(body)} bytes did); send it at once.",
                status=408,
            ) from None
        return bytes(body)

    async def _read(self, http: Http, slot: Slot, read: Callable[[bytes], Request]) -> Request:
        """A request of one interface, its body read by that; raises RequestError."""
        loop, body = asyncio.get_running_loop(), await self._body(http, slot)
        request = await loop.run_in_executor(self._readers, read, body)
        slot.hold_pictures(request.conversation)
        self._check(request)
        return request

    def _check(self, request: Request) -> None:
        if request.model != self.model.name:
            raise RequestError(
                f"There is no model {request.model[:80]!r}; this server has {self.model.name!r}.",
                status=404,
                param="model",
            )

    async def _complete(self, http: Http) -> Response:
        return await self._ask(openai_api, http)

    async def _message(self, http: Http) -> Response:
        return await self._ask(anthropic_api, http)

    async def _ask(self, api: ModuleType, http: Http) -> Response:
        """Put a request of one interface to the model; the answer comes whole or as events."""
        slot = self.slots.take()
        try:
            request = await self._read(http, slot, api.request)
            chunks = self._chunks(request, http, slot)
            if not request.stream:
                async with contextlib.aclosing(chunks):
                    return _Json(await api.answer(request, chunks))
            begun = await _begun(chunks)
        except BaseException:
            slot.leave()
            raise
        return _events(api, api.stream(request, begun), chunks)

    async def _count(self, http: Http) -> Response:
        slot = self.slots.take()
        try:
            request = await self._read(http, slot, anthropic_api.count_request)
            tokens = await asyncio.to_thread(
                self.model.count, request.conversation, request.tools, request.limits.thinking
            )
        finally:
            slot.leave()
        return _Json({"input_tokens": tokens})

    async def _models(self, http: Http) -> Response:
        return _Json(openai_api.models([self.model.name], self._began))

    async def _chunks(self, request: Request, http: Http, slot: Slot) -> AsyncGenerator[Chunk]:
        """The model's answer; stopped when whoever asked has gone, or the server ends. It leaves the slot."""
        stop = asyncio.Event()
        self._stops.add(stop)
        watch = asyncio.create_task(_stop_when_gone(http, stop))
        answer = self.model.respond(request.conversation, request.tools, stop=stop, limits=request.limits)
        ended: EndChunk | None = None
        try:
            async for chunk in answer:
                if isinstance(chunk, EndChunk):
                    ended = chunk
                yield chunk
        finally:
            self._count_answer(ended)
            stop.set()
            watch.cancel()
            await answer.aclose()  # type: ignore[attr-defined]
            self._stops.discard(stop)
            slot.leave()

    def _count_answer(self, ended: EndChunk | None) -> None:
        tally = self.tally
        tally.answers += 1
        if ended is None or ended.reason == "stop":
            tally.broken_off += ended is None or ended.stop_string is None
        if ended is not None:
            tally.read += ended.usage.input_tokens or 0
            tally.written += ended.usage.output_tokens or 0


def _too_large() -> RequestError:
    return RequestError(
        f"The request has more than {MAX_BODY >> 20} MiB; send fewer or smaller pictures.", status=413
    )


async def _stop_when_gone(http: Http, stop: asyncio.Event) -> None:
    while not await http.is_disconnected():  # noqa: ASYNC110 - the connection signals nothing by itself
        await asyncio.sleep(0.2)
    stop.set()


async def _begun(chunks: AsyncGenerator[Chunk]) -> AsyncIterator[Chunk]:
    """The same chunks, once the first one is there: what is refused before it is refused with a status.

    One that lets itself be waited for too long comes later, so that the stream can begin.
    """
    first = asyncio.ensure_future(anext(chunks))
    try:
        await asyncio.wait([first], timeout=PING_S)
    except asyncio.CancelledError:
        first.cancel()
        raise
    if first.done():
        first.result()

    async def all_of_them() -> AsyncIterator[Chunk]:
        yield await first
        async for chunk in chunks:
            yield chunk

    return all_of_them()


def _events(api: ModuleType, events: AsyncIterator[bytes], chunks: AsyncGenerator[Chunk]) -> Response:
    async def body() -> AsyncIterator[bytes]:
        waiting: asyncio.Future[bytes] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(_next(events))
                done, _ = await asyncio.wait([waiting], timeout=PING_S)
                if not done:
                    yield api.ping()
                    continue
                said, waiting = waiting.result(), None
                if not said:
                    return
                yield said
        except ModelError as failed:
            told = json.dumps(api.error(RequestError(str(failed), status=500)), ensure_ascii=False)
            yield f"event: error\ndata: {told}\n\n".encode("utf-8", "replace")
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.wait([waiting])
            await chunks.aclose()

    return StreamingResponse(body(), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events, b"")


async def _health(http: Http) -> Response:
    return _Json({"status": "ok"})


async def _no_such_path(http: Http, _: Exception) -> Response:
    api = anthropic_api if http.url.path.startswith("/v1/messages") else openai_api
    sentence = f"There is nothing at {http.url.path[:120]}; see docs/model.md for what is served."
    return _Json(api.error(RequestError(sentence, status=404, code="unknown_url")), 404)


async def _wrong_method(http: Http, _: Exception) -> Response:
    api = anthropic_api if http.url.path.startswith("/v1/messages") else openai_api
    sentence = f"{http.url.path[:120]} does not take {http.method}; use the method of the API's reference."
    return _Json(api.error(RequestError(sentence, status=405)), 405)
