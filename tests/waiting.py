"""Waiting for what says nothing when it comes: a screen, a file, a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Return when it holds; fails the test if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """The same while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.01)
