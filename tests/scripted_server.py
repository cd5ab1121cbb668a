"""An OpenAI-compatible server that plays a script: real sockets, and any misbehaviour byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

STREAM = "text/event-stream; charset=utf-8"
Step = Callable[[socket.socket], None]
"""Answers one request on its connection, which is closed afterwards."""


@dataclass
class Asked:
    """One request: its path, its headers in lower case, its JSON."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)


class ScriptedServer:
    """Plays one step for each request, the last one again and again. Use as a context manager."""

    def __init__(self, script: Sequence[Step], tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.hung_up = threading.Event()
        """Set when a client has left before a step was at its end."""
        self._script = list(script)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._tls = tls
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._answer, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                asked = _read(connection)
            except OSError:
                return
            if asked is None:
                return
            self.asked.append(asked)
            step = self._script[min(len(self.asked), len(self._script)) - 1]
            try:
                step(connection)
            except OSError:
                self.hung_up.set()


def silent(connection: socket.socket) -> None:
    """A step that says nothing until the client leaves."""
    while connection.recv(4096):
        pass
    raise ConnectionAbortedError


def _read(connection: socket.socket) -> Asked | None:
    with connection.makefile("rb") as file:
        first = file.readline().decode()
        headers: dict[str, str] = {}
        while line := file.readline().strip().decode():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = file.read(int(headers.get("content-length", 0)))
    return Asked(first.split()[1], headers, json.loads(body) if body else {}) if first else None


def reply(status: int, body: str | bytes, kind: str = "application/json", **headers: str) -> Step:
    """A whole answer."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Said", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
    return lambda connection: connection.sendall(head + data)


def error(status: int, message: str, **headers: str) -> Step:
    """An error in OpenAI's form."""
    return reply(status, json.dumps({"error": {"message": message, "code": None}}), **headers)


def stream(*pieces: bytes | dict[str, Any] | float, kind: str = STREAM, then: Step | None = None) -> Step:
    """A streamed answer of raw bytes, events or pauses in seconds. It ends by closing the connection."""

    def play(connection: socket.socket) -> None:
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())
        for piece in pieces:
            if isinstance(piece, float):
                time.sleep(piece)
            else:
                connection.sendall(piece if isinstance(piece, bytes) else event(piece))
        if then is not None:
            then(connection)

    return play


def event(piece: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(piece)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call_delta(
    arguments: Any = None, *, index: Any = 0, id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"index": index, "id": id, "function": {k: v for k, v in function.items() if v is not None}}
    return delta(tool_calls=[{k: v for k, v in call.items() if v is not None}])


def answer(
    text: str = "", calls: Iterable[tuple[str, dict[str, Any]]] = (), usage: dict[str, Any] | None = None
) -> Step:
    """A faultless streamed answer, its text and its arguments in pieces."""

    def pieces() -> Iterator[bytes | dict[str, Any]]:
        yield delta(role="assistant", content="")
        yield from (delta(content=part) for part in _cut(text))
        for index, (name, arguments) in enumerate(calls):
            yield call_delta("", index=index, id=f"call_{index}", name=name)
            yield from (call_delta(part, index=index) for part in _cut(json.dumps(arguments)))
        yield delta("tool_calls" if calls else "stop")
        if usage is not None:
            yield {"choices": [], "usage": usage}
        yield DONE

    return stream(*pieces())


def _cut(text: str) -> list[str]:
    return [text[start : start + 7] for start in range(0, len(text), 7)]
