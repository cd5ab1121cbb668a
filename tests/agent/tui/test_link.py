"""The interface's connection to a run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pilotfish.agent.control.server import serving
from pilotfish.agent.control.steering import Steering
from pilotfish.agent.tui.link import Link

from ...waiting import until


async def test_the_screen_is_asked_for_again_by_the_next_connection(tmp_path: Path) -> None:
    link = Link(tmp_path, lambda link, change: None)
    await link.watch_screen(True)
    for _ in range(2):
        steering = Steering()
        async with serving(tmp_path, steering):
            await asyncio.gather(link.open(), link.open())
            await until(lambda: len(steering.reach._viewers) == 1)  # noqa: B023 - within the round
            assert steering.state.clients == 1
        await until(lambda: not link.connected)
    await link.watch_screen(False)
    async with serving(tmp_path, steering := Steering()):
        await link.open()
        await until(lambda: link.state is not None)
        assert not steering.reach._viewers
        await link.close()
