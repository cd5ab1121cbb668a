"""Pages that sequences share: whatever is done to them, the scores are those of a cold run, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pilotfish.model import checkpoint, saved
from pilotfish.model.folder import find_folder
from pilotfish.model.m3 import M3
from pilotfish.model.memory import GIB, free_bytes
from pilotfish.model.pages import PagePool
from pilotfish.model.protocol import ModelError
from pilotfish.model.sequence import Tokens, TokenSequence, append_each, pool_for

CHUNK = 32
IDS = np.random.default_rng(0).integers(10, 500, (3, 2200)).tolist()

# A sequence's number, and for a prompt its parts: how many tokens of the common text and of one's own.
NUMBER = st.integers(0, 5)
PARTS = st.tuples(st.sampled_from([0, 1, 31, 64, 65, 100]), st.integers(0, 2), st.integers(1, 90))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), NUMBER, PARTS),
        st.tuples(st.just("extend"), NUMBER, PARTS),
        st.tuples(st.just("append"), NUMBER, st.integers(1, 20)),
        st.tuples(st.just("batch"), NUMBER, st.integers(1, 10)),
        st.tuples(st.just("truncate"), NUMBER, st.floats(0, 1)),
        st.tuples(st.just("fork"), NUMBER, st.floats(0, 1)),
        st.tuples(st.just("settle"), NUMBER, st.integers(0, 60)),
        st.tuples(st.just("save"), NUMBER, st.none()),
        st.tuples(st.just("end"), NUMBER, st.none()),
    ),
    min_size=4,
    max_size=14,
)


def no_features(number: int) -> Tensor:
    raise AssertionError("there are no pictures")


def prompt(ids: list[int]) -> Tokens:
    return Tokens.lay_out(ids, (), ())


def extend(sequence: TokenSequence, ids: list[int]) -> Tensor:
    scores = sequence.extend(prompt(ids), no_features)
    assert scores is not None
    return scores


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def model(tiny_model: Callable[..., M3], request: pytest.FixtureRequest) -> M3:
    """Four blocks of 16 tokens kept: prompts go past the sparse budget."""
    return tiny_model(0).to(request.param).requires_grad_(False)


@pytest.fixture(scope="module")
def cold(model: M3) -> Callable[..., Tensor]:
    """The scores after a prompt, and after tokens appended to it, of a sequence that saw nothing before."""

    @cache
    def scores(ids: tuple[int, ...], appended: tuple[int, ...] = ()) -> Tensor:
        sequence = TokenSequence(model, chunk=CHUNK)
        last = extend(sequence, list(ids))
        for token in appended:
            last = sequence.append(token)
        return last

    return scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_whatever_happens_the_scores_are_cold_ones(
    model: M3, cold: Callable[..., Tensor], folder: Path, steps: list[tuple[str, int, object]]
) -> None:
    pool, path = pool_for(model), folder / "sequence"
    held: list[tuple[TokenSequence, list[int] | None]] = [
        (TokenSequence(model, chunk=CHUNK, pool=pool), None)
    ]
    for step, number, value in steps:
        number %= len(held)
        sequence, ids = held[number]
        match step, value:
            case "extend", (int(common), int(own), int(length)):
                ids = IDS[0][:common] + IDS[own][common : common + length]
                assert torch.equal(extend(sequence, ids), cold(tuple(ids)))
                held[number] = sequence, ids
            case "append", int(count) if ids is not None and sequence.length == len(ids):
                new = IDS[2][:count]
                for token in new:
                    scores = sequence.append(token)
                assert torch.equal(scores, cold(tuple(ids), tuple(new)))
            case "batch", int(count):
                prompts = [ids if ids is not None and s.length == len(ids) else None for s, ids in held]
                for i in range(count if any(prompts) else 0):
                    rows = append_each(
                        [s for (s, _), ids in zip(held, prompts, strict=True) if ids],
                        [IDS[2][i + j] for j, ids in enumerate(filter(None, prompts))],
                    )
                for j, ids in enumerate(filter(None, prompts)):
                    assert torch.equal(rows[j], cold(tuple(ids), tuple(IDS[2][j : j + count])))
            case "truncate", float(share):
                length = round(share * sequence.length)
                sequence.truncate(length)
                assert sequence.length == length
            case "fork", float(share):
                length = round(share * sequence.length)
                held.append((sequence.fork(length), ids if length == sequence.length else None))
            case "settle", int(more):
                sequence.cache.settle(sequence.length + more)
                assert sequence.cache.in_one_run
            case "save", _ if sequence.whole:
                whole = saved.save(sequence, path, {})
                held.append((TokenSequence(model, chunk=CHUNK, pool=pool), None))
                assert saved.load(path, held[-1][0], {}) == whole
                assert held[-1][0].whole == whole == sequence.whole
            case "end", _ if len(held) > 1:
                del held[number]
                sequence = held[0][0]
        assert pool.held <= sum(len(kept.cache) for kept, _ in held)
    del held, sequence
    assert pool.held == 0


def test_a_fork_shares_its_pages(model: M3) -> None:
    trunk = TokenSequence(model, chunk=CHUNK)
    pool = trunk.cache.pool
    extend(trunk, IDS[0][:100])
    before = pool.held
    assert before == 7
    twin, part = trunk.fork(), trunk.fork(64)
    assert pool.held == before + 1, "only the last page, not a whole one, is copied"
    assert (len(twin.cache), len(part.cache)) == (7, 4)
    extend(twin, IDS[0][:96] + IDS[1][:20])
    assert pool.held == before + 2
    assert not twin.cache.in_one_run
    assert trunk.cache.in_one_run
    twin.cache.settle(twin.length)
    assert twin.cache.in_one_run
    assert pool.held == before + len(twin.cache)


def test_a_shared_page_is_copied_before_it_is_written(model: M3, cold: Callable[..., Tensor]) -> None:
    trunk = TokenSequence(model, chunk=CHUNK)
    extend(trunk, IDS[0][:100])
    twin = trunk.fork()
    trunk.truncate(70)
    trunk.append(7)
    assert torch.equal(extend(twin, IDS[0][:97]), cold(tuple(IDS[0][:97])))


def test_past_two_thousand_tokens_on_shared_pages(model: M3) -> None:
    """A fork in the midst of a long prompt, whose pages lie in pieces, and one moved together."""
    trunk = TokenSequence(model, chunk=256)
    first = extend(trunk, IDS[0][:2100])
    other = IDS[0][:1999] + IDS[1][:150]
    expected = extend(TokenSequence(model, chunk=256), other)
    for settled in (False, True):
        twin = trunk.fork(2000)
        if settled:
            twin.cache.settle(len(other))
        assert torch.equal(extend(twin, other), expected)
        assert twin.cache.in_one_run == settled
    assert torch.equal(extend(trunk, IDS[0][:2100]), first)


def test_the_shipped_model_past_its_budget() -> None:
    model, _ = checkpoint.load(find_folder("nano"))
    ids = [i + 100 for i in IDS[0][:700]]
    trunk = TokenSequence(model, chunk=256)
    extend(trunk, ids)
    twin = trunk.fork(600)
    other = ids[:590] + [200] * 60
    assert twin.reusable(prompt(other)) == 512
    assert torch.equal(extend(twin, other), extend(TokenSequence(model, chunk=256), other))
    assert not twin.cache.in_one_run


def test_batches_of_the_shipped_model_past_its_budget() -> None:
    """Six sequences, below and beyond the sparse budget, in every order: each row is what it is alone."""
    model, _ = checkpoint.load(find_folder("nano"))
    pool = pool_for(model)
    lengths = [1, 31, 505, 640, 700, 300]

    def sequences() -> list[TokenSequence]:
        made = [TokenSequence(model, chunk=256, pool=pool) for _ in lengths]
        for i, length in enumerate(lengths):
            extend(made[i], [token + 100 * i for token in IDS[0][:length]])
        return made

    alone = [[s.append(token) for token in range(200, 210)] for s in sequences()]
    together, random = sequences(), np.random.default_rng(0)
    for step, token in enumerate(range(200, 210)):
        order = random.permutation(len(lengths)).tolist()
        rows = append_each([together[i] for i in order], [token] * len(order))
        for i, row in zip(order, rows, strict=True):
            assert torch.equal(row, alone[i][step])


def test_the_pool_hands_out_rows_of_pages(model: M3) -> None:
    pool = pool_for(model)
    assert pool.take(3) == [0, 1, 2]
    assert pool.take(2) == [3, 4]
    assert pool.take(1, after=4) == [5]
    assert pool.take(1, after=2) == [6], "page 3 is taken"
    pool.release([3, 4])
    assert pool.take(1, after=2) == [3]
    assert pool.take(2) == [7, 8]
    assert pool.take(1) == [4]
    assert pool.held == 9


def test_short_memory_scatters_pages_and_then_refuses(model: M3) -> None:
    page = pool_for(model).page_bytes
    pool = PagePool(model.config, "cpu", model.language_model.lm_head.weight.dtype, limit_bytes=8 * page)
    pool.take(8)
    pool.release([1, 4, 6])
    assert pool.take(3) == [1, 4, 6]
    pool.release([2])
    with pytest.raises(ModelError, match=r"2 more pages of cache take .* GiB can be had on cpu"):
        pool.take(2)
    assert pool.held == 7
    assert pool.bytes == 8 * page


def test_without_a_row_of_free_pages_a_sequence_stays_where_it_is(
    model: M3, cold: Callable[..., Tensor]
) -> None:
    """Its own pages are 0, 2 and 5, another's is 6; 1, 3, 4 and 7 are free, at most two in a row."""
    pool = pool_for(model, limit_bytes=8 * pool_for(model).page_bytes)
    sequence, neighbour = (TokenSequence(model, chunk=CHUNK, pool=pool) for _ in range(2))
    held = pool.take(8)
    for one, page, ids in ((neighbour, 6, IDS[0][:16]), (sequence, 0, IDS[1][:16])):
        pool.release([page])
        extend(one, ids)
    pool.release([2, 5])
    extend(sequence, IDS[1][:48])
    pool.release([held[page] for page in (1, 3, 4, 7)])
    assert (list(neighbour.cache), list(sequence.cache), pool.held) == ([6], [0, 2, 5], 4)
    sequence.cache.settle(48)
    assert torch.equal(neighbour.append(7), cold(tuple(IDS[0][:16]), (7,)))
    assert torch.equal(sequence.append(7), cold(tuple(IDS[1][:48]), (7,)))


def test_what_cannot_fit_is_refused_with_the_numbers(model: M3) -> None:
    pool = pool_for(model)
    tokens = 10 * free_bytes(torch.device("cpu")) // pool.page_bytes * pool.block
    assert pool.bytes_for(tokens) > 9 * free_bytes(torch.device("cpu"))
    message = (
        rf"{tokens} tokens takes {pool.bytes_for(tokens) / GIB:.2f} GiB of cache and .* can be had on cpu"
    )
    with pytest.raises(ModelError, match=message):
        pool.refuse_beyond(tokens)
    pool.refuse_beyond(1000)


def test_a_refused_prompt_leaves_the_sequence(model: M3, cold: Callable[..., Tensor]) -> None:
    page = pool_for(model).page_bytes
    pool = pool_for(model, limit_bytes=8 * page)
    sequence = TokenSequence(model, chunk=CHUNK, pool=pool)
    extend(sequence, IDS[0][:100])
    with pytest.raises(ModelError, match=r"129 tokens takes .* enough for 128 tokens"):
        extend(sequence, IDS[0][:129])
    assert sequence.length == 100
    assert torch.equal(extend(sequence, IDS[0][:128]), cold(tuple(IDS[0][:128])))
