"""A program that runs inside: wait for it, read what it printed, kill it with everything that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping

from pilotfish.sandbox.link import Job, Link
from pilotfish.sandbox.output import OutputReader


class Process:
    """Handle of one program. `pid` is its number inside the sandbox."""

    def __init__(self, link: Link, job: Job, pid: int, reader: OutputReader | None) -> None:
        self._link = link
        self._job = job
        self._reader = reader
        self.pid = pid
        self.name = job.program

    @property
    def returncode(self) -> int | None:
        """Exit status, -N when signal N ended it, None while it runs (or when the sandbox ended under it)."""
        ended = self._job.ended
        if not ended.done() or ended.cancelled() or ended.exception() is not None:
            return None
        return ended.result()

    @property
    def is_running(self) -> bool:
        """Whether the program itself still runs."""
        return not self._job.ended.done()

    @property
    def is_stopped(self) -> bool:
        """Whether it was found held by a signal such as SIGSTOP; only a program that is to be kept."""
        return self._job.stopped.done() and not self._job.stopped.cancelled()

    def on_trouble(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the program ends, and when it is held (see `is_stopped`)."""
        self._job.ended.add_done_callback(lambda _: tell())
        self._job.stopped.add_done_callback(lambda stopped: None if stopped.cancelled() else tell())

    @property
    def output(self) -> str:
        """What it printed so far, standard output and errors in order; '' when that is discarded."""
        return self._reader.output.text if self._reader else ""

    @property
    def dropped_bytes(self) -> int:
        """How many bytes from the middle of the output were not kept."""
        return self._reader.output.dropped_bytes if self._reader else 0

    async def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the program itself (not for what it left in the background).

        TimeoutError leaves it running.
        """
        status = await asyncio.wait_for(asyncio.shield(self._job.ended), timeout_s)
        if self._reader:
            self._reader.drain()
        return status

    async def wait_gone(self) -> None:
        """Wait until neither it nor anything that it started is left."""
        await asyncio.shield(self._job.gone)

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        self._link.signal(self._job, number)

    def kill_soon(self) -> None:
        """Have the program and everything that it started ended, without waiting for it."""
        self._link.kill(self._job)

    async def kill(self) -> None:
        """End the program and everything that it started, daemons too. Returns when nothing of it is left."""
        self.kill_soon()
        await self.wait_gone()
        if self._reader:
            self._reader.close()


async def start_process(
    link: Link,
    argv: list[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    limits: Mapping[str, int],
    stdin: int | bytes | None = None,
    capture: bool = True,
    fds: Mapping[int, int] | None = None,
    confine: bool = True,
    keep: bool = False,
) -> Process:
    """Start a program and wait until it really runs.

    stdin: a descriptor, bytes to feed, or None for the end of file at once. fds: more descriptors to hand
    over, {number inside: descriptor here}; 1 and 2 in it take precedence over the captured output.
    """
    handed = dict(fds or {})
    reader: OutputReader | None = None
    own_stdin: int | None = None
    try:
        if isinstance(stdin, bytes):
            own_stdin = handed[0] = bytes_fd(stdin)
        elif stdin is not None:
            handed[0] = stdin
        if capture:
            reader = OutputReader()
            handed = {1: reader.write_fd, 2: reader.write_fd} | handed
        job = link.spawn(argv, env, cwd, handed, limits, confine, keep)
        if reader:
            reader.handed_over()
        try:
            pid = await asyncio.shield(job.started)
        except asyncio.CancelledError:
            link.kill(job)
            raise
    except BaseException:
        if reader:
            reader.close()
        raise
    finally:
        if own_stdin is not None:
            os.close(own_stdin)
    process = Process(link, job, pid, reader)
    if reader:
        # Whatever way the job ends, its pipe is emptied and closed with it.
        job.gone.add_done_callback(lambda _: _finish(reader))
    return process


def _finish(reader: OutputReader) -> None:
    with contextlib.suppress(OSError):
        reader.drain()
    reader.close()


def bytes_fd(data: bytes) -> int:
    """A descriptor at the start of an unnamed memory file that holds `data`."""
    fd = os.memfd_create("pilotfish", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
