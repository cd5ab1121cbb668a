"""Selection on the GPU against its plain twin: sets of blocks, ties, shapes, layouts, bad input."""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import plain_selection as plain
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.block_ranks import ScoreTiles, score_tiles
from pilotfish.kernels.card import Card
from pilotfish.kernels.selection import select_blocks

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FLOATS = {torch.float32: 1e-5, torch.float16: 1e-5, torch.bfloat16: 1e-5, torch.float8_e4m3fn: 1e-3}


def _random(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def _check(
    qi: Tensor,
    ki: Tensor,
    batch: Batch,
    *,
    block: int,
    topk: int,
    local: int = 1,
    init: int = 0,
) -> None:
    """Sets equal to those of the twin in float64, but for blocks that differ by less than rounding."""
    settings: dict[str, Any] = {"block": block, "topk": topk, "local": local, "init": init}
    ids_TGK = select_blocks(qi, ki, batch, **settings)
    again_TGK = select_blocks(qi, ki, batch, **settings)
    assert torch.equal(ids_TGK, again_TGK)
    wanted_TGK = plain.select_blocks(qi.double(), ki.double(), batch, **settings)
    assert ids_TGK.dtype == torch.int32
    assert ids_TGK.shape == wanted_TGK.shape
    _assert_ascending(ids_TGK)
    assert torch.equal(ids_TGK < 0, wanted_TGK < 0)
    visible_T, sequence_T = batch.row_visible(qi.shape[0]), batch.row_sequences(qi.shape[0])
    for t, g in (ids_TGK != wanted_TGK).any(-1).nonzero().tolist():
        s = int(sequence_T[t])
        keys_ND = plain.sequence_keys(ki, batch, s, int(batch.key_lengths[s]))
        q_D = qi[t : t + 1, g : g + 1].double()
        scores_C = plain.block_scores(q_D, keys_ND.double(), visible_T[t : t + 1], block)[0, 0]
        ours, theirs = set(ids_TGK[t, g].tolist()), set(wanted_TGK[t, g].tolist())
        swapped = scores_C[sorted(ours ^ theirs)]
        slack = FLOATS[qi.dtype] * float(q_D.norm() * keys_ND.double().norm(dim=-1).max())
        assert swapped.max() - swapped.min() <= slack, (t, g, sorted(ours - theirs), sorted(theirs - ours))


def _assert_ascending(ids_TGK: Tensor) -> None:
    """Ascending, -1 at the end alone, none twice."""
    rank_TGK = ids_TGK.where(ids_TGK >= 0, 2**31 - 1).long()
    steps = rank_TGK.diff(dim=-1)
    assert ((steps > 0) | (ids_TGK[..., 1:] < 0)).all()


@pytest.mark.parametrize("keys", [1, 127, 128, 129, 2047, 2048, 2049])
def test_equals_the_twin_at_edges_of_blocks(device: torch.device, keys: int) -> None:
    queries = min(keys, 3)
    qi = _random(queries, 2, 64, device=device)
    _check(qi, _random(keys, 64, device=device), Batch.single(queries, keys, device), block=128, topk=4)


@pytest.mark.parametrize("dtype", list(FLOATS))
@pytest.mark.parametrize(("queries", "groups"), [(1, 4), (9, 2)])
def test_equals_the_twin_in_every_type(
    device: torch.device, dtype: torch.dtype, queries: int, groups: int
) -> None:
    qi = _random(queries, groups, 64, dtype=dtype, device=device)
    ki = _random(700, 64, dtype=dtype, device=device)
    _check(qi, ki, Batch.single(queries, 700, device), block=32, topk=4)


def test_the_cut_changes_nothing(device: torch.device) -> None:
    """Keys in front or rows, wide tiles and narrow ones, long lanes and short, packed and in pages."""
    qi, ki = (_random(*s, dtype=torch.float16, device=device) for s in ((2, 1, 64), (768, 64)))
    batch = Batch.single(2, 700, device)
    pages = torch.arange(6, dtype=torch.int32, device=device).flip(0)[None]
    paged, pool = Batch.packed([2], [700], device, pages), ki.view(6, 128, 64).flip(0)
    wanted = select_blocks(qi, ki, batch, block=128, topk=3)
    for rows, span, keys_first in ((64, 1, True), (16, 3, True), (64, 2, False), (128, 64, False)):
        tiles = ScoreTiles(rows, 128, span, warps=4, stages=2, keys_first=keys_first)
        assert torch.equal(select_blocks(qi, ki, batch, block=128, topk=3, tiles=tiles), wanted)
        assert torch.equal(select_blocks(qi, pool, paged, block=128, topk=3, tiles=tiles), wanted)


def test_every_shape_has_a_cut() -> None:
    """Whole steps, lanes that one warp can take in, and programs that fill the card if there is the work."""
    for _ in range(1000):
        rows, blocks, sequences = (int(2 ** (limit * random.random())) for limit in (17, 17, 10))
        block, dtype = random.choice([32, 64, 128]), random.choice(list(FLOATS))
        card = Card(random.randint(1, 160), random.choice([(8, 0), (8, 9), (9, 0), (10, 0)]))
        cut = score_tiles(rows, blocks, sequences, block, dtype, card)
        assert cut.keys % block == 0
        assert cut.span % (cut.keys // block) == 0
        assert 1 <= cut.span <= 64
        assert blocks / cut.span <= 4096
        steps = -(-blocks * block // cut.keys) * -(-rows // cut.rows) * sequences
        programs = -(-blocks // cut.span) * -(-rows // cut.rows) * sequences
        assert programs > min(steps, 2 * card.cores) // 2


def test_launches_start_early_where_rows_are_few_and_products_overlap_where_they_are_many() -> None:
    for dtype in FLOATS:
        fast = dtype != torch.float32
        for capability in ((8, 9), (9, 0), (10, 0)):
            few, many = (
                score_tiles(rows, 8192, 1, 128, dtype, Card(132, capability)) for rows in (4, 32_768)
            )
            assert few.early == (fast and capability >= (9, 0))
            assert many.overlap == (fast and capability == (9, 0))
            assert not few.overlap
            assert not many.early


@pytest.mark.parametrize(("block", "width", "topk"), [(32, 128, 1), (64, 32, 3), (128, 64, 16), (32, 64, 32)])
def test_equals_the_twin_in_every_size(device: torch.device, block: int, width: int, topk: int) -> None:
    qi, ki = (_random(*s, dtype=torch.float16, device=device) for s in ((2, 2, width), (1500, width)))
    _check(qi, ki, Batch.single(2, 1500, device), block=block, topk=topk)


@pytest.mark.parametrize(("local", "init"), [(0, 0), (2, 1), (1, 3), (3, 5)])
def test_forced_blocks_are_kept(device: torch.device, local: int, init: int) -> None:
    qi, ki = _random(4, 2, 64, device=device), _random(500, 64, device=device)
    batch = Batch.single(4, 500, device)
    _check(qi, ki, batch, block=32, topk=8, local=local, init=init)
    ids_TGK = select_blocks(qi, ki, batch, block=32, topk=8, local=local, init=init)
    for forced in [*range(init), *range(16 - local, 16)]:
        assert (ids_TGK == forced).any(-1).all()


def test_ties_go_to_the_lower_id(device: torch.device) -> None:
    """All scores equal, -0 among them: the lowest ids and the row's own block."""
    qi = torch.zeros(1, 2, 64, device=device)
    ki = -torch.zeros(2304, 64, device=device)
    ki[::7] = 0.0
    ids_TGK = select_blocks(qi, ki, Batch.single(1, 2304, device), block=128, topk=16)
    assert ids_TGK.tolist() == [[[*range(15), 17]] * 2]


def test_ties_among_many_blocks_go_to_the_lower_id(device: torch.device) -> None:
    """More blocks than lanes, few distinct scores: the ids must be the twin's own, not a set as good."""
    qi = torch.randint(-1, 2, (2, 2, 32), device=device).float()
    ki = torch.randint(-1, 2, (20_000, 32), device=device).float()
    batch = Batch.single(2, 20_000, device)
    ids_TGK = select_blocks(qi, ki, batch, block=32, topk=16)
    assert torch.equal(ids_TGK, plain.select_blocks(qi, ki, batch, block=32, topk=16))


@pytest.mark.parametrize(("high", "init"), [(0, 0), (8, 2), (80, 0)])
def test_lanes_of_many_good_blocks_and_of_few(device: torch.device, high: int, init: int) -> None:
    """More lanes than threads of a warp; good blocks side by side and scattered, many of them ties."""
    blocks, span = 300, random.choice([4, 8])
    levels_C = torch.rand(blocks, device=device)
    start = random.randrange(blocks - high)
    levels_C[start : start + high] = random.choice([2.0, 0.5])
    levels_C[random.sample(range(blocks), random.randrange(20))] = 2.0
    ki = torch.zeros(blocks * 32 - 5, 32, device=device)
    ki[::32, 0] = levels_C
    qi = torch.zeros(3, 2, 32, device=device)
    qi[..., 0] = torch.tensor([1.0, -1.0], device=device)
    batch = Batch.single(3, len(ki), device)
    tiles = ScoreTiles(32, 128, span, warps=4, stages=1, keys_first=False)
    settings: dict[str, Any] = {"block": 32, "topk": random.randint(init + 2, 16), "init": init}
    ids_TGK = select_blocks(qi, ki, batch, tiles=tiles, **settings)
    assert torch.equal(ids_TGK, plain.select_blocks(qi, ki, batch, **settings))


def test_rows_that_no_sequence_claims_choose_nothing(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front of the first, behind the last, and past `max_queries`; ranks of another call lie in memory."""
    monkeypatch.setattr(Batch, "_check_values", lambda *_: None)  # on a GPU nothing reads them
    qi, ki = _random(11, 2, 64, device=device), _random(600, 64, device=device)
    batch = Batch.packed([3, 5], [200, 400], device)
    select_blocks(qi[:8], ki, batch, block=32, topk=4)
    starts = torch.tensor([2, 5, 10], dtype=torch.int32, device=device)
    lying = dataclasses.replace(batch, query_starts=starts, max_queries=4)
    ids_TGK = select_blocks(qi, ki, lying, block=32, topk=4)
    assert (ids_TGK[[0, 1, 9, 10]] == -1).all()
    assert (ids_TGK[2:9, :, 0] >= 0).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of the interpreter
def test_scores_that_are_no_numbers(device: torch.device) -> None:
    """NaN ranks as -1e30, infinity below a forced block; every visible block is kept while there is room."""
    qi = torch.ones(3, 1, 64, device=device)
    ki = _random(320, 64, device=device)
    ki[0:32] = float("nan")
    ki[33] = float("nan")
    ki[64:96] = float("inf")
    ki[96:128] = float("-inf")
    batch = Batch.single(3, 320, device)
    for topk in (1, 2, 8, 16):
        ids_TGK = select_blocks(qi, ki, batch, block=32, topk=topk)
        assert torch.equal(ids_TGK, plain.select_blocks(qi, ki, batch, block=32, topk=topk))
    assert ids_TGK[0, 0, :11].tolist() == [*range(10), -1]


def test_rows_see_what_they_are_told(device: torch.device) -> None:
    """Counts of visible keys per token: any order, none, more than there are."""
    qi, ki = _random(6, 2, 64, device=device), _random(300, 64, device=device)
    visible_T = torch.tensor([300, 0, 33, 32, 1, 999], dtype=torch.int32, device=device)
    batch = dataclasses.replace(Batch.single(6, 300, device), visible=visible_T)
    _check(qi, ki, batch, block=32, topk=4)
    assert (select_blocks(qi, ki, batch, block=32, topk=4)[1] == -1).all()


@pytest.mark.parametrize("queries", [[1, 0, 2, 3], [9, 1, 2, 3]])
def test_packed_sequences_choose_for_themselves(device: torch.device, queries: list[int]) -> None:
    """Also a sequence without tokens, one without keys, and rows that belong to none."""
    lengths = [200, 64, 0, 300]
    qi, ki = _random(sum(queries) + 5, 2, 64, device=device), _random(sum(lengths), 64, device=device)
    batch = Batch.packed(queries, lengths, device)
    _check(qi, ki, batch, block=32, topk=4)
    ids_TGK = select_blocks(qi, ki, batch, block=32, topk=4)
    assert (ids_TGK[sum(queries) :] == -1).all()
    first = queries[0]
    one = Batch.single(first, 200, device)
    alone = select_blocks(qi[:first], ki[:200], one, block=32, topk=4)
    assert torch.equal(ids_TGK[:first], alone)


@pytest.mark.parametrize("queries", [2, 9])
def test_pages_in_any_order_change_nothing(device: torch.device, queries: int) -> None:
    lengths, block = [130, 300], 32
    qi, ki = _random(2 * queries, 2, 64, device=device), _random(sum(lengths), 64, device=device)
    packed = Batch.packed([queries, queries], lengths, device)
    numbers = torch.randperm(40, dtype=torch.int32)[:20].view(2, 10)
    pool = torch.full((40, block, 64), float("nan"), device=device)
    for s in range(2):
        keys_ND = plain.sequence_keys(ki, packed, s, lengths[s])
        for i, page in enumerate(keys_ND.split(block)):
            pool[int(numbers[s, i]), : len(page)] = page
    numbers[0, 5:] = 2**31 - 1  # past the sequence's end
    paged = Batch.packed([queries, queries], lengths, device, numbers.to(device))
    ids_TGK = select_blocks(qi, pool, paged, block=block, topk=4)
    assert torch.equal(ids_TGK, select_blocks(qi, ki, packed, block=block, topk=4))
    assert torch.equal(ids_TGK, plain.select_blocks(qi, pool, paged, block=block, topk=4))


def test_page_numbers_that_do_not_exist_read_nothing_outside(device: torch.device) -> None:
    qi, pool = _random(2, 2, 64, device=device), _random(4, 32, 64, device=device)
    pages = torch.tensor([[-7, 2**30, 3, 100]], dtype=torch.int32, device=device)
    ids_TGK = select_blocks(qi, pool, Batch.packed([2], [128], device, pages), block=32, topk=4)
    assert ids_TGK.tolist() == [[[0, 1, 2, 3]] * 2] * 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of the interpreter
def test_what_is_not_visible_is_not_read(device: torch.device) -> None:
    """NaN behind each sequence's keys, in the future of each token and in unused memory changes nothing."""
    qi, ki = _random(5, 2, 64, device=device), _random(333, 64, device=device)
    batch = Batch.single(5, 333, device)
    ids_TGK = select_blocks(qi, ki, batch, block=32, topk=4)
    poisoned = torch.full((400, 64), float("nan"), device=device)
    poisoned[:333] = ki
    poisoned[331:333] = float("inf")
    three = torch.tensor([0, 3], dtype=torch.int32, device=device)
    earlier = dataclasses.replace(batch, query_starts=three, visible=batch.row_visible(5)[:3].int())
    assert torch.equal(select_blocks(qi[:3], poisoned, earlier, block=32, topk=4), ids_TGK[:3])


def test_pieces_change_nothing(device: torch.device) -> None:
    """Ranks held for a few tokens at a time, cutting through sequences."""
    qi, ki = _random(7, 2, 64, device=device), _random(600, 64, device=device)
    batch = Batch.packed([2, 3, 2], [100, 300, 200], device)
    settings: dict[str, Any] = {"block": 32, "topk": 4}
    whole = select_blocks(qi, ki, batch, **settings)
    for rank_bytes in (0, 4 * 2 * 10 * 3):
        assert torch.equal(whole, select_blocks(qi, ki, batch, **settings, rank_bytes=rank_bytes))


def test_strides_are_free(device: torch.device) -> None:
    """Heads before tokens, keys beside other things, as the cache and the projections have them."""
    q_GTD = _random(2, 7, 64, device=device)
    wide = _random(400, 3, 64, device=device)
    batch = Batch.single(7, 400, device)
    ids_TGK = select_blocks(q_GTD.transpose(0, 1), wide[:, 1], batch, block=32, topk=4)
    tight = select_blocks(q_GTD.transpose(0, 1).contiguous(), wide[:, 1].clone(), batch, block=32, topk=4)
    assert torch.equal(ids_TGK, tight)


def test_tokens_and_groups_of_one_number_are_not_mixed_up(device: torch.device) -> None:
    qi, ki = _random(4, 4, 64, device=device), _random(900, 64, device=device)
    _check(qi, ki, Batch.single(4, 900, device), block=32, topk=4)


def test_the_caller_may_own_the_ids(device: torch.device) -> None:
    qi, ki = _random(3, 2, 64, device=device), _random(300, 64, device=device)
    batch = Batch.single(3, 300, device)
    out = torch.full((3, 2, 4), 77, dtype=torch.int32, device=device)
    ids = select_blocks(qi, ki, batch, block=32, topk=4, out=out)
    assert ids is out
    assert torch.equal(out, select_blocks(qi, ki, batch, block=32, topk=4))


def test_nothing_to_do(device: torch.device) -> None:
    empty = _random(0, 2, 64, device=device)
    ids = select_blocks(empty, _random(5, 64, device=device), Batch.single(0, 5, device), block=32, topk=4)
    assert ids.shape == (0, 2, 4)
    qi, none = _random(2, 2, 64, device=device), _random(0, 64, device=device)
    for queries in (2, 0):  # the second time, rows that belong to no sequence
        ids = select_blocks(qi, none, Batch.packed([queries], [0], device), block=32, topk=4)
        assert (ids == -1).all()


def test_bad_input_is_refused_in_one_sentence(device: torch.device) -> None:
    qi, ki = _random(3, 2, 64, device=device), _random(300, 64, device=device)
    batch = Batch.single(3, 300, device)
    pages = torch.zeros(1, 5, dtype=torch.int32, device=device)
    bad: list[tuple[str, str, Tensor, Tensor, Batch, dict[str, Any]]] = [
        ("qi is torch.float32 [3, 128]", "[T, G, I]", qi.flatten(1), ki, batch, {}),
        ("ki is torch.float32 [300, 32]", "[N, I] with I = 64", qi, ki[:, :32], batch, {}),
        ("qi has width 48", "32, 64 or 128", qi[..., :48], ki[:, :48], batch, {}),
        ("ki is torch.float16", "torch.float32 [N, I]", qi, ki.half(), batch, {}),
        ("qi is torch.float64", "torch.float8_e4m3fn", qi.double(), ki.double(), batch, {}),
        ("ki has strides (1, 300)", "ki.contiguous()", qi, ki.T.contiguous().T, batch, {}),
        ("block is 16", "32, 64 or 128", qi, ki, batch, {"block": 16}),
        ("topk is 33", "1 to 32", qi, ki, batch, {"topk": 33}),
        ("topk is 0", "1 or more", qi, ki, batch, {"topk": 0}),
        ("local is 3 and init 2", "at most topk = 4", qi, ki, batch, {"local": 3, "init": 2}),
        ("ki has 299 keys", "batch.max_keys = 300", qi, ki[:299], batch, {}),
        (
            "ki has pages of 64 keys",
            "must be the block, 32",
            qi,
            _random(9, 64, 64, device=device),
            Batch.packed([3], [300], device, pages),
            {},
        ),
        (
            "batch.pages has 5 pages of 64",
            "too few for batch.max_keys = 400",
            qi,
            _random(9, 64, 64, device=device),
            Batch.packed([3], [400], device, pages),
            {"block": 64},
        ),
        (
            "batch.query_starts is torch.int64 [2]",
            "contiguous torch.int32 [2]",
            qi,
            ki,
            dataclasses.replace(batch, query_starts=batch.query_starts.long()),
            {},
        ),
        (
            "batch.visible is torch.int32 [2]",
            "contiguous torch.int32 [3]",
            qi,
            ki,
            dataclasses.replace(batch, visible=batch.query_starts),
            {},
        ),
    ]
    for value, mend, q, k, b, changes in bad:
        with pytest.raises(ValueError, match=re.escape(value)) as caught:
            select_blocks(q, k, b, **{"block": 32, "topk": 4, **changes})
        assert mend in str(caught.value)
        assert "\n" not in str(caught.value)


@gpu
@pytest.mark.parametrize("dtype", list(FLOATS))
@pytest.mark.parametrize(("queries", "keys"), [(1, 100_003), (37, 100_003), (700, 100_003), (8192, 8192)])
def test_equals_the_twin_at_real_sizes(
    device: torch.device, dtype: torch.dtype, queries: int, keys: int
) -> None:
    qi = _random(queries, 4, 128, dtype=dtype, device=device)
    ki = _random(keys, 128, dtype=dtype, device=device)
    _check(qi, ki, Batch.single(queries, keys, device), block=128, topk=16)


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_overlapped_products_change_nothing(device: torch.device, dtype: torch.dtype) -> None:
    """Tiles that see whole lanes, part of a lane, none; several sequences."""
    if torch.cuda.get_device_capability(device)[0] != 9:
        pytest.skip("needs a Hopper card")
    for queries, keys in (
        ([700], [100_003]),
        ([3000], [3000]),
        ([300, 0, 500, 90], [30_000, 0, 40_001, 20_000]),
    ):
        qi = _random(sum(queries), 4, 128, dtype=dtype, device=device)
        ki = _random(sum(keys), 128, dtype=dtype, device=device)
        batch = Batch.packed(queries, keys, device)
        for span in (8, 32):
            plain_cut = ScoreTiles(128, 128, span, warps=4, stages=2, keys_first=False)
            cut = dataclasses.replace(plain_cut, overlap=True)
            ids_TGK = select_blocks(qi, ki, batch, block=128, topk=16, tiles=plain_cut)
            assert torch.equal(ids_TGK, select_blocks(qi, ki, batch, block=128, topk=16, tiles=cut))


@gpu
def test_a_graph_replays_with_other_keys_and_lengths(device: torch.device) -> None:
    """Captured once, replayed as the sequences grow: nothing is read back and every address stays."""
    keys, limit = 3000, 8192
    qi, ki = (_random(*s, dtype=torch.bfloat16, device=device) for s in ((2, 4, 128), (limit, 128)))
    out = torch.empty(2, 4, 16, dtype=torch.int32, device=device)
    batch = dataclasses.replace(Batch.single(2, keys, device), max_keys=limit)
    select_blocks(qi, ki, batch, block=128, topk=16, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        select_blocks(qi, ki, batch, block=128, topk=16, out=out)
    for length in (keys, 5001, 0, limit):
        batch.key_lengths.fill_(length)
        qi.copy_(_random(2, 4, 128, device=device))
        graph.replay()
        assert torch.equal(out, select_blocks(qi, ki, batch, block=128, topk=16))
