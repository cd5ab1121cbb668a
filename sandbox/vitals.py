"""What a sandbox cannot do without, watched: in a sentence, what of it has ended or was frozen.

Nothing is guessed from silence. PID 1 reports a program that has ended; whether a signal holds it, or PID 1
itself, is read from /proc, inside and outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pilotfish.sandbox.inside.processes import below, look_at, processes, send_signal
from pilotfish.sandbox.link import Link
from pilotfish.sandbox.process import Process

_LOOK_S = 0.5
_AFTER_S = 0.3  # how much later than its cause the end of a part may be heard of


class _Ended(Protocol):
    @property
    def returncode(self) -> int | None: ...


class _OutsideProgram(_Ended, Protocol):
    @property
    def pid(self) -> int: ...


class Vitals:
    """The vital parts of one sandbox. `trouble` is the first thing that went wrong with one of them."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._parts = 0
        self.browser_driver: Callable[[], int | None] = lambda: None
        """The number inside of the program that has started Chromium; None while no Chromium runs."""
        self._watch: asyncio.Task[None] | None = None
        self._outside: dict[str, _OutsideProgram] = {}
        self._held: set[str] = set()

    def add_outside(self, name: str, program: _OutsideProgram) -> None:
        """A program beside the sandbox, on the host. One that is frozen is killed, as those inside are."""
        self._outside[name] = program

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

    def _look_outside(self) -> None:
        """Tell of programs that have ended, or were stopped at two looks in a row."""
        stopped = set()
        for name, program in self._outside.items():
            entry = look_at(program.pid) if program.returncode is None else None
            if entry is not None and entry.is_stopped:
                stopped.add(name)
            if program.returncode is not None or name in stopped & self._held:
                self._report(f"{name} of the sandbox {_state(program)}, open a new one.")
            if name in stopped & self._held:
                send_signal(program.pid, signal.SIGKILL)
        self._held = stopped

    async def _look_at(self, link: Link, pid: int) -> None:
        """Two looks in a row, since a stop may last for a moment only."""
        held = browsers = 0
        while link.is_open:
            await asyncio.sleep(_LOOK_S)
            driver = self.browser_driver()
            browsers = browsers + 1 if driver is not None and _holds_a_browser(pid, driver) else 0
            if browsers == 2:
                self._report("the browser (Chromium) of the sandbox was frozen by a signal, open a new one.")
            self._look_outside()
            entry = look_at(pid)
            held = held + 1 if entry is not None and entry.is_stopped else 0
            if held == 2 and link.is_open:
                self._report(
                    f"the sandbox was frozen from outside (process {pid} was stopped), open a new one."
                )
                link.close(self.trouble or "")
                return


def _holds_a_browser(guest: int, driver: int) -> bool:
    """Whether a signal has stopped Chromium, which is the driver's one child, or the driver itself.

    guest: PID 1, by its number on the host; driver: by its number inside. Neither can be taken by another
    program, while the arguments of one can say anything.
    """
    table = processes()
    stopped = [table[pid] for pid in below(guest, table) if table[pid].is_stopped]
    if not stopped:
        return False
    depth = len(_numbers(guest))
    return any(
        len(numbers := _numbers(pid)) >= depth and numbers[depth - 1] == driver
        for entry in stopped
        for pid in (entry.pid, entry.parent)
    )


def _numbers(pid: int) -> list[int]:
    """The numbers of a process, from the one on the host to that of its innermost namespace."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(number) for number in line.split()[1:]]
    return []


def _state(process: _Ended) -> str:
    status = process.returncode
    if status is None:
        return "was frozen by a signal"
    return f"was killed by signal {-status}" if status < 0 else f"has ended with status {status}"
