"""Playwright with its driver inside: the Node.js program that speaks to Chromium runs where Chromium runs.

Chromium's answers are as hostile as a page that has taken it over, and so is whoever answers in the driver's
place. What comes out are Playwright's own JSON messages, bounded in length by `browser_relay.py`, which its
Python client checks one by one against the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import shlex
import signal
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

import playwright
from playwright.async_api import Playwright, async_playwright
from playwright.async_api._context_manager import PlaywrightContextManager

from pilotfish.sandbox.errors import SandboxError, SandboxUnavailable
from pilotfish.sandbox.process import Process

INNER_DRIVER = PurePosixPath("/opt/playwright")
_RELAY_SCRIPT = Path(__file__).with_name("browser_relay.py")
_NODE_VARIABLE = "PLAYWRIGHT_NODEJS_PATH"
_START_S, _STOP_S = 30.0, 1.0
_CREDENTIALS = struct.Struct("3i")  # number, user and group of who is at the other end of a socket

# Only one at a time may say in the environment what Playwright is to start; each loop waits without blocking.
_naming = threading.Lock()

# What the client logs of messages that it refuses is text from inside, not to be printed on a terminal.
logging.getLogger("playwright").addHandler(logging.NullHandler())
logging.getLogger("playwright").propagate = False


class Runner(Protocol):
    """What the driver needs of a sandbox."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | bytes | None = None,
        capture: bool = True,
        fds: Mapping[int, int] | None = None,
        own_sandbox: bool = False,
    ) -> Process: ...


def find_driver() -> Path:
    """The folder with Playwright's driver and its Node.js. Raises `SandboxUnavailable` without them."""
    folder = Path(inspect.getfile(playwright)).parent / "driver"
    if not os.access(folder / "node", os.X_OK):
        raise SandboxUnavailable(
            "Playwright's own Node.js is missing, it is needed for the browser: "
            "pip install --force-reinstall playwright"
        )
    return folder


class Driver:
    """A started driver. `playwright` is its client here; `is_running` turns false when the driver ends."""

    def __init__(self, box: Runner, folder: Path) -> None:
        self.playwright: Playwright | None = None
        self._box = box
        self._path = folder / "door"
        self._command = folder / "node"
        self._process: Process | None = None
        self._relay: int | None = None  # a descriptor of the process

    @classmethod
    async def start(cls, box: Runner, folder: Path) -> Driver:
        """Start the driver inside. folder: a private one, for the relay's socket.

        Raises `SandboxError` when it does not answer.
        """
        driver = cls(box, folder)
        try:
            async with asyncio.timeout(_START_S):
                await driver._start()
        except SandboxError:
            await driver.close()
            raise
        except Exception as error:  # Playwright's own, and a plain one where the driver ends as it starts
            await driver.close()
            raise SandboxError(
                f"the browser's driver could not start ({type(error).__name__}), the machine may be "
                "overloaded: try again."
            ) from error
        except BaseException:
            await driver.close()
            raise
        return driver

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int | None:
        """Its number inside."""
        return None if self._process is None else self._process.pid

    async def close(self) -> None:
        """End the driver, every browser that it started and the relay, at once."""
        process, self._process = self._process, None
        client, self.playwright = self.playwright, None
        stopping = None if client is None else asyncio.ensure_future(client.stop())
        await asyncio.sleep(0)  # so that the client knows that it is to hear nothing more
        try:
            if process is not None:
                with contextlib.suppress(SandboxError):
                    await process.kill()
        finally:
            self._end_relay()
        if stopping is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping, _STOP_S)

    def _end_relay(self) -> None:
        """It ends with the driver by itself, unless a signal holds it."""
        relay, self._relay = self._relay, None
        if relay is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(relay, signal.SIGKILL)
            os.close(relay)

    async def _start(self) -> None:
        relay = shlex.join([sys.executable, "-I", "-S", str(_RELAY_SCRIPT), str(self._path)])
        self._command.write_text(f'#!/bin/sh\nexec {relay} "$@"\n')
        self._command.chmod(0o700)
        self._path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(str(self._path))
            door.listen(1)
            door.setblocking(False)
            inside = asyncio.ensure_future(self._let_in(door))
            try:
                async with _named(str(self._command)):
                    manager = async_playwright()
                    client = asyncio.ensure_future(manager.start())
                    await inside
                    self.playwright = await client
                    _hear_of_its_end(manager)
            finally:
                inside.cancel()
                client.cancel()

    async def _let_in(self, door: socket.socket) -> None:
        """Start the driver with the two ends that the relay brings."""
        loop = asyncio.get_running_loop()
        relay, _ = await loop.sock_accept(door)
        with relay:
            peer = relay.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self._relay = os.pidfd_open(_CREDENTIALS.unpack(peer)[0])
            await _readable(relay)
            _, fds, _, _ = socket.recv_fds(relay, 1, 2, socket.MSG_CMSG_CLOEXEC)
            try:
                argv = [str(INNER_DRIVER / "node"), str(INNER_DRIVER / "package/cli.js"), "run-driver"]
                self._process = await self._box.run(
                    argv,
                    env={"PW_LANG_NAME": "python"},
                    capture=False,
                    fds=dict(enumerate(fds)),
                    own_sandbox=True,  # its child Chromium builds one
                )
            finally:
                for fd in fds:
                    os.close(fd)


def _hear_of_its_end(manager: PlaywrightContextManager) -> None:
    """Take the error that Playwright keeps when the driver ends, or asyncio prints it on the terminal.

    That it has ended is known here by its process.
    """
    client = manager._client
    assert client is not None
    client._transport.on_error_future.add_done_callback(
        lambda future: future.cancelled() or future.exception()
    )


@contextlib.asynccontextmanager
async def _named(command: str) -> AsyncIterator[None]:
    """Let Playwright start `command` in place of Node.js."""
    while not _naming.acquire(blocking=False):  # noqa: ASYNC110 - the other may be another thread's loop
        await asyncio.sleep(0.002)
    before = os.environ.get(_NODE_VARIABLE)
    os.environ[_NODE_VARIABLE] = command
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NODE_VARIABLE]
        else:
            os.environ[_NODE_VARIABLE] = before
        _naming.release()


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read, or the other side has gone."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
