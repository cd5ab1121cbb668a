"""One client's connection: nobody holds it, or memory, by sending or reading slowly or not at all."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 256
"""Connections at once; others are closed as they come."""
HEAD_S = 20.0
"""Seconds a client may take to begin a request and send its head, or to send what nobody reads any more."""
STALL_S = 60.0
"""Seconds an answer may wait for a client that reads nothing of it."""
TICK_S = 1.0
MAX_AHEAD = 1024**2
"""Bytes a client may send behind a request while that is answered."""
_LOGGER = logging.getLogger("pilotfish.serving")
_LOGGER.setLevel(
    logging.ERROR
)  # what any client can have printed, such as by an Upgrade, tells nobody anything


class Connection(H11Protocol):
    """Uvicorn's connection, with the limits that it leaves to a proxy in front of it."""

    _timer: asyncio.TimerHandle | None = None
    _waited_s = 0.0  # for a request's head
    _stalled_s = 0.0  # without a byte read of what waits to be sent
    _unsent = 0
    _ahead = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _LOGGER

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._timer = self.loop.call_later(TICK_S, self._tick)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering and not self.cycle.more_body:
            self._ahead += len(data)
            if self._ahead > MAX_AHEAD:
                self.transport.abort()

    def on_response_complete(self) -> None:
        self._ahead, self._waited_s = 0, 0.0
        super().on_response_complete()

    @property
    def _answering(self) -> bool:
        cycle: Any = self.cycle  # uvicorn declares it as always there
        return cycle is not None and not cycle.response_complete

    def _tick(self) -> None:
        self._timer = self.loop.call_later(TICK_S, self._tick)
        self._waited_s = 0.0 if self._answering else self._waited_s + TICK_S
        unsent = self.transport.get_write_buffer_size()
        reads = unsent < self._unsent or not unsent
        holds = self.flow.write_paused or not self._answering
        self._stalled_s = self._stalled_s + TICK_S if holds and not reads else 0.0
        self._unsent = unsent
        if self._stalled_s >= STALL_S or (self._waited_s >= HEAD_S and not unsent):
            self.transport.abort()
