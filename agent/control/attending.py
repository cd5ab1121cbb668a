"""A run while it is played, with its socket: who is there beside it, and how they reach it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotfish.agent import events as log
from pilotfish.agent.control.server import serving
from pilotfish.agent.control.steering import AskTerminal, Steering
from pilotfish.agent.control.wire import SOCKET
from pilotfish.agent.policy import Policy


@dataclass(frozen=True)
class People:
    """Who is there. terminal: asks at the run's own terminal. supervised: somebody will connect, and is
    waited for. on_open: told the run's folder once it can be reached there. on_wait: told what is waited for
    until then, in words such as "the model nano to be loaded".
    """

    terminal: AskTerminal | None = None
    supervised: bool = False
    on_open: Callable[[Path], None] | None = None
    on_wait: Callable[[str], None] = lambda what: None


NOBODY = People()


@contextlib.asynccontextmanager
async def attended(
    events: log.EventLog,
    policy: Policy,
    stop: asyncio.Event,
    people: People = NOBODY,
    warning: str = "",
    messages: Sequence[str] = (),
) -> AsyncIterator[Steering]:
    """Open the socket of a run whose log this process holds, until the block is left.

    warning: what stands around the run, where that is less than a whole sandbox. messages: see `Steering`.
    Raises `LogError` where the socket cannot be opened although somebody is expected; else the run does
    without it.
    """
    steering = Steering(
        stop,
        supervised=people.supervised,
        terminal=people.terminal,
        events=events,
        policy=policy,
        run_warning=warning,
        messages=messages,
    )
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(serving(events.folder, steering))
        except OSError as error:
            if people.supervised:
                where = events.folder / SOCKET
                raise log.LogError(
                    f"The socket {where} cannot be opened ({error.strerror}), so nobody could supervise the "
                    "run; choose another place with --record-dir."
                ) from error
        if people.on_open is not None:
            people.on_open(events.folder)
        try:
            yield steering
        finally:
            steering.change(phase="ended")
