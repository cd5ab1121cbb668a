"""Ctrl-C and SIGTERM: the first asks the run to stop in order, the second stops it at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop(asyncio.Event):
    """Set when the run must stop; `reason` says why, in one sentence."""

    reason = "The run was stopped."

    def because(self, reason: str) -> None:
        """Set it with a reason of its own."""
        self.reason = reason
        self.set()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """An event that the first signal sets; the second one cancels the task that entered this block."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    stop = Stop()

    def heard() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, heard)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
