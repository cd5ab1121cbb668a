"""Carries bytes between a program inside and a server, and counts them."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field

from pilotfish.sandbox.proxy.request import Refusal, Request

CHUNK = 64 * 1024


@dataclass
class Attempt:
    """One connection as it is reported. verdict: allowed, refused, or failed when it was allowed."""

    number: int
    began: float = field(default_factory=time.time)
    method: str = ""
    host: str = ""
    port: int = 0
    verdict: str = ""
    why: str = ""
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    over: bool = False


class Carriage:
    """Carries bytes between a program inside and a server until both are done, or nothing moves any more."""

    def __init__(
        self, client: socket.socket, server: socket.socket, request: Request, attempt: Attempt, idle_s: float
    ) -> None:
        self._client = client
        self._server = server
        self._request = request
        self._attempt = attempt
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._moved = self._loop.time()

    async def carry(self, rest: bytes) -> None:
        """rest: what came behind the head."""
        tasks = [asyncio.ensure_future(way) for way in (self._up(rest), self._down(), self._idle())]
        try:
            while not self._is_over(*tasks):
                waiting = [task for task in tasks if not task.done()]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _is_over(self, up: asyncio.Task[None], down: asyncio.Task[None], idle: asyncio.Task[None]) -> bool:
        """Raises what ended it, if it was neither side's wish."""
        if idle.done():
            self._attempt.why = f"nothing moved for {self._idle_s:g} s"
            return True
        if up.done() and (error := up.exception()) and (self._request.tunnel or isinstance(error, Refusal)):
            raise error
        if down.done():
            down.result()
        # The answer of a plain request ends with its connection, whatever the program still says.
        return down.done() and (up.done() or not self._request.tunnel)

    async def _idle(self) -> None:
        left = self._idle_s
        while left > 0:
            await asyncio.sleep(left)
            left = self._moved + self._idle_s - self._loop.time()

    async def _up(self, data: bytes) -> None:
        body = None if self._request.tunnel else self._request.body
        await self._send(self._request.head)
        while True:
            if data:
                await self._send(data if body is None else body.take(data))
            if body is not None and body.done:
                # What follows would be another request, and perhaps for another host: it is not passed on.
                while await self._loop.sock_recv(self._client, CHUNK):
                    pass
                break
            data = await self._loop.sock_recv(self._client, CHUNK)
            self._moved = self._loop.time()
            if not data:
                break
        self._server.shutdown(socket.SHUT_WR)

    async def _send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._server, data)
        self._attempt.sent += len(data)
        self._moved = self._loop.time()

    async def _down(self) -> None:
        while data := await self._loop.sock_recv(self._server, CHUNK):
            self._moved = self._loop.time()
            await self._loop.sock_sendall(self._client, data)
            self._attempt.received += len(data)
            self._moved = self._loop.time()
        self._client.shutdown(socket.SHUT_WR)
