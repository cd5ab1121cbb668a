"""Carries connections from 127.0.0.1:3128 inside a sandbox to the proxy's socket, which decides about them.

Run inside as a job, with the standard library only: `python3 -I -S relay.py SOCKET PORT`. It says "ready" on
standard output once it listens. Programs inside may kill it, or go to the socket themselves: nothing is
decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

MAX_CONNECTIONS = 512
CHUNK = 64 * 1024
LINGER_S = 1.0
GONE = "the proxy of this sandbox has ended, so no host can be reached; a new sandbox has a new one."


async def pump(source: socket.socket, sink: socket.socket) -> None:
    """Carry bytes one way, and then the end of them."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, CHUNK):
        await loop.sock_sendall(sink, data)
    sink.shutdown(socket.SHUT_WR)


async def visit(client: socket.socket, path: str) -> None:
    with client, socket.socket(socket.AF_UNIX) as proxy, contextlib.suppress(OSError):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        proxy.setblocking(False)
        try:
            await connect(proxy, path)
        except OSError:
            await say_gone(client)
            return
        ways = [asyncio.ensure_future(pump(client, proxy)), asyncio.ensure_future(pump(proxy, client))]
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def say_gone(client: socket.socket) -> None:
    """Answer, then read on for a moment: closing with something unread takes the answer along."""
    loop = asyncio.get_running_loop()
    head = f"HTTP/1.1 502 {GONE}\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    await loop.sock_sendall(client, f"{head}{GONE}\n".encode())
    client.shutdown(socket.SHUT_WR)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while await loop.sock_recv(client, CHUNK):
                pass


async def connect(proxy: socket.socket, path: str) -> None:
    """A full queue at a Unix socket is no reason to wait for the kernel, so it is tried again."""
    while True:
        try:
            proxy.connect(path)
        except BlockingIOError:
            await asyncio.sleep(0.02)
        else:
            return


async def main(path: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    print("ready", flush=True)
    slots = asyncio.Semaphore(MAX_CONNECTIONS)
    visits: set[asyncio.Task[None]] = set()

    def left(task: asyncio.Task[None]) -> None:
        visits.discard(task)
        slots.release()

    while True:
        await slots.acquire()
        client, _ = await loop.sock_accept(listener)
        client.setblocking(False)
        task = asyncio.ensure_future(visit(client, path))
        visits.add(task)
        task.add_done_callback(left)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
