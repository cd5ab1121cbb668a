"""Many answers over little memory: who waits, who goes first, and what an error in one does to the others."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from pilotfish.model.device import CPU_CHUNK
from pilotfish.model.engine import AT_ONCE, Engine
from pilotfish.model.flat import FlatDecoder
from pilotfish.model.prefixes import Prefixes
from pilotfish.model.protocol import EndChunk, Limits, Message, ModelError, TextChunk

FILLER = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture
def engine(tiny_folder: Path) -> Engine:
    return Engine(tiny_folder, device="cpu", dtype="float32")


def with_room_for(engine: Engine, tokens: int) -> None:
    """Bound the engine's caches to so many tokens."""
    engine.prefixes = Prefixes(engine.model, chunk=CPU_CHUNK, limit_bytes=engine.bytes_for(tokens))


async def ask(engine: Engine, words: str, stop: asyncio.Event | None = None, **limits: Any) -> str:
    """The text of an answer, and why it ended."""
    said = ""
    conversation = (Message("user", (words,)),)
    async for chunk in engine.respond(
        conversation, (), stop=stop or asyncio.Event(), limits=Limits(**limits)
    ):
        if isinstance(chunk, TextChunk):
            said += chunk.text
        elif isinstance(chunk, EndChunk):
            said += f"|{chunk.reason}"
    return said


async def nothing_is_used(engine: Engine) -> bool:
    """Whether it comes to that: the worker tells that an answer has ended a moment before it forgets it."""
    for _ in range(1000):
        if not engine.prefixes._used and engine._scheduler.active == 0:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_little_memory_makes_answers_wait_and_none_fail(engine: Engine) -> None:
    """Room for about two of the longest at a time."""
    draw = random.Random(1)
    asked = [FILLER[: draw.choice([10, 300, 900, 1800])] + f"Say {i}." for i in range(20)]
    alone = [await ask(engine, words, max_tokens=6) for words in asked]
    with_room_for(engine, 2048)
    async with asyncio.timeout(120):
        together = await asyncio.gather(*(ask(engine, words, max_tokens=6) for words in asked))
    assert together == alone
    assert engine.prefixes.pool.bytes <= engine.bytes_for(2048)
    assert await nothing_is_used(engine)


async def test_what_never_fits_is_refused_beside_answers_that_do(engine: Engine) -> None:
    with_room_for(engine, 1024)
    tasks = [ask(engine, "Hello.", max_tokens=30), ask(engine, FILLER * 2, max_tokens=30)]
    good, bad = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(good, str)
    assert isinstance(bad, ModelError)
    assert "can be had on cpu" in str(bad)
    assert await nothing_is_used(engine)


async def test_who_shares_a_prompt_goes_on_when_the_first_is_stopped(
    engine: Engine, tiny_folder: Path
) -> None:
    words, stop = FILLER * 2, asyncio.Event()
    expected = await ask(Engine(tiny_folder, device="cpu", dtype="float32"), words, max_tokens=4)
    first = asyncio.create_task(ask(engine, words, stop, max_tokens=4))
    others = [asyncio.create_task(ask(engine, words, max_tokens=4)) for _ in range(3)]
    while engine.sequence.length < CPU_CHUNK and not first.done():  # noqa: ASYNC110 - the engine signals nothing
        await asyncio.sleep(0.001)
    stop.set()
    assert (await first).endswith("|stop")
    async with asyncio.timeout(60):
        assert await asyncio.gather(*others) == [expected] * 3
    assert await nothing_is_used(engine)


async def test_a_short_prompt_does_not_wait_for_a_long_one(engine: Engine) -> None:
    long = asyncio.create_task(ask(engine, FILLER * 2, max_tokens=1))
    await asyncio.sleep(0.01)
    await ask(engine, "Hello.", max_tokens=1)
    assert not long.done()
    assert (await long).endswith("|length")


async def test_an_error_in_a_pass_ends_those_it_concerns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that runs out in the midst: each of them is told, and the engine goes on."""
    expected = await ask(engine, "Hello.", max_tokens=20)
    decode, calls = FlatDecoder.decode, 0

    def failing(*arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise MemoryError
        return decode(*arguments)

    monkeypatch.setattr(FlatDecoder, "decode", failing)
    found = await asyncio.gather(
        *(ask(engine, "Hello.", max_tokens=20) for _ in range(3)), return_exceptions=True
    )
    assert any(isinstance(one, ModelError) and "not enough memory" in str(one) for one in found)
    assert all(isinstance(one, ModelError) or one == expected for one in found)
    assert await nothing_is_used(engine)
    assert await ask(engine, "Hello.", max_tokens=20) == expected


async def test_leaving_at_any_moment_leaves_nothing(engine: Engine) -> None:
    """Tasks cancelled and stopped at random, more than run at once; then one answer as ever."""
    expected = await ask(engine, "Hello.", max_tokens=10)
    draw = random.Random(2)

    async def one(number: int) -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(
            ask(engine, FILLER[: draw.randrange(1800)] + str(number % 5), stop, max_tokens=8)
        )
        await asyncio.wait([task], timeout=draw.uniform(0, 0.4))
        stop.set() if draw.random() < 0.5 else task.cancel()
        await asyncio.wait([task], timeout=60)
        assert task.done()

    async with asyncio.timeout(150):
        await asyncio.gather(*(one(number) for number in range(10 * AT_ONCE)))
    assert await nothing_is_used(engine)
    assert await ask(engine, "Hello.", max_tokens=10) == expected
    engine.close()


async def test_saving_waits_for_its_turn_between_tokens(engine: Engine, tmp_path: Path) -> None:
    await ask(engine, FILLER, max_tokens=1)
    writing = asyncio.create_task(ask(engine, "Hello.", max_tokens=300))
    saved = await engine.save(tmp_path / "sequence")
    assert saved >= CPU_CHUNK
    assert await engine.load(tmp_path / "sequence") == saved
    assert (await writing).endswith("|length")
