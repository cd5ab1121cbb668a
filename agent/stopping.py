"""Ctrl-C and SIGTERM: the first asks the run to stop in order, the second stops it at once.

Before a run has begun there is nothing to put in order, and the first ends the command where it stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPED = 128
"""Exit statuses above this one tell a signal."""
_last: int = signal.SIGINT


def exit_status() -> int:
    """Of a command that was stopped: 128 and the number of the signal, 130 for Ctrl-C and 143 for SIGTERM."""
    return STOPPED + _last


class Stop(asyncio.Event):
    """Set when the run must stop; `reason` says why, in one sentence."""

    reason = "The run was stopped."

    def because(self, reason: str) -> None:
        """Set it with a reason of its own."""
        self.reason = reason
        self.set()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block a signal raises KeyboardInterrupt, also where the program computes or loads."""
    before = [signal.signal(number, _end) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    global _last
    _last = number
    raise KeyboardInterrupt


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """An event that the first signal sets; the second one cancels the task that entered this block."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    stop = Stop()

    def heard(number: int) -> None:
        global _last
        _last = number
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    def never_awaited(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # What a stop gives up midway, such as the start of a browser, fails without anyone to hear it.
        if not stop.is_set():
            loop.default_exception_handler(context)

    loop.set_exception_handler(never_awaited)
    before = [signal.getsignal(number) for number in SIGNALS]
    for number in SIGNALS:
        loop.add_signal_handler(number, heard, number)
    try:
        yield stop
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
