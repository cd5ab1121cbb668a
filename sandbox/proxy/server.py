"""The proxy of one sandbox: HTTP CONNECT and plain HTTP from a Unix socket to the hosts that are allowed.

It is a process of its own, because the owner's event loop stands still while the model computes, and because
what it reads is hostile. Started by root it becomes the sandbox's user, whom nobody is. Run with the standard
library only; standard input holds one line of JSON and then stays open: {"listener": descriptor, "rules":
["example.com:443"], "idle_s": 300, "user": null}. It ends with its owner, at the end of that file or by the
kernel.

On standard output goes "ready", then a line of JSON for each attempt, before anything is done for it, and
another one when an allowed one is over (`sandbox/network.py` reads them). Nothing is dialled while a line
cannot be written.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - found now, as the user that it becomes may not look
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from pilotfish.sandbox.proxy.carriage import CHUNK, Attempt, Carriage
from pilotfish.sandbox.proxy.request import MAX_HEAD, MAX_LINE, Refusal, answer, read_request
from pilotfish.sandbox.proxy.rules import Rule, is_public, rule_for, rule_of

MAX_CONNECTIONS = 256
PER_SECOND, AT_ONCE = 50, 500  # new connections; more wait, so that the record of them has a bounded size
HEAD_S, RESOLVE_S, DIAL_S, ANSWER_S = 10.0, 10.0, 5.0, 2.0
MAX_ADDRESSES = 4
PR_SET_PDEATHSIG = 1


class Proxy:
    """Serves what comes in at the listener until it is cancelled."""

    def __init__(self, listener: socket.socket, rules: Sequence[Rule], idle_s: float) -> None:
        self._listener = listener
        self._rules = rules
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._budget, self._filled = float(AT_ONCE), time.monotonic()
        self._visits: set[asyncio.Task[None]] = set()
        self._reporting = asyncio.Lock()

    async def serve(self) -> None:
        """Accept until cancelled; then end what is open and report it."""
        try:
            while True:
                await self._slots.acquire()
                await self._pace()
                try:
                    client, _ = await self._loop.sock_accept(self._listener)
                except OSError:  # no more descriptors, or a caller who left while waiting
                    self._slots.release()
                    await asyncio.sleep(0.1)
                    continue
                visit = asyncio.ensure_future(self._visit(client))
                self._visits.add(visit)
                visit.add_done_callback(self._left)
        finally:
            for visit in self._visits:
                visit.cancel()
            await asyncio.gather(*self._visits, return_exceptions=True)

    def _left(self, visit: asyncio.Task[None]) -> None:
        self._visits.discard(visit)
        self._slots.release()

    async def _pace(self) -> None:
        now = time.monotonic()
        self._budget = min(AT_ONCE, self._budget + (now - self._filled) * PER_SECOND) - 1
        self._filled = now
        if self._budget < 0:
            await asyncio.sleep(-self._budget / PER_SECOND)

    async def _visit(self, client: socket.socket) -> None:
        self._number += 1
        attempt = Attempt(self._number)
        began = time.monotonic()
        with client:
            try:
                await self._serve(client, attempt)
            except Refusal as refusal:
                attempt.host, attempt.port = refusal.host or attempt.host, refusal.port or attempt.port
                attempt.verdict = "failed" if refusal.status > 500 else "refused"
                attempt.why = str(refusal)
                # It is known before the program hears of it.
                await self._report(attempt, began)
                if not attempt.received:
                    with contextlib.suppress(OSError, TimeoutError):
                        await asyncio.wait_for(self._refuse(client, refusal), ANSWER_S)
            except OSError as error:  # one of the two sides has gone
                attempt.why = error.strerror or type(error).__name__
            except Exception as error:
                attempt.verdict, attempt.why = "failed", f"the proxy failed ({type(error).__name__})"
            finally:
                if attempt.verdict and not attempt.over:
                    await self._report(attempt, began)

    async def _report(self, attempt: Attempt, began: float | None = None) -> None:
        """Hand a record over. began: when the attempt began, if it is over."""
        if began is not None:
            attempt.over, attempt.seconds = True, round(time.monotonic() - began, 3)
        line = memoryview(json.dumps(vars(attempt)).encode() + b"\n")
        async with self._reporting:
            while line:
                try:
                    line = line[os.write(1, line) :]
                except BlockingIOError:
                    await _ready(self._loop.add_writer, self._loop.remove_writer, 1)
                except BrokenPipeError:
                    os._exit(0)  # nobody would know what is done from here on

    async def _refuse(self, client: socket.socket, refusal: Refusal) -> None:
        await self._loop.sock_sendall(client, answer(refusal.status, str(refusal)))
        client.shutdown(socket.SHUT_WR)
        # A connection that is closed with something unread in it takes the answer along.
        while await self._loop.sock_recv(client, CHUNK):
            pass

    async def _serve(self, client: socket.socket, attempt: Attempt) -> None:
        try:
            head, rest = await asyncio.wait_for(self._read_head(client), min(HEAD_S, self._idle_s))
        except TimeoutError:
            raise Refusal("the request was not whole in time, send its head at once.", 408) from None
        if not head:
            return
        request = read_request(head)
        attempt.method, attempt.host, attempt.port = request.method, request.host, request.port
        server = await self._dial(attempt)
        with server:
            if request.tunnel:
                await self._loop.sock_sendall(client, b"HTTP/1.1 200 Connection established\r\n\r\n")
            await Carriage(client, server, request, attempt, self._idle_s).carry(rest)

    async def _read_head(self, client: socket.socket) -> tuple[bytes, bytes]:
        """The head of a request and what came after it; nothing when the other side asked for nothing."""
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            if b"\n" in data.replace(b"\r\n", b""):
                raise Refusal("the request has a line that does not end in CR and LF.", 400)
            if len(data) > MAX_HEAD or max(map(len, data.split(b"\n"))) > MAX_LINE:
                raise Refusal(f"the request has a line of over {MAX_LINE} bytes or too many of them.", 431)
            more = await self._loop.sock_recv(client, CHUNK)
            if not more and data:
                raise Refusal("the request ended in its head.", 400)
            if not more:
                return b"", b""
            data += more
        if end > MAX_HEAD or max(map(len, data[:end].split(b"\r\n"))) > MAX_LINE:
            raise Refusal(f"the request has a line of over {MAX_LINE} bytes or too many of them.", 431)
        return bytes(data[: end + 4]), bytes(data[end + 4 :])

    async def _dial(self, attempt: Attempt) -> socket.socket:
        """A connection to the host, at an address that was looked at."""
        name, port = attempt.host, attempt.port
        rule = rule_for(self._rules, name, port)
        if rule is None:
            raise Refusal(
                f"{name}:{port} is not allowed here; the user can allow it with --allow-host {name}:{port}."
            )
        places = [rule.to] if rule.to else await self._look_up(name, port)
        attempt.verdict = "allowed"
        await self._report(attempt)
        why = ""
        for address, at in places[:MAX_ADDRESSES]:
            server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            try:
                server.setblocking(False)
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.wait_for(self._loop.sock_connect(server, (address, at)), DIAL_S)
            except OSError as error:  # a TimeoutError is one
                server.close()
                why = os.strerror(error.errno) if error.errno else f"no answer in {DIAL_S:g} s"
            except BaseException:
                server.close()
                raise
            else:
                return server
        raise Refusal(f"{name}:{port} is allowed and could not be reached ({why}), try later.", 502)

    async def _look_up(self, name: str, port: int) -> list[tuple[str, int]]:
        """The public addresses of an allowed name."""
        looking = self._loop.getaddrinfo(name.encode(), port, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.wait_for(looking, RESOLVE_S)
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or f"no answer in {RESOLVE_S:g} s"
            raise Refusal(f"{name} is allowed and could not be looked up ({why}), check it.", 502) from None
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        public = [address for address in addresses if is_public(address)]
        if not public:
            raise Refusal(
                f"{name} leads to {', '.join(addresses[:MAX_ADDRESSES])}, which is not public; for a "
                f"machine of their own the user can give --allow-host {name}:{port}=ADDRESS:PORT."
            )
        return [(address, port) for address in public]


async def _ready(add: Callable[..., Any], remove: Callable[[int], Any], fd: int) -> None:
    """Wait until a descriptor can be used."""
    event = asyncio.Event()
    add(fd, event.set)
    try:
        await event.wait()
    finally:
        remove(fd)


def _read_config() -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit(0)  # the owner ended before it had said anything
        line += piece
    config: dict[str, Any] = json.loads(line)
    return config


def _become(user: int | None) -> None:
    """Give up what root has, and end when the owner does."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    owner = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != owner:
        sys.exit(0)


async def _run(config: dict[str, Any]) -> None:
    listener = socket.socket(fileno=config["listener"])
    listener.setblocking(False)
    os.write(1, b"ready\n")
    os.set_blocking(1, False)
    proxy = Proxy(listener, [rule_of(pattern) for pattern in config["rules"]], config["idle_s"])
    serving = asyncio.ensure_future(proxy.serve())
    loop = asyncio.get_running_loop()
    await _ready(loop.add_reader, loop.remove_reader, 0)
    listener.close()
    serving.cancel()
    await asyncio.wait([serving])


def main() -> None:
    """Serve until the owner closes standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the owner
    config = _read_config()
    _become(config["user"])
    asyncio.run(_run(config))
    os._exit(0)  # a thread that still waits for a name must not keep the process
