"""Waiting that a stop, or a machine that does not work any more, ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from pilotfish.agent.limits import MachineBroke, Stopped
from pilotfish.agent.stopping import Stop

T = TypeVar("T")


class Interrupt(asyncio.Event):
    """Set when what is being done is to be left for something else; `error` is raised there then."""

    error: Exception

    def because(self, error: Exception) -> None:
        """Set it with what is raised."""
        self.error = error
        self.set()


async def or_stopped(
    work: Awaitable[T],
    stop: asyncio.Event,
    breaking: asyncio.Task[str] | None = None,
    *interrupts: Interrupt,
) -> T:
    """Await `work`, or cancel it and raise `Stopped` as soon as `stop` is set.

    breaking: ends, with a sentence, when the machine does not work any more; then `MachineBroke` is raised.
    interrupts: the error of one that is set is raised.
    """
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    interrupting = {asyncio.ensure_future(interrupt.wait()): interrupt for interrupt in interrupts}
    watched: set[asyncio.Future[Any]] = {task, stopping, *interrupting}
    watched |= set() if breaking is None else {breaking}
    try:
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if breaking is not None and breaking.done():
            raise MachineBroke(breaking.result())
        for waiting, interrupt in interrupting.items():
            if waiting.done() and not stopping.done():
                raise interrupt.error
        raise Stopped(stop.reason if isinstance(stop, Stop) else Stop.reason)
    finally:
        for pending in (task, stopping, *interrupting):
            if not pending.done():
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await pending
