"""Waiting that a stop, or a machine that does not work any more, ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from pilotfish.agent.limits import MachineBroke, Stopped
from pilotfish.agent.stopping import Stop

T = TypeVar("T")


async def or_stopped(work: Awaitable[T], stop: asyncio.Event, breaking: asyncio.Task[str] | None = None) -> T:
    """Await `work`, or cancel it and raise `Stopped` as soon as `stop` is set.

    breaking: ends, with a sentence, when the machine does not work any more; then `MachineBroke` is raised.
    """
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    watched = {task, stopping} if breaking is None else {task, stopping, breaking}
    try:
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if breaking is not None and breaking.done():
            raise MachineBroke(breaking.result())
        raise Stopped(stop.reason if isinstance(stop, Stop) else Stop.reason)
    finally:
        for pending in (task, stopping):
            if not pending.done():
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await pending
