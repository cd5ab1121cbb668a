"""The way into the sandbox for Chromium: Playwright starts a relay outside, the program starts inside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.pieces import Chromium
from pilotfish.sandbox.process import Process

_RELAY_SCRIPT = Path(__file__).with_name("browser_relay.py")
_PROFILE = "/home/user/.chromium"
_MAX_ARGUMENTS = 128 * 1024

# A browser that never ran before, with its window's frame left to the window manager.
_PREFERENCES = {"browser": {"custom_chrome_frame": False, "has_seen_welcome_page": True}}
_PREPARE = f"rm -rf {_PROFILE} && mkdir -p {_PROFILE}/Default && cat > {_PROFILE}/Default/Preferences"


class Runner(Protocol):
    """What the door needs of a sandbox."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: int | bytes | None = None,
        capture: bool = True,
        fds: Mapping[int, int] | None = None,
        own_sandbox: bool = False,
    ) -> Process: ...


class BrowserDoor:
    """Listens for `browser_relay.py` and starts Chromium inside with the relay's arguments and descriptors.

    command: the program that Playwright is to start.
    """

    def __init__(self, box: Runner, folder: Path, chromium: Chromium) -> None:
        self._box = box
        self._chromium = chromium
        self._process: Process | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self._path = folder / "door"
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self._path))
        self._listener.listen(4)
        self._listener.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept())
        self.command = folder / "chromium"
        relay = shlex.join([sys.executable, "-I", "-S", str(_RELAY_SCRIPT), str(self._path)])
        self.command.write_text(f'#!/bin/sh\nexec {relay} "$@"\n')
        self.command.chmod(0o700)

    @property
    def process_alive(self) -> bool:
        """Whether a Chromium that came through this door runs."""
        return self._process is not None and self._process.is_running

    async def close(self) -> None:
        """Close the door and kill what came through it."""
        self._accepting.cancel()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for visit in self._visits:
            visit.cancel()
        if self._visits:
            await asyncio.wait(self._visits)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            relay, _ = await loop.sock_accept(self._listener)
            relay.setblocking(False)
            visit = asyncio.ensure_future(self._serve(relay))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)

    async def _serve(self, relay: socket.socket) -> None:
        """Start the program of one relay and tell it the status; when the relay dies, kill the program."""
        with relay:
            await _readable(relay)
            data, fds, _, _ = socket.recv_fds(relay, _MAX_ARGUMENTS, 8, socket.MSG_CMSG_CLOEXEC)
            try:
                process = self._process = await self._start(json.loads(data), fds)
            except (SandboxError, ValueError):
                _tell(relay, 127)
                return
            finally:
                for fd in fds:
                    os.close(fd)
            hung_up = asyncio.ensure_future(_readable(relay))
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.wait([hung_up, ended], return_when=asyncio.FIRST_COMPLETED)
            finally:
                hung_up.cancel()
                ended.cancel()
                with contextlib.suppress(SandboxError):
                    await process.kill()
                _tell(relay, -9 if process.returncode is None else process.returncode)

    async def _start(self, arguments: list[str], fds: list[int]) -> Process:
        # Playwright names a profile folder of the host; inside, the profile lives in memory.
        arguments = [word for word in arguments if not word.startswith("--user-data-dir=")]
        profile = await self._box.run(["sh", "-c", _PREPARE], stdin=json.dumps(_PREFERENCES).encode())
        await profile.wait()
        argv = [str(self._chromium.inner), f"--user-data-dir={_PROFILE}", *arguments]
        return await self._box.run(argv, capture=False, fds=dict(enumerate(fds)), own_sandbox=True)


def _tell(relay: socket.socket, status: int) -> None:
    with contextlib.suppress(OSError):  # it may be dead
        relay.send(str(status).encode())


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read, or the other side has gone."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
