"""Conversations that take turns and step back find what was computed of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pilotfish.model.device import CPU_CHUNK
from pilotfish.model.engine import Engine
from pilotfish.model.info import cache_bytes_per_token
from pilotfish.model.m3 import M3
from pilotfish.model.prefixes import KEPT, Prefixes
from pilotfish.model.protocol import EndChunk, Limits, Message, ModelError
from pilotfish.model.sequence import Tokens, TokenSequence

CHUNK = 32
IDS = np.random.default_rng(1).integers(10, 500, (2 * KEPT, 400)).tolist()


@pytest.fixture
def model(tiny_model: Callable[..., M3]) -> M3:
    return tiny_model(0).requires_grad_(False)


def no_features(number: int) -> Tensor:
    raise AssertionError("there are no pictures")


def ask(prefixes: Prefixes, ids: list[int], room: int = 0) -> int:
    """Compute a prompt, compare it with a cold run, and tell how much of it was cached."""
    tokens = Tokens.lay_out(ids, (), ())
    sequence = prefixes.pick(tokens, room)
    assert sequence is not None
    cached = sequence.length
    scores = sequence.extend(tokens, no_features)
    expected = TokenSequence(prefixes.model, chunk=CHUNK).extend(tokens, no_features)
    assert scores is not None
    assert expected is not None
    assert torch.equal(scores, expected)
    assert sequence.cache.capacity >= len(ids) + room
    prefixes.put_back(sequence)
    return cached


def test_conversations_that_take_turns(model: M3) -> None:
    prefixes = Prefixes(model, chunk=CHUNK)
    for length in (100, 150, 200, 300):
        for one in IDS[:3]:
            ask(prefixes, one[:length], room=20)
    assert [ask(prefixes, one[:310]) for one in IDS[:3]] == [288] * 3
    assert len(prefixes) == 3, "a conversation that grows needs one sequence"


def test_a_step_back_and_forth_again(model: M3) -> None:
    prefixes = Prefixes(model, chunk=CHUNK)
    ask(prefixes, IDS[0][:300])
    assert ask(prefixes, IDS[0][:150] + IDS[1][:100]) == 128
    assert ask(prefixes, IDS[0][:300]) == 288
    assert ask(prefixes, IDS[0][:150] + IDS[1][:120]) == 224
    assert len(prefixes) == 2


def test_idle_sequences_share_what_they_have_in_common(model: M3) -> None:
    """Where there is no memory for both in one piece, the later one lies in two."""
    pages = len(IDS[0]) // 16
    page = Prefixes(model, chunk=CHUNK).pool.page_bytes
    prefixes = Prefixes(model, chunk=CHUNK, limit_bytes=4 * (pages + 6) * page)
    ask(prefixes, IDS[0])
    assert ask(prefixes, IDS[0][:352] + IDS[1][:40]) == 352
    assert prefixes.pool.held == pages + 3
    assert ask(prefixes, IDS[0]) == 384


def test_those_unused_longest_go_first(model: M3) -> None:
    prefixes = Prefixes(model, chunk=CHUNK)
    for one in IDS[:KEPT]:
        ask(prefixes, one[:70])
    assert ask(prefixes, IDS[0][:80]) == 64
    ask(prefixes, IDS[KEPT][:70])
    assert len(prefixes) == KEPT
    assert ask(prefixes, IDS[0][:80]) == 64
    assert ask(prefixes, IDS[1][:80]) == 0


def test_idle_sequences_go_when_memory_is_short(model: M3) -> None:
    page = Prefixes(model, chunk=CHUNK).pool.page_bytes
    prefixes = Prefixes(model, chunk=CHUNK, limit_bytes=20 * page)
    ask(prefixes, IDS[0][:200])
    ask(prefixes, IDS[1][:300])
    assert prefixes.pool.held <= 20
    assert ask(prefixes, IDS[1][:310]) == 288
    with pytest.raises(ModelError, match=r"321 tokens takes .* enough for 320 tokens"):
        ask(prefixes, IDS[0][:300], room=21)
    assert ask(prefixes, IDS[1][:310]) == 288, "a request that is refused costs nothing"


def test_a_large_prompt_that_waits_for_memory_is_not_passed_by(model: M3) -> None:
    """Small ones that came later wait behind it, until it is there or has gone."""
    page = Prefixes(model, chunk=CHUNK).pool.page_bytes
    prefixes = Prefixes(model, chunk=CHUNK, limit_bytes=20 * page)
    large, *small = (Tokens.lay_out(ids, (), ()) for ids in (IDS[0][:300], *(one[:60] for one in IDS[1:5])))
    first, second = prefixes.pick(small[0]), prefixes.pick(small[1])
    assert first is not None
    assert second is not None
    assert prefixes.pick(large) is None
    assert prefixes.pick(small[2]) is None
    prefixes.put_back(first)
    assert prefixes.pick(small[2]) is None
    assert prefixes.pick(large) is None
    prefixes.put_back(second)
    assert prefixes.pick(small[2]) is None
    taken = prefixes.pick(large)
    assert taken is not None
    prefixes.put_back(taken)
    third = prefixes.pick(small[2])
    assert third is not None
    assert prefixes.pick(large) is None
    prefixes.leave(large)
    assert prefixes.pick(small[3]) is not None


async def test_an_engine_keeps_both_of_two_conversations(tiny_folder: Path) -> None:
    engine = Engine(tiny_folder, device="cpu", dtype="float32")
    assert engine.bytes_for(1024) == 2 * 1024 * cache_bytes_per_token(engine.config), "fp32, not bf16"

    async def cached(words: str) -> int:
        conversation = (Message("user", (words,)),)
        stream = engine.respond(conversation, (), stop=asyncio.Event(), limits=Limits(max_tokens=2))
        *_, end = [chunk async for chunk in stream]
        assert isinstance(end, EndChunk)
        return end.usage.cached_tokens

    texts = ["one fox " * 120, "two dogs " * 120]
    assert [await cached(text) for text in texts] == [0, 0]
    assert all([await cached(text + "more") >= CPU_CHUNK for text in texts])


def test_a_page_that_is_no_sequences_is_counted(model: M3) -> None:
    prefixes = Prefixes(model, chunk=CHUNK)
    pool = prefixes.pool
    pool.limit_bytes = 12 * pool.page_bytes
    pool.set_aside()
    with pytest.raises(ModelError, match="enough for 176 tokens"):
        prefixes.pick(Tokens.lay_out(IDS[0][:177], (), ()))
    first = prefixes.pick(Tokens.lay_out(IDS[0][:100], (), ()))
    assert first is not None
    second = Tokens.lay_out(IDS[1][:65], (), ())
    assert prefixes.pick(second) is None, "seven pages and five and the one are too many: it waits"
    prefixes.put_back(first)
    assert prefixes.pick(second) is not None
