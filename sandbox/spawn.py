"""Starting a program of the host's own without losing it when the start is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


async def spawn(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """`asyncio.create_subprocess_exec`, for callers that may be cancelled.

    asyncio's own, cancelled halfway, may wait for ever for pipes that were never connected. Here the start is
    always finished, and a program that nobody waits for any more is killed.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError, ProcessLookupError):
            process = await starting
            process.kill()
            await process.wait()
        raise
