"""The trusted end of one session of the shell: sends commands in, hears what became of them.

What comes back is read as hostile: anything that is not one of the packets listed in `inside/session.py` ends
the session with all that runs in it, and the next command starts a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import marshal
import os
import socket
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any, Literal

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.inside.session import MAX_PACKET
from pilotfish.sandbox.link import Link
from pilotfish.sandbox.output import BoundedOutput
from pilotfish.sandbox.pieces import find_python
from pilotfish.sandbox.process import bytes_fd

_INSIDE = Path(__file__).with_name("inside")
_NEEDED = ("__init__", "bash", "log", "processes", "pty", "session", "waiting")
_MODULES_FD, _CONTROL_FD, _MASTER_FD, _SLAVE_FD = 3, 4, 5, 6
_BACKGROUND_BYTES = 4 * 1024
_START_S = 20.0
_GONE_S = 15.0
_STOP_S = 3.0  # how long the inner side may take to end a command before its whole session is ended
_PACKETS_AT_ONCE = 16  # before other work of the event loop gets its turn

_MAX_PATH = 4096

State = Literal["idle", "running", "waiting"]


@dataclass(frozen=True)
class Done:
    """A command is over. `cwd` is where the next one starts; the rest as in `inside/session.py`."""

    status: int
    cwd: str
    killed: bool = False
    gone: str | None = None
    ended: str | None = None
    log: str | None = None


@dataclass(frozen=True)
class Waiting:
    """The command waits for something to be typed, as seen after so many turns. hidden: it is not shown."""

    turn: int
    program: str
    hidden: bool


@dataclass(frozen=True)
class Refused:
    """The folder could not be entered, so nothing was run."""

    errno: int


Event = Done | Waiting | Refused


class SessionLost(Exception):
    """The inner side is gone; nothing more will be heard of it."""


@cache
def _modules() -> bytes:
    """The inner side as one archive that Python runs, so that nothing needs to be mounted for it."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for folder in ("pilotfish", "pilotfish/sandbox"):
            file.writestr(f"{folder}/__init__.py", "")
        for path in (_INSIDE / f"{name}.py" for name in _NEEDED):
            name = f"pilotfish/sandbox/inside/{path.name}"
            file.writestr(name, path.read_bytes())
            file.writestr(f"{name}c", _compiled(path))
        file.writestr("__main__.py", "from pilotfish.sandbox.inside.session import main\n\nmain()\n")
    return archive.getvalue()


def _compiled(path: Path) -> bytes:
    """A module as a Python of this version takes it without a look at its source; another reads the source.

    The format is that of PEP 552: magic number, flags (1: hash-based, not checked), hash, code.
    """
    code = compile(path.read_bytes(), path.name, "exec", dont_inherit=True)
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


class ShellSession:
    """One bash on a terminal: start a command or type, then wait for the next `event`, or `stop` it.

    `state` is `idle`, `running` or `waiting`; `finished` is the end of a command that was left waiting, until
    somebody asks for it. The caller holds `turn`.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        env: Mapping[str, str],
        limits: Mapping[str, int],
        workspace: str,
        cwd: str,
        bring_terminal: bool = False,
    ) -> None:
        """cwd: the folder inside where it starts; if that is gone, in the workspace.

        bring_terminal: open its terminal here, for it.
        """
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Future[Event] | None = None
        self._begun = asyncio.Event()  # or it never will
        self._turn = 0
        self._output = BoundedOutput()
        self._background = BoundedOutput(_BACKGROUND_BYTES)
        self.state: State = "idle"
        self.finished: Done | None = None
        self.program = ""
        self.cwd = cwd
        self.turn = asyncio.Lock()
        self.is_open = True
        folder = f"{env.get('TMPDIR', '/tmp')}/pilotfish-shell"
        argv = [find_python()[0], "-I", "-S", f"/proc/self/fd/{_MODULES_FD}"]
        argv += [str(_CONTROL_FD), name, folder, cwd]
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        fds = {_CONTROL_FD: theirs.detach(), _MODULES_FD: bytes_fd(_modules())}
        try:
            if bring_terminal:
                fds[_MASTER_FD], fds[_SLAVE_FD] = os.openpty()
                argv += [str(_MASTER_FD), str(_SLAVE_FD)]
            self._job = link.spawn(argv, env, workspace, fds, limits, keep=True)
        except BaseException:
            self._socket.close()
            raise
        finally:
            for fd in fds.values():
                os.close(fd)
        self._loop.add_reader(self._socket, self._readable)
        self._job.gone.add_done_callback(lambda _: self.close())
        # Frozen, it would be noticed at the time limit only.
        self._job.stopped.add_done_callback(lambda stopped: None if stopped.cancelled() else self.end())

    async def start(self, command: bytes, cwd: str | None) -> None:
        """Start a command. One that is still being stopped is waited for, and the first start of bash."""
        if self.state == "running":
            await self.stop()
        self.finished = None
        self._output = BoundedOutput()
        self.state = "running"
        self._turn += 1
        self._expect()
        await self._send(b"r" + json.dumps({"turn": self._turn, "cwd": cwd}).encode() + b"\0" + command)
        try:
            if not self._begun.is_set():
                await asyncio.wait_for(self._begun.wait(), _START_S)
        except TimeoutError:
            self.end()
        except asyncio.CancelledError:
            self.stop_soon()
            raise

    async def type(self, data: bytes) -> None:
        """Type at the terminal of the command that waits; nothing: see whether it still does."""
        self.state = "running"
        self._turn += 1
        self._expect()
        await self._send(b"t" + json.dumps({"turn": self._turn}).encode() + b"\0" + data)

    async def event(self) -> Event:
        """The next thing to be known of the command that runs.

        When the inner side itself was ended, that ended the command too. Raises `SandboxError` when the
        whole sandbox has ended, or the session could not be started.
        """
        if self.finished is not None:
            done, self.finished = self.finished, None
            return done
        if not self.is_open:
            return await self._lost()
        try:
            return await (self._next or self._expect())
        except SessionLost:
            return await self._lost()
        finally:
            self._next = None

    def _expect(self) -> asyncio.Future[Event]:
        """From now on an event is kept for whoever asks for it."""
        self._next = self._loop.create_future()
        self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._next

    async def stop(self) -> Done:
        """End what runs, with everything that it started; earlier jobs and the session stay.

        When the inner side does not manage it in time, the whole session is ended.
        """
        try:
            async with asyncio.timeout(_STOP_S):
                if self.finished is None:
                    await self._send(b"k")
                while not isinstance(event := await self.event(), Done):
                    pass
                return event
        except TimeoutError:
            self.end()
            return await self._lost()

    def stop_soon(self) -> None:
        """Ask for the end without waiting for it."""
        with contextlib.suppress(OSError):
            self._socket.send(b"k")

    def take_output(self) -> BoundedOutput:
        """What the command has printed since the last time."""
        output, self._output = self._output, BoundedOutput()
        return output

    def take_background(self) -> BoundedOutput:
        """What was printed while no command ran, since the last time."""
        output, self._background = self._background, BoundedOutput(_BACKGROUND_BYTES)
        return output

    def end(self) -> None:
        """End the session and everything that was ever started in it."""
        with contextlib.suppress(SandboxError):
            self._link.kill(self._job)
        self.close()

    def freeze(self) -> None:
        """Stop everything that was ever started in the session where it is; it takes no command any more."""
        with contextlib.suppress(SandboxError):
            self._link.freeze(self._job)

    async def is_gone(self) -> bool:
        """Whether nothing of an ended session runs any more, as soon as it is so; bounded."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._job.gone), _GONE_S)
            return True
        return False

    def close(self) -> None:
        """Let go of the socket; the inner side ends with it."""
        if not self.is_open:
            return
        self.is_open = False
        self.state = "idle"
        self._begun.set()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._next is not None and not self._next.done():
            self._next.set_exception(SessionLost())

    async def _send(self, packet: bytes) -> None:
        try:
            if self.is_open:
                await self._loop.sock_sendall(self._socket, packet)
        except OSError:
            self.end()

    async def _lost(self) -> Done:
        """What to say of a session that is over. The end of the whole sandbox is heard a moment later."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._job.gone), _STOP_S)
        failed = self._job.started.exception() if self._job.started.done() else None
        if isinstance(failed, SandboxError):
            raise failed
        if not self._link.is_open:
            raise SandboxError(self._link.reason)
        return Done(137, self.cwd, ended="lost")

    def _readable(self) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            if not self.is_open:
                return
            try:
                # recv, not recvmsg: descriptors sent out of the sandbox are dropped
                packet = self._socket.recv(MAX_PACKET)
                self._hear(packet[:1], packet[1:])
            except BlockingIOError:
                return
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                self.end()

    def _hear(self, kind: bytes, rest: bytes) -> None:
        if kind == b"o":
            self._output.feed(rest)
        elif kind == b"b":
            self._background.feed(rest)
        elif kind == b"j":
            self._hear_event(_event(json.loads(rest)))
        else:
            raise ValueError(kind)

    def _hear_event(self, event: Event | None) -> None:
        self._begun.set()
        if event is None:
            return
        if isinstance(event, Waiting):
            if event.turn != self._turn:
                return  # it was looked at before it got what was typed since
            self.state, self.program = "waiting", event.program
        else:
            self.state = "idle"
        if isinstance(event, Done):
            self.cwd = event.cwd
        if self._next is not None and not self._next.done():
            self._next.set_result(event)
        elif isinstance(event, Done):
            self.finished = event


def _event(message: dict[str, Any]) -> Event | None:
    """What a message says; None for the beginning of the first command."""
    match message["event"]:
        case "begun":
            return None
        case "done":
            texts = [message[name] for name in ("gone", "ended", "log")]
            if not all(text is None or isinstance(text, str) for text in texts):
                raise ValueError(texts)
            status, cwd = int(message["status"]), str(message["cwd"])
            if "\0" in cwd or len(cwd) > _MAX_PATH:
                raise ValueError(cwd)
            return Done(status, cwd, bool(message["killed"]), *texts)
        case "waiting":
            return Waiting(int(message["turn"]), str(message["program"])[:40], bool(message["hidden"]))
        case "refused":
            return Refused(int(message["errno"]))
        case other:
            raise ValueError(other)
