"""Attacks on a sandbox that may reach one host: everything else has to stay out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence

from pilotfish.sandbox.box import Sandbox
from pilotfish.sandbox.levels import Level
from pilotfish.sandbox.network import Network
from pilotfish.sandbox.scenes import Scene
from pilotfish.sandbox.spec import SandboxSpec

_SECONDS = 30.0
ALLOWED = "ok.test"

# Sends each request to a proxy and prints the first word that counts of each answer.
_ASK = """
import json, socket, sys
port, requests = json.load(sys.stdin)
for request in requests:
    with socket.create_connection(("127.0.0.1", port), 10) as proxy:
        proxy.sendall(request.encode("latin-1"))
        said = b""
        while b"\\n" not in said and (data := proxy.recv(4096)): said += data
        print(said.split(b" ")[1].decode() if b" " in said else "nothing")
"""

# A proxy of the attacker's own, which hands everything on to the real one.
_HAND_ON = """
import socket, sys, threading
def carry(a, b):
    while data := a.recv(4096): b.sendall(data)
    b.shutdown(1)
with socket.create_server(("127.0.0.1", 9999)) as server:
    print("ready", flush=True)
    while True:
        client, _ = server.accept()
        proxy = socket.create_connection(("127.0.0.1", 3128))
        threading.Thread(target=carry, args=(client, proxy)).start()
        threading.Thread(target=carry, args=(proxy, client)).start()
"""

ADDRESSES = (
    "127.1",
    "127.0.0.1",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "017700000001",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "169.254.169.254",
    "10.0.0.1",
)
"""Spellings of addresses; each of those of this machine is one to the C library too."""

HOSTS = (
    *ADDRESSES,
    f"{ALLOWED}\0.evil.test",
    f"evil.test\0.{ALLOWED}",
    f"evil.test%00.{ALLOWED}",
    f"{ALLOWED}@evil.test",
    f"evil.test#.{ALLOWED}",
    f"evil.test\\.{ALLOWED}",
    f"evil.test/.{ALLOWED}",
    f"evil.test?.{ALLOWED}",
    f"x{ALLOWED}",
    f"sub.{ALLOWED}",
    f"{ALLOWED}.",
    f"{ALLOWED}..",
    f".{ALLOWED}",
    f"{ALLOWED}%2e",
    "\u00f6k.test",
    "*",
    "*.test",
    "",
    "localhost",
)
"""Names that are not the allowed one, whoever reads them."""


def requests(host: str, port: int) -> list[str]:
    """A host in both kinds of request."""
    return [
        f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n",
        f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n",
    ]


def odd_requests(port: int) -> list[str]:
    """Requests for the allowed host that somebody could read as ones for another."""
    plain = f"{ALLOWED}:{port}"
    return [
        f"CONNECT\t{plain} HTTP/1.1\r\n\r\n",
        f"CONNECT {plain}\tHTTP/1.1\r\n\r\n",
        f"CONNECT  {plain} HTTP/1.1\r\n\r\n",
        f"CONNECT {plain} evil.test:80 HTTP/1.1\r\n\r\n",
        f"CONNECT {plain} HTTP/2.0\r\n\r\n",
        f"CONNECT {ALLOWED} HTTP/1.1\r\n\r\n",
        f"CONNECT {ALLOWED}:0{port} HTTP/1.1\r\n\r\n",
        f"CONNECT {ALLOWED}:+{port} HTTP/1.1\r\n\r\n",
        f"CONNECT {ALLOWED}:{port + 65536} HTTP/1.1\r\n\r\n",
        f"CONNECT {ALLOWED}:{port % 65535 + 1} HTTP/1.1\r\n\r\n",
        f"CONNECT {plain} HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n",
        f"GET http://{plain}/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        f"GET http://{plain}/ HTTP/1.1\r\nHost: {plain}\r\nHost: evil.test\r\n\r\n",
        f"GET http://{plain}/ HTTP/1.1\r\nHost : evil.test\r\n\r\n",
        f"GET http://{plain}/ HTTP/1.1\r\nX: 1\r\n Host: evil.test\r\n\r\n",
        f"GET http://{plain}/ HTTP/1.1\r\nX: 1\rHost: evil.test\r\n\r\n",
        f"GET http://{plain}/ HTTP/1.1\nHost: {plain}\n\n",
        f"GET http://user@{plain}/ HTTP/1.1\r\n\r\n",
        f"GET http://user:word@{plain}/ HTTP/1.1\r\n\r\n",
        f"GET http://{plain}#evil.test/ HTTP/1.1\r\n\r\n",
        f"GET HTTP://{plain}/ HTTP/1.1\r\n\r\n",
        f"GET https://{plain}/ HTTP/1.1\r\n\r\n",
        f"GET ftp://{plain}/ HTTP/1.1\r\n\r\n",
        f"GET //{plain}/ HTTP/1.1\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {plain}\r\n\r\n",
        f"GET http://{plain}/{'a' * 20_000} HTTP/1.1\r\nHost: {plain}\r\n\r\n",
        f"GET http://{plain}/ HTTP/1.1\r\nX: {'a' * 20_000}\r\n\r\n",
        f"POST http://{plain}/ HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        f"POST http://{plain}/ HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc",
        f"POST http://{plain}/ HTTP/1.1\r\nContent-Length: -3\r\n\r\nabc",
        f"POST http://{plain}/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ]


REFUSED = ("400", "403", "431")


@contextlib.contextmanager
def host_server() -> Iterator[int]:
    """A server of the host on 127.0.0.1 that greets everybody; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, contextlib.suppress(OSError):
                    client.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi")
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(4096):
                        pass

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


async def ask(box: Sandbox, wanted: Sequence[str], port: int = 3128) -> list[str]:
    """The status that each request gets inside, from whoever listens at that port."""
    request = json.dumps([port, list(wanted)]).encode()
    process = await box.run(["python3", "-c", _ASK], stdin=request)
    await process.wait(_SECONDS)
    return process.output.split()


def spec(port: int, *more: str) -> SandboxSpec:
    """A sandbox that may reach `ALLOWED`, which is a server of this machine."""
    return SandboxSpec(desktop=False, network=Network((f"{ALLOWED}:{port}=127.0.0.1:{port}", *more)))


async def spellings(level: Level) -> tuple[str, str]:
    """Every odd spelling is refused, the plain one served; outside, addresses lead to this machine."""
    with host_server() as port:
        wanted = [one for host in HOSTS for one in requests(host, port)] + odd_requests(port)
        async with Sandbox.open(spec(port)) as box:
            found = await ask(box, wanted)
            plain = await ask(box, requests(ALLOWED, port))
        let_by = [one for one, status in zip(wanted, found, strict=True) if status not in REFUSED]
        reached = [host for host in ADDRESSES[:6] if _reaches(host, port)]
    return f"{len(let_by)} let by", "yes" if plain == ["200", "200"] and len(reached) == 6 else "no"


def _reaches(host: str, port: int) -> bool:
    with socket.create_connection((host, port), 5) as server:
        return server.recv(12) == b"HTTP/1.1 200"


async def through_own_proxy(level: Level) -> tuple[str, str]:
    """A program inside that hands requests on gets no more than others."""
    with host_server() as port:
        async with Sandbox.open(spec(port)) as box:
            helper = await box.run(["python3", "-c", _HAND_ON])
            while "ready" not in helper.output and helper.is_running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            refused = await ask(box, requests("evil.test", port), 9999)
            served = await ask(box, requests(ALLOWED, port), 9999)
    return " ".join(refused), "yes" if served == ["200", "200"] else "no"


async def rebinding(level: Level) -> tuple[str, str]:
    """An allowed name that leads to this machine itself."""
    with host_server() as port:
        async with Sandbox.open(spec(port, f"localhost:{port}")) as box:
            found = await ask(box, requests("localhost", port))
        return " ".join(found), "yes" if _reaches("localhost", port) else "no"


async def names(level: Level) -> tuple[str, str]:
    """There are no names inside, allowed or not; outside there are."""
    code = f"import socket; socket.getaddrinfo({ALLOWED!r}, 80)"
    with host_server() as port:
        async with Sandbox.open(spec(port)) as box:
            process = await box.run(["python3", "-c", code])
            await process.wait(_SECONDS)
    said = process.output.strip().splitlines()[-1].partition(":")[0]
    return said, "yes" if socket.getaddrinfo("localhost", 80) else "no"


NETWORK_SCENES = (
    Scene("D2c", "look up a name, with a host allowed", names, "socket.gaierror", levels=(3,)),
    Scene("D3", "other spellings at the proxy", spellings, "0 let by", levels=(3,)),
    Scene("D4", "through a proxy inside", through_own_proxy, "403 403", levels=(3,)),
    Scene("D6", "an allowed name that leads home", rebinding, "403 403", levels=(3,)),
)
