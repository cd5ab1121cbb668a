"""The owner's end of a sandbox's network: starts proxy and relay, hears of what programs try."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pilotfish.sandbox.bwrap import INNER_NETWORK
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.network import PROXY_URL, Network, NetworkLog
from pilotfish.sandbox.pieces import find_python
from pilotfish.sandbox.process import Process, bytes_fd
from pilotfish.sandbox.spawn import spawn

# Runs one module of this package without the rest of it, which would bring Playwright and more along.
_BOOT = """
import sys, types
for name in ("pilotfish", "pilotfish.sandbox"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["pilotfish.sandbox"].__path__ = [sys.argv[1]]
from pilotfish.sandbox.proxy.server import main
main()
"""
_RELAY_SCRIPT = Path(__file__).with_name("relay.py")
_RELAY_FD = 3
_READY_S, _END_S = 10.0, 1.0
_BATCH_S = 0.05  # what comes in this time is told at once: a log may wait for its disk each time
_PAUSE_S, _LONGEST_PAUSE_S, _STEADY_S = 0.05, 5.0, 10.0


class _Box(Protocol):
    @property
    def is_open(self) -> bool: ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        capture: bool = True,
        fds: Mapping[int, int] | None = None,
        keep: bool = False,
    ) -> Process: ...


class Gateway:
    """The proxy of one sandbox, a process of the host, and the relay to it inside.

    `socket` is the host path of what is shown inside.
    """

    def __init__(self, proxy: asyncio.subprocess.Process, path: Path, log: NetworkLog) -> None:
        self.socket = path
        self.proxy = proxy
        self._log = log
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._hearing = asyncio.ensure_future(self._hear())
        self._keeping: asyncio.Task[None] | None = None
        self._closing = False

    @classmethod
    async def start(cls, network: Network, folder: Path, user: int | None, log: NetworkLog) -> Gateway:
        """Start the proxy. folder: a private one for its socket; user: who it becomes, if not us."""
        path = folder / "proxy"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(1024)
            number = listener.fileno()
            proxy = await spawn(
                sys.executable,
                *("-I", "-S", "-c", _BOOT, str(Path(__file__).parent)),
                pass_fds=[number],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        gateway = cls(proxy, path, log)
        config = {"listener": number, "rules": network.allow, "idle_s": network.idle_s, "user": user}
        assert proxy.stdin is not None
        with contextlib.suppress(OSError):  # it is told by the end of its output
            proxy.stdin.write(json.dumps(config).encode() + b"\n")
            await proxy.stdin.drain()
        return gateway

    async def start_relay(self, box: _Box) -> None:
        """Have 127.0.0.1:3128 inside lead to the proxy. A relay that ends is started again."""
        if not await self._ready:
            raise SandboxError(
                "the network's proxy could not start, the machine may be overloaded: try again."
            )
        relay = await self._relay(box)
        self._keeping = asyncio.ensure_future(self._keep(box, relay))

    async def close(self) -> None:
        """End the proxy, after it has told what became of what was still open."""
        self._closing = True
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        assert self.proxy.stdin is not None
        self.proxy.stdin.close()
        done, _ = await asyncio.wait([self._hearing], timeout=_END_S)
        if not done:
            with contextlib.suppress(ProcessLookupError):
                self.proxy.kill()
        await self._hearing
        await self.proxy.wait()

    async def _hear(self) -> None:
        assert self.proxy.stdout is not None
        self._ready.set_result(bool(await self.proxy.stdout.readline()))
        rest = b""
        while data := await self.proxy.stdout.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            self._log.add(lines)
            if not self._closing:
                await asyncio.sleep(_BATCH_S)
        if not self._closing:
            status = await self.proxy.wait()
            self._log.trouble(
                f"the network's proxy has ended (status {status}), so no host can be reached; "
                "open a new sandbox."
            )

    async def _keep(self, box: _Box, relay: Process) -> None:
        loop = asyncio.get_running_loop()
        pause, said = _PAUSE_S, False
        while True:
            began = loop.time()
            await relay.wait_gone()
            if not box.is_open:
                return
            if not said:
                how = "frozen" if relay.is_stopped else "ended"
                self._log.trouble(f"the network's relay was {how} by a program inside, it is started again.")
            said = True
            pause = _PAUSE_S if loop.time() - began > _STEADY_S else min(2 * pause, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause)
            with contextlib.suppress(SandboxError):
                relay = await self._relay(box)

    async def _relay(self, box: _Box) -> Process:
        """A relay that listens. Raises `SandboxError`."""
        read, write = os.pipe()
        script = bytes_fd(_RELAY_SCRIPT.read_bytes())
        argv = [find_python()[0], "-I", "-S", f"/proc/self/fd/{_RELAY_FD}"]
        try:
            try:
                fds = {1: write, _RELAY_FD: script}
                port = PROXY_URL.rpartition(":")[2]
                argv += [INNER_NETWORK, port]
                relay = await box.run(argv, cwd="/", capture=False, fds=fds, keep=True)
            finally:
                os.close(write)
                os.close(script)
            relay.on_trouble(relay.kill_soon)  # one that is frozen; for another it comes too late
            if not await _says_ready(read):
                await relay.kill()
                raise SandboxError("the network's relay could not listen inside, end what has its port.")
        finally:
            os.close(read)
        return relay


async def _says_ready(fd: int) -> bool:
    """Whether something is written into a pipe before it is closed, or never."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        async with asyncio.timeout(_READY_S):
            await ready.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return bool(os.read(fd, 16))
