"""Answers that are stopped, that take their time, and that are computed together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from pilotfish.model.device import CPU_CHUNK
from pilotfish.model.engine import AT_ONCE, Engine
from pilotfish.model.protocol import (
    Chunk,
    EndChunk,
    Limits,
    Message,
    ModelError,
    ProgressChunk,
    TextChunk,
)

from .asking import FILLER, HELLO, answer, end_of, holds, said, text_of


async def test_stop_ends_an_answer(endless: Engine) -> None:
    stop = asyncio.Event()
    chunks: list[Chunk] = []
    async for chunk in said(endless, HELLO, stop, Limits(max_seconds=1e6, max_tokens=3900)):
        chunks.append(chunk)
        if len(chunks) == 3:
            stop.set()
    end = end_of(chunks)
    assert end.reason == "stop"
    assert 3 <= end.usage.output_tokens < 3900


async def test_stop_before_the_start(endless: Engine) -> None:
    stop = asyncio.Event()
    stop.set()
    end = end_of(await answer(endless, HELLO, stop))
    assert (end.reason, end.usage.output_tokens) == ("stop", 0)
    assert endless.sequence.length == 0, "nothing was computed"


async def test_stop_while_reading_a_long_prompt(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    conversation = (Message("user", (FILLER * 2,)),)
    stop = asyncio.Event()
    task = asyncio.create_task(answer(engine, conversation, stop))
    await holds(engine, CPU_CHUNK, task)
    stop.set()
    end = end_of(await task)
    assert (end.reason, end.usage.output_tokens) == ("stop", 0)
    assert engine.sequence.length < end.usage.input_tokens
    again = await answer(engine, conversation, max_tokens=5)
    assert end_of(again).usage.cached_tokens >= CPU_CHUNK
    assert text_of(again) == text_of(await answer(tiny_engine(), conversation, max_tokens=5))


async def test_progress_and_costs_are_told(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    long = (Message("user", (FILLER * 2,)),)
    chunks = [c async for c in engine.respond(long, (), stop=asyncio.Event(), limits=Limits(max_tokens=3))]
    progress = [chunk for chunk in chunks if isinstance(chunk, ProgressChunk)]
    total = progress[0].total
    assert [chunk.done for chunk in progress] == [*range(0, total, CPU_CHUNK), total]
    assert {chunk.total for chunk in progress} == {total}
    assert chunks[: len(progress)] == progress, "it comes before the answer"
    usage = end_of(chunks[len(progress) :]).usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (total, 0, 3)
    assert usage.cache_bytes == engine.bytes_for(total + 2), "the last token is not computed"
    assert usage.device is not None
    assert usage.device.startswith("cpu, ")
    assert usage.sequences == 1
    assert usage.queue_s is not None
    assert 0 <= usage.queue_s < 60
    both = await asyncio.gather(answer(engine, HELLO, max_tokens=99), answer(engine, HELLO, max_tokens=99))
    assert [end_of(one).usage.sequences for one in both] == [2, 2]


async def test_the_time_limit(endless: Engine) -> None:
    end = end_of(await answer(endless, HELLO, max_seconds=0.0))
    assert (end.reason, end.usage.output_tokens) == ("time", 0)
    end = end_of(await answer(endless, HELLO, max_seconds=0.2, max_tokens=3900))
    assert end.reason == "time"
    assert end.usage.output_tokens > 0


async def test_the_event_loop_stays_free(endless: Engine) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    await answer(endless, HELLO, max_tokens=50)
    ticker.cancel()
    assert ticks > 50


async def test_others_go_on_while_a_large_prompt_is_rendered(endless: Engine) -> None:
    large = (Message("user", ("The quick brown fox, 1 2 3. " * 150_000,)),)
    rendering = asyncio.create_task(answer(endless, large))
    await asyncio.sleep(0)
    writing = end_of(await answer(endless, HELLO, max_tokens=3))
    assert writing.usage.output_tokens == 3
    assert not rendering.done(), "it did not wait for the other's rendering"
    with pytest.raises(ModelError, match="reads at most"):
        await rendering


async def test_a_prompt_being_rendered_is_stopped_and_timed(endless: Engine) -> None:
    large = (Message("user", ("The quick brown fox, 1 2 3. " * 20_000,)),)
    assert await answer(endless, large, max_seconds=0.01) == [EndChunk("time")]
    stop = asyncio.Event()
    stopped = asyncio.create_task(answer(endless, large, stop))
    await asyncio.sleep(0)
    stop.set()
    assert await stopped == [EndChunk("stop")]


async def test_nothing_is_rendered_for_who_has_gone(endless: Engine) -> None:
    large = (Message("user", ("The quick brown fox.\nOver it. " * 50_000,)),)
    began_s = time.perf_counter()
    endless.count(large, ())
    whole_s = time.perf_counter() - began_s
    stop = asyncio.Event()
    task = asyncio.create_task(answer(endless, large, stop))
    await asyncio.sleep(0)
    stop.set()
    assert await task == [EndChunk("stop")]
    began_s = time.perf_counter()
    endless.close()
    assert time.perf_counter() - began_s < whole_s / 2


def test_a_loop_that_is_closed_in_the_midst_leaves_nothing_behind(endless: Engine) -> None:
    loop = asyncio.new_event_loop()
    stream = endless.respond(
        HELLO, (), stop=asyncio.Event(), limits=Limits(max_seconds=1e6, max_tokens=10**6)
    )
    loop.run_until_complete(anext(stream))
    loop.close()
    began_s = time.perf_counter()
    endless.close()
    assert time.perf_counter() - began_s < 20
    del stream


async def test_leaving_early_stops_the_work(endless: Engine) -> None:
    stream = said(endless, HELLO, asyncio.Event(), Limits(max_tokens=3900, max_seconds=1e6))
    async for _ in stream:
        break
    await stream.aclose()
    length = endless.sequence.length
    assert length < 3000
    await asyncio.sleep(0.05)
    assert endless.sequence.length == length
    assert end_of(await answer(endless, HELLO, max_tokens=3)).reason == "length"


async def test_cancelling_the_task_stops_the_work(endless: Engine) -> None:
    task = asyncio.create_task(answer(endless, HELLO, max_tokens=3900, max_seconds=1e6))
    await holds(endless, 1, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    length = endless.sequence.length
    assert length < 3000
    await asyncio.sleep(0.05)
    assert endless.sequence.length == length


async def test_answers_are_the_same_alone_and_together(tiny_engine: Callable[..., Engine]) -> None:
    """More at once than there are rows in a pass, long prompts and short ones, with and without a seed."""
    engine = tiny_engine()
    asked: list[tuple[Message, dict[str, Any]]] = [
        (Message("user", (FILLER[: 400 * i] + f"Say {i}.",)), {"max_tokens": 25 - 3 * i, "logprobs": True})
        for i in range(7)
    ]
    asked[2][1].update(temperature=1.0, seed=5)
    together = await asyncio.gather(*(answer(engine, (one,), **limits) for one, limits in asked))
    for (one, limits), chunks in zip(asked, together, strict=True):
        alone = await answer(tiny_engine(), (one,), **limits)
        assert text_of(chunks) == text_of(alone)
        assert end_of(chunks).logprobs == end_of(alone).logprobs


async def test_answers_that_begin_alike_compute_it_once(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    asked = [(Message("user", (FILLER * 2 + f"Say {i}.",)),) for i in range(4)]
    ends = [end_of(one) for one in await asyncio.gather(*(answer(engine, c, max_tokens=3) for c in asked))]
    common = ends[0].usage.input_tokens // CPU_CHUNK * CPU_CHUNK
    assert common >= 3 * CPU_CHUNK
    assert sorted(end.usage.cached_tokens for end in ends) == [0, common, common, common]


async def test_one_that_fails_does_not_trouble_the_others(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    good = answer(engine, HELLO, max_tokens=20)
    bad = answer(engine, HELLO, max_tokens=20, temperature=-1.0)
    found = await asyncio.gather(good, bad, return_exceptions=True)
    assert isinstance(found[1], Exception)
    assert isinstance(found[0], list)
    assert text_of(found[0]) == text_of(await answer(tiny_engine(), HELLO, max_tokens=20))


async def test_who_waits_for_a_turn_may_leave_before_it_comes(endless: Engine) -> None:
    stop, left = asyncio.Event(), asyncio.Event()
    running = [said(endless, HELLO, stop, Limits(max_tokens=3900, max_seconds=1e6)) for _ in range(AT_ONCE)]
    for stream in running:
        await anext(stream)
    first = running[0]
    second = said(endless, HELLO, left, Limits())
    waiting = asyncio.ensure_future(anext(second))
    third = asyncio.ensure_future(anext(said(endless, HELLO, stop, Limits())))
    await asyncio.sleep(0.1)
    left.set()
    assert await asyncio.wait_for(waiting, 20) == EndChunk("stop")
    third.cancel()
    await asyncio.wait([third], timeout=20)
    assert third.cancelled()
    assert isinstance(await anext(first), TextChunk), "the first goes on"
    stop.set()
    for stream in running:
        assert end_of([chunk async for chunk in stream]).reason == "stop"
