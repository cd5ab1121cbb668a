"""A start that is cancelled at any moment ends, and leaves no program."""

from __future__ import annotations

import asyncio
import os

from pilotfish.sandbox.inside.processes import below, processes
from pilotfish.sandbox.spawn import spawn


async def test_a_start_cancelled_at_any_moment_leaves_nothing() -> None:
    before = below(os.getpid(), processes())
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    cancelled = 0
    for turns in range(25):
        starting = asyncio.ensure_future(spawn("sleep", "100", **pipes))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        done, _ = await asyncio.wait([starting], timeout=30)
        assert done, f"cancelled after {turns} turns of the loop it never ended"
        if starting.cancelled():
            cancelled += 1
            continue
        process = starting.result()
        process.kill()
        await process.wait()
    assert cancelled > 2
    assert below(os.getpid(), processes()) - before == set()
