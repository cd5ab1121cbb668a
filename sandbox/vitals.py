"""What a sandbox cannot do without, watched: in a sentence, what of it has ended or was frozen.

Nothing is guessed from silence. PID 1 reports a program that has ended; whether a signal holds it, or PID 1
itself, is read from /proc, inside and outside.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from pilotfish.sandbox.inside.processes import below, look_at, processes
from pilotfish.sandbox.link import Link
from pilotfish.sandbox.process import Process

_LOOK_S = 0.5
_AFTER_S = 0.3  # how much later than its cause the end of a part may be heard of


class Vitals:
    """The vital parts of one sandbox. `trouble` is the first thing that went wrong with one of them."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._parts = 0
        self.has_browser: Callable[[], bool] = lambda: False
        self._watch: asyncio.Task[None] | None = None

    def watch_guest(self, link: Link, pid: int) -> None:
        """PID 1, by its number on the host. While it is frozen nothing inside can be reached or ended in
        order, so that ends the link.
        """
        self._watch = asyncio.ensure_future(self._look_at(link, pid))

    def add(self, name: str, process: Process) -> None:
        """A program that PID 1 watches. name: as in "the display server (Xvfb)".

        One that is frozen is killed, so that whoever waits for its answer hears that none will come. Parts
        added before are what it needs: when one of them ends, that is told and not what comes of it.
        """
        wait_s = _AFTER_S if self._parts else 0.0
        self._parts += 1

        def tell() -> None:
            if process.returncode is None and not process.is_stopped:
                return  # all has ended, which the link tells
            sentence = f"{name} of the sandbox {_state(process)}, open a new one."
            asyncio.get_running_loop().call_later(wait_s, self._report, sentence)
            if process.is_stopped:
                process.kill_soon()

        process.on_trouble(tell)

    def close(self) -> None:
        """What ends from now on ends in order."""
        self.trouble = self.trouble or ""
        if self._watch is not None:
            self._watch.cancel()

    def _report(self, sentence: str) -> None:
        if self.trouble is None:
            self.trouble = sentence

    async def _look_at(self, link: Link, pid: int) -> None:
        """Two looks in a row, since a stop may last for a moment only."""
        held = browsers = 0
        while link.is_open:
            await asyncio.sleep(_LOOK_S)
            browsers = browsers + 1 if self.has_browser() and _holds_a_browser(pid) else 0
            if browsers == 2:
                self._report("the browser (Chromium) of the sandbox was frozen by a signal, open a new one.")
            entry = look_at(pid)
            held = held + 1 if entry is not None and entry.is_stopped else 0
            if held == 2 and link.is_open:
                self._report(
                    f"the sandbox was frozen from outside (process {pid} was stopped), open a new one."
                )
                link.close(self.trouble or "")
                return


def _holds_a_browser(guest: int) -> bool:
    """Whether below PID 1 there is a Chromium, as the driver starts it, that a signal has stopped."""
    table = processes()
    stopped = [pid for pid in below(guest, table) if table[pid].is_stopped]
    return any(_is_browser(pid) for pid in stopped)


def _is_browser(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"--remote-debugging-pipe" in words and b"--type=" not in words
    return False


def _state(process: Process) -> str:
    status = process.returncode
    if status is None:
        return "was frozen by a signal"
    return f"was killed by signal {-status}" if status < 0 else f"has ended with status {status}"
