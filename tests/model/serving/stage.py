"""A model that plays what a test says, behind a real server; and requests to it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
from PIL import Image as Pillow

from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    EndChunk,
    Limits,
    Message,
    TextChunk,
    ToolCall,
    ToolSpec,
    Usage,
)
from pilotfish.model.serving.run import serve

TOKEN = "a-token-for-tests-0123456789"
END = EndChunk("end", Usage(input_tokens=12, cached_tokens=5, output_tokens=7))
CLICK = CallChunk(ToolCall("x", "click", {"x": 3, "where": "größe"}))
TOOL = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


class Stage:
    """A model that plays what a test says, and remembers what it was asked."""

    name = "stage"

    def __init__(self) -> None:
        self.asked: list[tuple[list[Message], list[ToolSpec], Limits]] = []
        self.stopped = threading.Event()
        self.reset()

    def reset(self) -> None:
        """Play the usual answer, and remember nothing."""
        self.chunks: Sequence[Chunk | Exception] = (TextChunk("Hello"), TextChunk(" there"), END)
        self.endless: str | None = None
        self.asked.clear()
        self.stopped.clear()

    def count(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], thinking: str) -> int:
        return 41 + len(tools)

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        stop: asyncio.Event,
        limits: Limits,
    ) -> AsyncIterator[Chunk]:
        self.asked.append((list(conversation), list(tools), limits))
        try:
            while self.endless and not stop.is_set():
                yield TextChunk(self.endless)
                await asyncio.sleep(0.01)
            for chunk in self.chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            self.stopped.set()


@contextmanager
def served(model: Any, opened: socket.socket) -> Iterator[None]:
    """A server in a thread of its own, ended as a signal would end it."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    task = loop.create_task(serve(model, TOKEN, opened, ready.set))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        assert ready.wait(20)
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)
        assert not thread.is_alive()
        loop.close()


def data_url(size: tuple[int, int] = (3, 2)) -> str:
    buffer = io.BytesIO()
    Pillow.new("RGB", size, (250, 10, 20)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


HELLO: list[Any] = [{"role": "user", "content": "Hello"}]

PATHS = {"/v1/chat/completions": {"model": "stage", "messages": HELLO}}
PATHS["/v1/messages"] = {"model": "stage", "messages": HELLO, "max_tokens": 5}


def post(address: str, path: str, body: Any, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = headers or {"authorization": f"Bearer {TOKEN}"}
    return httpx2.post(address + path, content=content, headers=headers, timeout=20)


def picture_url(picture: Pillow.Image, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def with_pictures(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "stage", "messages": [{"role": "user", "content": parts}]}
