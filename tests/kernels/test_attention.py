"""The sparse main branch on the GPU against its plain twin: types, shapes, layouts, edges, bad input."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import card, reference
from pilotfish.kernels.attention import choose_tiles, sparse_attention
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.kv_outer import KVOuterTiles
from pilotfish.kernels.plain_attention import plain_sparse_attention
from pilotfish.kernels.query_outer import QueryOuterTiles

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
TOLERANCES = {FP32: 1e-5, FP16: 2e-3, BF16: 1e-2}
WALKS = {
    "key blocks": KVOuterTiles(),
    "key blocks, small cuts": KVOuterTiles(rows=32, piece=8, tokens=32),
    "queries": QueryOuterTiles(),
    "queries, split": QueryOuterTiles(keys=32, splits=3),
}
BOTH_WALKS = ["key blocks", "queries, split"]
TOKENS = {"key blocks": 7, "key blocks, small cuts": 7, "queries": 2, "queries, split": 2}
"""The interpreter takes long over many programs."""


@dataclass
class Problem:
    """Arguments of `sparse_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    ids: Tensor
    batch: Batch
    block: int

    def run(self, tiles: KVOuterTiles | QueryOuterTiles | None = None, **more: Any) -> tuple[Tensor, Tensor]:
        """Through the kernels."""
        return sparse_attention(
            self.q,
            self.k,
            self.v,
            self.ids,
            self.batch,
            block=self.block,
            scale=self.scale,
            tiles=tiles,
            **more,
        )

    def plain(self) -> tuple[Tensor, Tensor]:
        """Through plain torch, in fp32."""
        return plain_sparse_attention(
            self.q.float(), self.k, self.v, self.ids, self.batch, block=self.block, scale=self.scale
        )

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    def check(self, walk: str | None, tolerance: float | None = None, twice: bool = False) -> None:
        """Kernels and plain torch agree; if asked, two runs are equal bit by bit."""
        tiles = None if walk is None else WALKS[walk]
        out, lse = self.run(tiles)
        assert out.dtype == self.q.dtype
        if twice:
            again = self.run(tiles)
            assert torch.equal(out, again[0])
            assert torch.equal(lse, again[1])
        _agree((out, lse), self.plain(), tolerance or TOLERANCES[self.q.dtype])


def _agree(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], tolerance: float) -> None:
    (out, lse), (wanted, wanted_lse) = ours, theirs
    assert out.isfinite().all()
    assert (out.double() - wanted.double()).norm() <= tolerance * wanted.double().norm()
    assert torch.equal(lse == -math.inf, wanted_lse == -math.inf)
    seen = wanted_lse != -math.inf
    torch.testing.assert_close(lse[seen], wanted_lse[seen], atol=1e-4, rtol=1e-5)


def _problem(
    batch: Batch,
    device: torch.device,
    *,
    tokens: int,
    heads: int = 6,
    groups: int = 2,
    width: int = 64,
    kept: int = 4,
    block: int = 32,
    dtype: torch.dtype = FP16,
    keys: int | None = None,
) -> Problem:
    """Random tensors and a random selection, in which every fifth choice or so is missing."""
    shape = (keys or int(batch.key_lengths.sum()), groups, width)
    if batch.pages is not None:
        shape = (keys or batch.pages.numel(), block, groups, width)
    q = torch.randn(tokens, heads, width, device=device).to(dtype)
    k, v = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    ids = _random_ids(tokens, groups, kept, -(-batch.max_keys // block), device)
    return Problem(q, k, v, ids, batch, block)


def _random_ids(tokens: int, groups: int, kept: int, blocks: int, device: torch.device) -> Tensor:
    ranks = torch.rand(tokens, groups, max(blocks, kept), device=device).argsort(-1)[..., :kept]
    return ranks.where(ranks < blocks, -1).where(torch.rand(ranks.shape, device=device) < 0.8, -1).int()


@pytest.mark.parametrize(
    ("walk", "dtype"),
    [*((walk, FP16) for walk in WALKS), *((walk, dtype) for walk in BOTH_WALKS for dtype in (FP32, BF16))],
)
def test_equals_the_twin_in_every_type(device: torch.device, walk: str, dtype: torch.dtype) -> None:
    tokens = TOKENS[walk]
    _problem(Batch.single(tokens, 300, device), device, tokens=tokens, dtype=dtype).check(
        walk, twice=dtype == FP16
    )


@pytest.mark.parametrize("walk", BOTH_WALKS)
@pytest.mark.parametrize(
    ("heads", "groups", "width", "block", "kept"),
    [(16, 1, 128, 128, 16), (2, 2, 64, 64, 32), (22, 2, 64, 32, 3), (3, 1, 128, 32, 1)],
)
def test_equals_the_twin_in_every_shape(
    device: torch.device, walk: str, heads: int, groups: int, width: int, block: int, kept: int
) -> None:
    _problem(
        Batch.single(2, 700, device),
        device,
        tokens=2,
        heads=heads,
        groups=groups,
        width=width,
        block=block,
        kept=kept,
    ).check(walk)


@pytest.mark.parametrize("walk", BOTH_WALKS)
@pytest.mark.parametrize("paged", [False, True])
def test_equals_the_twin_with_many_sequences(device: torch.device, walk: str, paged: bool) -> None:
    pages = torch.randperm(40, device=device)[:28].reshape(4, 7).int() if paged else None
    queries = [5, 0, 7, 1] if walk == "key blocks" else [2, 0, 3, 1]
    batch = Batch.packed(queries, [45, 17, 200, 90], device, pages)
    _problem(batch, device, tokens=sum(queries), keys=40 if paged else None).check(walk)


@pytest.mark.parametrize("walk", BOTH_WALKS)
@pytest.mark.parametrize("keys", [1, 127, 128, 129, 2047, 2048, 2049])
def test_equals_full_attention_while_all_blocks_are_kept(device: torch.device, walk: str, keys: int) -> None:
    queries = 2 if 1 < keys < 2000 else 1
    problem = _problem(
        Batch.single(queries, keys, device), device, tokens=queries, heads=2, groups=1, block=128, dtype=FP32
    )
    blocks = torch.arange(17, dtype=torch.int32, device=device)
    problem.ids = blocks.where(blocks * 128 < keys, -1).expand(queries, 1, -1).contiguous()
    q, k, v = (x.transpose(0, 1)[None] for x in (problem.q, problem.k, problem.v))
    wanted = reference.dense_attention(q, k, v, keys - queries, problem.scale)[0].transpose(0, 1)
    torch.testing.assert_close(problem.run(WALKS[walk])[0], wanted, atol=2e-5, rtol=1e-5)


def test_twin_equals_attention_under_a_mask(device: torch.device) -> None:
    problem = _problem(Batch.single(50, 200, device), device, tokens=50, dtype=torch.float64)
    problem.ids[:, :, 0] = torch.arange(150, 200, device=device, dtype=torch.int32)[:, None] // 32
    problem.ids[:, :, 1:] = problem.ids[:, :, 1:].where(problem.ids[:, :, 1:] != problem.ids[:, :, :1], -1)
    keep = reference.keep_mask(problem.ids.transpose(0, 1)[None].long(), 150, 32, 200)
    q, k, v = (x.transpose(0, 1)[None] for x in (problem.q, problem.k, problem.v))
    wanted = reference.masked_attention(q, k, v, keep, problem.scale)[0].transpose(0, 1)
    out, lse = plain_sparse_attention(
        problem.q, problem.k, problem.v, problem.ids, problem.batch, block=32, scale=problem.scale
    )
    torch.testing.assert_close(out, wanted)
    keep_HTN = keep[0].repeat_interleave(3, 0)
    scores = torch.matmul(q[0], k[0].repeat_interleave(3, 0).transpose(-1, -2)) * problem.scale
    wanted_lse = scores.masked_fill(~keep_HTN, -math.inf).logsumexp(-1).T
    torch.testing.assert_close(lse, wanted_lse.float())


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_differs_from_full_attention_beyond_the_budget(device: torch.device, walk: str) -> None:
    problem = _problem(Batch.single(4, 300, device), device, tokens=4)
    q, k, v = (x.float().transpose(0, 1)[None] for x in (problem.q, problem.k, problem.v))
    full = reference.dense_attention(q, k, v, 296, problem.scale)[0].transpose(0, 1)
    assert (problem.run(WALKS[walk])[0].float() - full).norm() > 0.1 * full.norm()


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_order_repeats_and_foreign_ids_change_nothing(device: torch.device, walk: str) -> None:
    tokens = TOKENS[walk]
    problem = _problem(Batch.single(tokens, 300, device), device, tokens=tokens)
    plain = problem.plain()
    _agree(problem.run(WALKS[walk]), plain, 2e-3)
    foreign = torch.tensor([-7, 10, 1 << 24, (1 << 31) - 1], dtype=torch.int32, device=device)
    ids = torch.cat((problem.ids, problem.ids, foreign.expand(tokens, 2, -1)), dim=-1)
    order = torch.rand(ids.shape, device=device).argsort(-1)
    problem.ids = ids.gather(-1, order)
    _agree(problem.run(WALKS[walk]), plain, 2e-3)
    _agree(problem.plain(), plain, 1e-6)


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_unused_memory_may_hold_anything(device: torch.device, walk: str) -> None:
    problem = _problem(Batch.single(TOKENS[walk], 300, device), device, tokens=TOKENS[walk], keys=340)
    wanted = problem.run(WALKS[walk])
    problem.k[300:], problem.v[300:] = math.nan, math.inf
    for ours, before in zip(problem.run(WALKS[walk]), wanted, strict=True):
        assert torch.equal(ours, before)
    pages = torch.randperm(20, device=device)[:10].reshape(2, 5).int()
    problem = _problem(Batch.packed([3, 2], [70, 140], device, pages), device, tokens=5, keys=20)
    wanted = problem.run(WALKS[walk])
    used = torch.zeros(20, 32, dtype=torch.bool, device=device)
    for s, length in enumerate((70, 140)):
        place = torch.arange(length, device=device)
        used[pages[s].long()[place // 32], place % 32] = True
    problem.k[~used], problem.v[~used] = math.nan, math.nan
    for ours, before in zip(problem.run(WALKS[walk]), wanted, strict=True):
        assert torch.equal(ours, before)


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_rows_without_keys_give_zeros_and_leave_their_neighbours_alone(
    device: torch.device, walk: str
) -> None:
    batch = Batch.packed([3, 1, 2], [70, 0, 64], device)
    problem = _problem(batch, device, tokens=8)
    out, lse = problem.run(WALKS[walk])
    for row in (3, 6, 7):
        assert not out[row].any()
        assert (lse[row] == -math.inf).all()
    _agree((out, lse), problem.plain(), 2e-3)
    whole = Problem(
        problem.q[:3],
        problem.k[:70],
        problem.v[:70],
        problem.ids[:3],
        Batch.single(3, 70, device),
        problem.block,
    )
    assert torch.equal(out[:3], whole.run(WALKS[walk])[0])


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_each_token_sees_what_it_is_told(device: torch.device, walk: str) -> None:
    visible = torch.tensor([5, 0, 129, 1000, -3, 64], dtype=torch.int32, device=device)
    batch = dataclasses.replace(Batch.single(6, 300, device), visible=visible)
    _problem(batch, device, tokens=6, groups=1, heads=3, kept=6).check(walk)


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_a_layout_is_read_by_its_strides(device: torch.device, walk: str) -> None:
    """As many tokens as heads, so that no shape tells [T, H, D] from [H, T, D]; K and V side by side."""
    problem = _problem(Batch.single(4, 100, device), device, tokens=4, heads=4)
    wanted = problem.run(WALKS[walk])
    kv = torch.stack((problem.k, problem.v), dim=1)
    out = torch.full((4, 4, 64), math.nan, dtype=FP16, device=device).transpose(0, 1)
    lse = torch.empty(4, 4, device=device).T
    strided = dataclasses.replace(
        problem,
        q=problem.q.transpose(0, 1).contiguous().transpose(0, 1),
        k=kv[:, 0],
        v=kv[:, 1],
        ids=problem.ids.transpose(0, 1).contiguous().transpose(0, 1),
    )
    results = strided.run(WALKS[walk], out=out, lse=lse)
    assert results[0] is out
    assert results[1] is lse
    for ours, before in zip(results, wanted, strict=True):
        assert torch.equal(ours, before)
    cache = dataclasses.replace(
        problem, **{n: getattr(problem, n).transpose(0, 1).contiguous().transpose(0, 1) for n in "kv"}
    )
    assert torch.equal(cache.run(WALKS[walk])[0], wanted[0])


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_pages_equal_packed_keys(device: torch.device, walk: str) -> None:
    queries, keys = [3, 2], [110, 75]
    packed = _problem(Batch.packed(queries, keys, device), device, tokens=5)
    pages = torch.tensor([[4, 0, 6, 2], [5, 1, 3, 7]], dtype=torch.int32, device=device)
    paged = dataclasses.replace(packed, batch=Batch.packed(queries, keys, device, pages))
    for name in "kv":
        pool, first = torch.zeros(8, 32, 2, 64, dtype=FP16, device=device), 0
        for s, length in enumerate(keys):
            padded = torch.zeros(128, 2, 64, dtype=FP16, device=device)
            padded[:length] = getattr(packed, name)[first : first + length]
            pool[pages[s].long()] = padded.unflatten(0, (4, 32))
            first += length
        setattr(paged, name, pool)
    for ours, theirs in zip(paged.run(WALKS[walk]), packed.run(WALKS[walk]), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_sequences_may_share_pages(device: torch.device, walk: str) -> None:
    """The second sequence has grown into the page in which the first ends."""
    pages = torch.tensor([[3, 1, 0], [3, 1, 2]], dtype=torch.int32, device=device)
    _problem(Batch.packed([2, 4], [40, 90], device, pages), device, tokens=6, keys=4).check(walk)


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_pages_outside_the_pool_are_not_read(device: torch.device, walk: str) -> None:
    pages = torch.tensor([[3, -1, 99]], dtype=torch.int32, device=device)
    _problem(Batch.packed([4], [90], device, pages), device, tokens=4, keys=4).check(walk)


@pytest.mark.parametrize("walk", BOTH_WALKS)
def test_keys_in_fp8(device: torch.device, walk: str) -> None:
    problem = _problem(Batch.single(5, 300, device), device, tokens=5, dtype=BF16)
    problem.k, problem.v = problem.k.to(FP8), problem.v.to(FP8)
    problem.check(walk)


def test_large_scores_do_not_overflow(device: torch.device) -> None:
    problem = _problem(Batch.single(5, 300, device), device, tokens=5, dtype=FP32)
    problem.q *= 1000
    for walk in BOTH_WALKS:
        problem.check(walk, tolerance=1e-2)


def test_the_walk_is_chosen_by_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200, with 4 groups."""
    monkeypatch.setattr(card, "NO_CARD", card.Card(cores=132, capability=(9, 0)))

    def chosen(
        tokens: int, keys: int, dtype: torch.dtype = BF16, sequences: int = 1
    ) -> KVOuterTiles | QueryOuterTiles:
        q, k = (torch.empty(n, 4, 128, dtype=dtype, device="meta") for n in (tokens, keys * sequences))
        ids = torch.empty(tokens, 4, 16, dtype=torch.int32, device="meta")
        lengths = (sequences + 1, sequences)
        starts, lengths_S = (torch.empty(n, dtype=torch.int32, device="meta") for n in lengths)
        batch = Batch(starts, lengths_S, tokens // sequences, keys, key_starts=starts)
        return choose_tiles(q, k, ids, batch, 128)

    million = 1 << 20
    assert isinstance(chosen(8192, million), KVOuterTiles)
    assert isinstance(chosen(1024, million), QueryOuterTiles)
    assert isinstance(chosen(8192, million, FP32), QueryOuterTiles)
    assert chosen(1, million) == QueryOuterTiles(keys=64, splits=32, stages=1, overlap=True)
    assert chosen(64, 8192, sequences=64) == QueryOuterTiles(keys=64, overlap=True)
    assert chosen(32, 65_536) == QueryOuterTiles(keys=128, splits=1, overlap=True)
    assert chosen(64, 65_536) == QueryOuterTiles(keys=128, warps=8, stages=2)
    monkeypatch.setattr(card, "NO_CARD", card.Card(cores=132, capability=(8, 9), shared=99 << 10))
    assert chosen(32, 65_536) == QueryOuterTiles(keys=128, warps=8, stages=2)
    assert chosen(16, 8192, sequences=16) == QueryOuterTiles(keys=64, splits=2, overlap=False)


def test_nothing_to_do(device: torch.device) -> None:
    problem = _problem(Batch.single(0, 64, device), device, tokens=0)
    assert [x.shape for x in problem.run()] == [(0, 6, 64), (0, 6)]
    problem = _problem(Batch.single(0, 0, device), device, tokens=3)
    out, lse = problem.run()
    assert not out.any()
    assert (lse == -math.inf).all()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"q": torch.empty(9, 6, 64, dtype=torch.float64)}, "q is torch.float64"),
    "head width": ({"q": torch.empty(9, 6, 80)}, "width 80: 64 or 128"),
    "block": ({"block": 16}, "block is 16: 32, 64 or 128"),
    "scale": ({"scale": 0.0}, "scale is 0.0: a number from 1e-30 to 1e+30"),
    "key type": ({"k": torch.empty(300, 2, 64, dtype=BF16)}, "k is torch.bfloat16"),
    "key shape": ({"k": torch.empty(300, 64)}, "k is torch.float32 [300, 64]"),
    "values": ({"v": torch.empty(299, 2, 64)}, "v is torch.float32 [299, 2, 64]"),
    "groups": ({"q": torch.empty(9, 7, 64)}, "q has 7 heads for 2 KV groups"),
    "group size": ({"q": torch.empty(9, 34, 64)}, "1 to 16 heads per group"),
    "id type": ({"ids": torch.zeros(9, 2, 4, dtype=torch.int64)}, "ids is torch.int64"),
    "id shape": ({"ids": torch.zeros(2, 9, 4, dtype=torch.int32)}, "[T, G, K] with T = 9 and G = 2"),
    "kept": ({"ids": torch.zeros(9, 2, 33, dtype=torch.int32)}, "ids keeps 33 blocks: up to 32"),
    "stride": ({"q": torch.empty(9, 64, 6).transpose(1, 2)}, "q has strides (384, 1, 6)"),
    "device": ({"k": torch.empty(300, 2, 64, device="meta")}, "k is on meta"),
    "out": ({"out": torch.empty(9, 6, 32)}, "out is torch.float32 [9, 6, 32]"),
    "lse": ({"lse": torch.empty(9, 6, dtype=FP16)}, "lse is torch.float16"),
    "batch": ({"batch": Batch.single(9, 400, "cpu")}, "fewer than batch.max_keys = 400"),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the examples lie on the CPU")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence(case: str) -> None:
    change, message = BAD[case]
    arguments: dict[str, Any] = {
        "q": torch.empty(9, 6, 64),
        "k": torch.empty(300, 2, 64),
        "v": torch.empty(300, 2, 64),
        "ids": torch.zeros(9, 2, 4, dtype=torch.int32),
        "batch": Batch.single(9, 300, "cpu"),
        "block": 32,
        "scale": 0.125,
    } | change
    q, k, v, ids, batch = (arguments.pop(name) for name in ("q", "k", "v", "ids", "batch"))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        sparse_attention(q, k, v, ids, batch, **arguments)
    assert "\n" not in str(caught.value)


def test_pages_must_be_as_long_as_a_block(device: torch.device) -> None:
    pages = torch.zeros(1, 10, dtype=torch.int32, device=device)
    problem = _problem(Batch.packed([9], [300], device, pages), device, tokens=9)
    problem.block = 64
    with pytest.raises(ValueError, match="pages of 32 keys: the page size must be the block, 64"):
        problem.run()


@gpu
@pytest.mark.parametrize("tokens", [1, 64, 1000, 9000])
def test_long_contexts(device: torch.device, tokens: int) -> None:
    problem = _problem(
        Batch.single(tokens, 100_003, device),
        device,
        tokens=tokens,
        heads=64,
        groups=4,
        width=128,
        kept=16,
        block=128,
        dtype=BF16,
    )
    problem.check(None, twice=True)


@gpu
def test_a_cuda_graph_follows_its_inputs(device: torch.device) -> None:
    for tokens in (1, 512):
        problem = _problem(Batch.single(tokens, 4096, device), device, tokens=tokens, kept=8)
        problem.run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = problem.run()
        fresh = _problem(problem.batch, device, tokens=tokens, kept=8)
        for name in ("q", "k", "v", "ids"):
            getattr(problem, name).copy_(getattr(fresh, name))
        graph.replay()
        for ours, wanted in zip(results, fresh.run(), strict=True):
            assert torch.equal(ours, wanted)


@gpu
def test_launches_that_overlap_change_nothing(device: torch.device) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("overlapping launches take compute capability 9.0")
    problem = _problem(Batch.single(2, 4096, device), device, tokens=2, kept=16)
    for _ in range(100):
        problem.q.normal_()
        overlapping = problem.run(QueryOuterTiles(splits=8, overlap=True))
        for ours, wanted in zip(overlapping, problem.run(QueryOuterTiles(splits=8)), strict=True):
            assert torch.equal(ours, wanted)


@gpu
def test_offsets_beyond_32_bits(device: torch.device) -> None:
    """A cache laid out [G, N, D] whose last group starts behind the 2^31st value."""
    cache = torch.zeros(17, 1 << 20, 128, dtype=BF16, device=device)
    problem = _problem(
        Batch.single(300, 1 << 20, device),
        device,
        tokens=300,
        heads=17,
        groups=17,
        width=128,
        block=128,
        dtype=BF16,
        keys=1,
    )
    cache[:, -1000:] = torch.randn(17, 1000, 128, device=device)
    problem.k, problem.v = cache.transpose(0, 1), cache.transpose(0, 1)
    problem.ids = ((1 << 13) - 8 + torch.rand(300, 17, 8, device=device).argsort(-1)[..., :4]).int()
    for walk in BOTH_WALKS:
        problem.check(walk)
