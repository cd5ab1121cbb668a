"""Starting a program of the host's own without losing it when the start is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

_REAP_S = 1.0


async def spawn(
    *argv: str, keep: Callable[[asyncio.subprocess.Process], None] | None = None, **options: Any
) -> asyncio.subprocess.Process:
    """`asyncio.create_subprocess_exec`, for callers that may be cancelled.

    asyncio's own, cancelled halfway, may wait for ever for pipes that were never connected. Here the start is
    always finished. keep: takes a program whose start was cancelled, to end it in order; without, it is
    killed.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            process = await starting
            if keep is not None:
                keep(process)
            else:
                await _end(process)
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    # What it started may hold its pipes, for which asyncio would wait.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _REAP_S)
