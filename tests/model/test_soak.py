"""Many requests at once, some of them left on the way: a small run of what the soak does at length."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from pilotfish.model.engine import Engine
from pilotfish.model.soak import Count, Soak, grew, soak


def test_some_requests_every_way(tiny_folder: Path) -> None:
    engine = Engine(tiny_folder, device="cpu", dtype="float32")
    before, after, soaking = asyncio.run(soak(engine, requests=60, at_once=6, warm_up=20))
    assert soaking.faults == []
    assert grew(before, after) == []
    assert sum(soaking.kinds.values()) == 80
    assert len(soaking.kinds) == 7
    assert any(soaking.expected)


def test_what_grows_is_named() -> None:
    before = Count(descriptors=10, threads=3, memory_mb=100.0, pages=5)
    assert grew(before, replace(before, pages=50)) == [], "kept conversations come and go"
    more = replace(before, descriptors=30, threads=30, memory_mb=900.0)
    assert grew(before, more) == ["descriptors", "threads", "memory"]


def test_an_answer_that_differs_is_told(tiny_folder: Path) -> None:
    async def play() -> Soak:
        soaking = Soak(Engine(tiny_folder, device="cpu", dtype="float32"), None)  # type: ignore[arg-type]
        soaking.asks = soaking.asks[:1]
        await soaking.learn()
        soaking.expected[0] += "x"
        assert await soaking._ask("whole", soaking.asks[0]) != soaking.expected[0]
        soaking.draw = _Always("whole")
        await soaking.play(2, 2, progress=False)
        return soaking

    assert len(asyncio.run(play()).faults) == 2


class _Always:
    """Draws one way only."""

    def __init__(self, way: str) -> None:
        self.way = way

    def randrange(self, end: int) -> int:
        return 0

    def choices(self, ways: list[str], weights: list[int]) -> list[str]:
        assert len(weights) == len(ways)
        return [self.way]
