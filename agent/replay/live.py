"""The page of a run that goes on, served to browsers of this machine that know its token.

The page itself holds nothing of the run. It asks for what is new, and for frames, with the token that stands
behind the `#` of its address, which no browser sends by itself, keeps in a log or gives to another server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotfish.agent import events as log
from pilotfish.agent.replay.following import Following
from pilotfish.agent.replay.frames import frame_bytes
from pilotfish.agent.replay.page import as_json, shell
from pilotfish.model.serving.run import serve_app

LOOK_S = 0.2
"""Seconds between two looks at the log."""
WAIT_S = 20.0
"""Seconds that a browser waits for news before it asks again."""


class LivePage:
    """Serves one run to any number of browsers."""

    def __init__(self, following: Following, port: int) -> None:
        """port: on which it is reached, to know its own address from others that lead to it."""
        self.token = secrets.token_urlsafe(32)
        self._following = following
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._over = asyncio.Event()

    def app(self) -> ASGIApp:
        """The ASGI application."""
        before, after, policy = shell({"runs": [], "absent": {}, "live": True}, connects=True)
        html = before + after

        async def page(_: Request) -> Response:
            return Response(html, media_type="text/html")

        routes = [
            Route("/", page, methods=["GET"]),
            Route("/changes", self._admitted(self._changes), methods=["GET"]),
            Route("/frames/{name}", self._admitted(self._frame), methods=["GET"]),
        ]
        handlers: Any = {404: _not_there, 405: _not_there}
        return _Guard(Starlette(routes=routes, exception_handlers=handlers), self._hosts, policy)

    async def look(self) -> None:
        """Look for news until `stop`."""
        while not self._over.is_set():
            async with self._lock:
                try:
                    if await asyncio.to_thread(self._following.read):
                        self._news.set()
                        self._news = asyncio.Event()
                except log.LogError:  # for a moment: it is read at another
                    self._following.more = False
            if not self._following.more:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), LOOK_S)

    def stop(self) -> None:
        """End every answer that waits."""
        self._over.set()
        self._news.set()

    def _admitted(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def admit(request: Request) -> Response:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return _refusal(401, "The token is missing or wrong; use the address that was printed.")
            return await answer(request)

        return admit

    async def _changes(self, request: Request) -> Response:
        """What is new since a version; waits a while for something."""
        named = request.query_params.get("since", "0")
        since = int(named) if named.isdecimal() and len(named) < 10 else 0
        if since >= self._following.version:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), WAIT_S)
        async with self._lock:
            text = await asyncio.to_thread(lambda: as_json(self._following.changes(since)))
        return Response(text, media_type="application/json")

    async def _frame(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = await asyncio.to_thread(frame_bytes, self._following.frames, name)
        if isinstance(found, str):
            return _refusal(404, found)
        return Response(found, media_type="image/png")


class _Guard:
    """Lets only requests through that were meant for this server, and adds what every answer carries."""

    def __init__(self, app: ASGIApp, hosts: set[str], policy: str) -> None:
        self._app, self._hosts = app, hosts
        self._headers = {
            "cache-control": "no-store",
            "content-security-policy": f"{policy}; frame-ancestors 'none'",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in self._headers.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        refusal = self._refuses(Headers(scope=scope), scope["path"])
        await (refusal or self._app)(scope, receive, dressed)

    def _refuses(self, headers: Headers, path: str) -> Response | None:
        """An answer to a request that another server's name or page has led here."""
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return _refusal(421, "This server has another address; use the one that was printed.")
        site = headers.get("sec-fetch-site", "none")
        opened = path == "/" and headers.get("sec-fetch-mode") == "navigate"  # a link led to the empty page
        if not {*headers.getlist("origin")} <= {f"http://{host}" for host in self._hosts}:
            return _refusal(403, "Pages of other servers may not ask here.")
        if site not in ("none", "same-origin") and not opened:
            return _refusal(403, "Pages of other servers may not ask here.")
        return None


def _refusal(status: int, sentence: str) -> Response:
    return Response(json.dumps({"error": sentence}), status, media_type="application/json")


async def _not_there(_: Request, error: Any) -> Response:
    return _refusal(error.status_code, "There is nothing here; use the address that was printed.")


async def serve_live(page: LivePage, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Serve a page on a listening socket until Ctrl-C. ready: called once it listens."""
    looking = asyncio.create_task(page.look())
    try:
        await serve_app(page.app(), opened, ready, page.stop)
    finally:
        page.stop()
        await looking
