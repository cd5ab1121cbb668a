"""The supervisor of a sandbox (`inside/guest.py`) as the host sees it: started, ready, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable

from pilotfish.sandbox.cgroup import ControlGroup
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.inside.processes import end_below, look_at, send_signal
from pilotfish.sandbox.janitor import Janitor
from pilotfish.sandbox.launch import Launch
from pilotfish.sandbox.levels import Level, without_level_3
from pilotfish.sandbox.link import Link
from pilotfish.sandbox.pieces import start_trouble
from pilotfish.sandbox.spawn import spawn

_START_S = 20.0
_CLOSE_S = 1.5
_SWEEP_S = 15.0
_LOOK_S = 0.1  # between two looks whether what is to begin has ended
_FROZEN_S = 0.25  # between two looks whether what is to end is frozen
_FORCE_S = 5.0


class Supervisor:
    """One supervisor, and at level 3 the bubblewrap that it is in. `link` leads to it once it is started."""

    def __init__(self, level: Level, without_level_3: bool = False) -> None:
        """without_level_3: where it cannot be started, say whether there is another way."""
        self.link: Link | None = None
        self.inner_pid: int | None = None
        """PID 1 of the namespaces by its number on the host; None below level 3."""
        self._level = level
        self._without_level_3 = without_level_3
        self._process: asyncio.subprocess.Process | None = None

    @property
    def outer_pid(self) -> int:
        """bubblewrap, or the supervisor itself below level 3; 0 before it is started."""
        return self._process.pid if self._process is not None else 0

    async def start(
        self, launch: Callable[[int, int], Launch], group: ControlGroup | None, janitor: Janitor
    ) -> None:
        """Return when it takes requests. `end` is to be called also when this fails.

        launch: makes the command, given the descriptors for its link and for bubblewrap's messages.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        status_read, status_write = os.pipe()
        command: Launch | None = None
        try:
            command = launch(theirs.fileno(), status_write)
            self._process = process = await spawn(
                *(group.entering(command.argv) if group else command.argv),
                keep=self._keep,
                pass_fds=[theirs.fileno(), status_write, *command.fds],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={},
                start_new_session=True,  # a Ctrl-C in the terminal is for us; we close the sandbox in order
            )
            theirs.close()
            os.close(status_write)
            status_write = -1
            await janitor.watch(process.pid)
            self.link = Link(ours)
            await self._until_ready(self.link, process)
            self.inner_pid = _inner_pid(status_read)
        except BaseException:
            if self.link is None:
                ours.close()
            raise
        finally:
            if command is not None:
                command.close()
            theirs.close()
            os.close(status_read)
            if status_write >= 0:
                os.close(status_write)

    def _keep(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def _until_ready(self, link: Link, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        deadline = time.monotonic() + _START_S
        while not link.ready.done() and time.monotonic() < deadline:
            if process.returncode is None:
                await asyncio.wait([link.ready], timeout=_LOOK_S)
            else:
                # A half of bubblewrap may live on without the other, and hold the link and its errors open.
                link.close()
                _kill_group(process.pid)
        if not link.ready.done():
            raise SandboxError(
                f"the sandbox was not ready after {_START_S:.0f} s, the machine may be overloaded: try again."
            )
        if link.ready.exception() is not None:
            said = await asyncio.wait_for(process.stderr.read(), _START_S)
            status = await asyncio.wait_for(process.wait(), _START_S)
            # Negative: itself; above 128: what is in it, as bubblewrap tells it.
            if not said and (number := -status if status < 0 else status - 128) > 0:
                raise SandboxError(f"the sandbox was killed by signal {number} while it started: try again.")
            trouble = start_trouble(said.decode("utf-8", "replace"))
            raise (without_level_3(trouble) if self._without_level_3 else trouble)

    async def end(self) -> None:
        """End it and everything inside, also when it is frozen. Bounded."""
        if self.link is not None:
            self.link.close()  # it ends at this end of file, and all others with it
        if (process := self._process) is None:
            return
        # Below level 3 it ends all programs itself, one by one.
        deadline = time.monotonic() + (_CLOSE_S if self._level == 3 else _SWEEP_S)
        while not _is_stopped(process.pid) and (left := deadline - time.monotonic()) > 0:
            if await _ended(process, min(left, _FROZEN_S)):
                return
        if self._level != 3:
            await asyncio.to_thread(end_below, process.pid, _FORCE_S)
        elif self.inner_pid is not None:
            # First the inner PID 1, so that bubblewrap still is there to collect it.
            send_signal(self.inner_pid, signal.SIGKILL)
            await _ended(process, _FROZEN_S)
        # Without a PID 1, a half of bubblewrap may wait for the other for ever; both are in one group.
        _kill_group(process.pid)
        await _ended(process, _FORCE_S)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


async def _ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Wait for its end, at most so long; whether it came."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), seconds)
        return True
    return False


def _is_stopped(pid: int) -> bool:
    entry = look_at(pid)
    return entry is not None and entry.is_stopped


def _inner_pid(status_fd: int) -> int | None:
    """The host's number of the sandbox's PID 1, from bubblewrap's status messages."""
    for line in os.read(status_fd, 4096).splitlines():
        with contextlib.suppress(ValueError, KeyError):
            return int(json.loads(line)["child-pid"])
    return None
