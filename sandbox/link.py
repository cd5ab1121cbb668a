"""The trusted end of the control socket: has the guest start and kill programs, hears what became of them.

Descriptors travel only into the sandbox. What comes back is read as hostile: anything that is not one of the
messages listed in `guest.py` ends the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import marshal
import os
import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.inside.guest import HIGH_FD, MAX_FDS, MAX_MESSAGE

_MAX_REPLY = 4096
_ENDED = "the sandbox has ended, open a new one."
_MAX_HITS = 100


@dataclass(eq=False)
class Job:
    """One program inside and everything that it started.

    `started` and `ended` raise `SandboxError` when it cannot start and when the sandbox ends under it.
    """

    number: int
    program: str
    cwd: str
    started: asyncio.Future[int] = field(repr=False)  # its process id inside
    ended: asyncio.Future[int] = field(
        repr=False
    )  # exit status of the program itself; -N: killed by signal N
    gone: asyncio.Future[None] = field(repr=False)  # nothing that it started is left
    stopped: asyncio.Future[None] = field(
        repr=False
    )  # it is to be kept, and a signal such as SIGSTOP holds it


@dataclass(frozen=True)
class Hit:
    """A limit that was reached. kind: `memory`, `processes`, `folder`, `disk free` or `disk growth`.

    job: the number of the one whose program was ended, else 0; program: its name as the kernel keeps it, or
    the folder that is full; size: its bytes, those left on the disk, or the limit.
    """

    kind: str
    job: int
    program: str
    size: int


class Link:
    """Requests and reports over one SOCK_SEQPACKET socket, within one event loop."""

    def __init__(self, control: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = control
        self._socket.setblocking(False)
        self._jobs: dict[int, Job] = {}
        self._last_number = 0
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._open = True
        self.reason = _ENDED
        self._hits: list[Hit] = []
        self._looks: deque[asyncio.Future[None]] = deque()
        self.ready: asyncio.Future[None] = self._future()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._socket, self._readable)

    @property
    def is_open(self) -> bool:
        return self._open

    def _future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        # A job that nobody waits for must not print "exception was never retrieved" when the sandbox ends.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        fds: Mapping[int, int],
        limits: Mapping[str, int],
        confine: bool = True,
        keep: bool = False,
    ) -> Job:
        """Ask for a program.

        `fds` is {number inside: descriptor here}; the descriptors are duplicated, not taken. confine=False
        leaves out the strict filter, for a program that builds a sandbox of its own. keep: the program itself
        is spared where memory or the disk runs out, what it starts is not; and `stopped` tells when a signal
        holds it.
        """
        if not argv or not argv[0]:
            raise SandboxError("nothing to run: argv is empty, name a program.")
        if any("\0" in word for word in [*argv, *env, *env.values(), cwd]):
            raise SandboxError("the command holds a null byte, which no program can receive: remove it.")
        if len(fds) > MAX_FDS or any(not 0 <= number < HIGH_FD for number in fds):
            raise SandboxError(
                f"descriptors {sorted(fds)} cannot be handed over, use at most {MAX_FDS} below {HIGH_FD}."
            )
        self._last_number += 1
        job = Job(self._last_number, argv[0], cwd, *(self._future() for _ in range(4)))
        request = {
            "op": "spawn",
            "job": job.number,
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "fds": list(fds),
            "limits": dict(limits),
            "confine": confine,
            "keep": keep,
        }
        data = _packed(request)
        if len(data) > MAX_MESSAGE:
            raise SandboxError(
                f"the command and its environment take {len(data)} bytes, at most {MAX_MESSAGE} fit: "
                "put them in a file."
            )
        self._jobs[job.number] = job
        self._send(data, list(fds.values()))
        return job

    def kill(self, job: Job) -> None:
        """Kill the job's whole tree, daemons included; `job.gone` tells when that is done."""
        if self._open and not job.gone.done():
            self._send(_packed({"op": "kill", "job": job.number}), [])

    def signal(self, job: Job, number: int) -> None:
        """Send one signal to the job's program (not to what it started)."""
        if self._open and not job.gone.done():
            self._send(_packed({"op": "signal", "job": job.number, "signal": number}), [])

    def freeze(self, job: Job) -> None:
        """Stop all that the job's program has started, for good; `look` returns when that is done."""
        if self._open and not job.gone.done():
            self._send(_packed({"op": "freeze", "job": job.number}), [])

    def watch(self, **limits: Any) -> None:
        """Have PID 1 watch what all programs use together, within the limits of `watchdog.py`."""
        self._send(_packed({"op": "watch", **limits}), [])

    async def look(self) -> None:
        """Have PID 1 look now, and return when all that it found is in `hits`."""
        looked = self._future()
        self._looks.append(looked)
        self._send(_packed({"op": "look"}), [])
        await looked

    def hear(self) -> None:
        """Take in what has been reported, without waiting for more."""
        while self._open and select.select([self._socket], [], [], 0)[0]:
            self._readable()

    def take_hits(self) -> list[Hit]:
        """The limits that were reached since the last time."""
        hits, self._hits = self._hits, []
        return hits

    def _send(self, data: bytes, fds: list[int]) -> None:
        if not self._open:
            raise SandboxError(self.reason)
        if not self._queue:
            try:
                socket.send_fds(self._socket, [data], fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._writable)
            except OSError as error:
                self._fail()
                raise SandboxError(self.reason) from error
        self._queue.append((data, [os.dup(fd) for fd in fds]))

    def _writable(self) -> None:
        while self._queue:
            data, fds = self._queue[0]
            try:
                socket.send_fds(self._socket, [data], fds)
            except BlockingIOError:
                return
            except OSError:
                self._fail()
                return
            self._queue.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(
                _MAX_REPLY
            )  # recv, not recvmsg: descriptors sent out of the sandbox are dropped
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if not data:
                raise ValueError("closed")
            self._hear(json.loads(data))
        except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
            self._fail()

    def _hear(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "ready":
            if not self.ready.done():
                self.ready.set_result(None)
            return
        if event == "looked":
            looked = self._looks.popleft()
            if not looked.done():
                looked.set_result(None)
            return
        if event == "limit":
            if len(self._hits) < _MAX_HITS:
                kind, program = str(message["kind"]), str(message["program"])
                self._hits.append(Hit(kind, int(message["job"]), program, int(message["size"])))
            return
        job = self._jobs[message["job"]]
        if event == "started" and not job.started.done():
            job.started.set_result(int(message["pid"]))
        elif event == "failed" and not job.started.done() and not job.ended.done():
            error = _start_error(job, str(message["stage"]), int(message["errno"]))
            job.started.set_exception(error)
            job.ended.set_exception(error)
        elif event == "stopped":
            if not job.stopped.done():
                job.stopped.set_result(None)
        elif event == "exit" and not job.ended.done():
            job.ended.set_result(int(message["status"]))
        elif event == "gone":
            del self._jobs[job.number]
            self._finish(job, SandboxError("the program could not be watched any more, it was killed."))
        else:
            raise ValueError(event)

    def _finish(self, job: Job, reason: SandboxError) -> None:
        if not job.started.done():
            job.started.set_exception(reason)
        if not job.ended.done():
            if self._open:
                job.ended.set_result(-9)
            else:
                job.ended.set_exception(reason)
        job.stopped.cancel()
        if not job.gone.done():
            job.gone.set_result(None)

    def _fail(self) -> None:
        """The guest is gone or not to be believed: the sandbox is over."""
        self.close()

    def close(self, reason: str = _ENDED) -> None:
        """Close the socket, which ends the guest and with it everything inside.

        Waiters get a `SandboxError` with the reason, a sentence, and so does whoever asks for more.
        """
        if not self._open:
            return
        self.reason = reason
        self._open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, fds in self._queue:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._queue.clear()
        error = SandboxError(reason)
        if not self.ready.done():
            self.ready.set_exception(error)
        for job in list(self._jobs.values()):
            self._finish(job, error)
        self._jobs.clear()
        while self._looks:
            looked = self._looks.popleft()
            if not looked.done():
                looked.set_exception(error)
        if not self.lost.done():
            self.lost.set_result(None)


def _packed(request: dict[str, Any]) -> bytes:
    """A request as the guest reads it; version 2 of the format is the same for every Python."""
    return marshal.dumps(request, 2)


def _start_error(job: Job, stage: str, number: int) -> SandboxError:
    why = os.strerror(number)
    if stage == "exec":
        mend = "check its name and that it is installed" if number == errno.ENOENT else "check the file"
        return SandboxError(f"{job.program!r} could not be started ({why}), {mend}.")
    if stage == "cwd":
        return SandboxError(f"working folder {job.cwd!r} could not be entered ({why}), create it first.")
    return SandboxError(
        f"{job.program!r} could not be started ({stage}: {why}), close what is no longer needed."
    )
