"""Waiting that a stop, or a machine that does not work any more, ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from pilotfish.agent.limits import MachineBroke, Stopped
from pilotfish.agent.stopping import Stop

T = TypeVar("T")


class Turn(asyncio.Event):
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
    *turns: Turn,
) -> T:
    """Await `work`, or cancel it and raise `Stopped` as soon as `stop` is set.

    breaking: ends, with a sentence, when the machine does not work any more; then `MachineBroke` is raised.
    turns: the error of one that is set is raised.
    """
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    turning = {asyncio.ensure_future(turn.wait()): turn for turn in turns}
    watched: set[asyncio.Future[Any]] = {task, stopping, *turning}
    watched |= set() if breaking is None else {breaking}
    try:
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if breaking is not None and breaking.done():
            raise MachineBroke(breaking.result())
        for waiting, turn in turning.items():
            if waiting.done() and not stopping.done():
                raise turn.error
        raise Stopped(stop.reason if isinstance(stop, Stop) else Stop.reason)
    finally:
        for pending in (task, stopping, *turning):
            if not pending.done():
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await pending
