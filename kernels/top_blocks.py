"""The blocks that each row keeps, from their ranks, on the GPU: exact, in two rounds, without sorting.

Round one deals the blocks out to lanes (block c to lane c mod L) and keeps each lane's best. The blocks to
keep lie in the K best lanes: a block in any other lane is beaten by K blocks, the best of those lanes. Round
two picks the K best among the blocks of these lanes. Both rounds go by rank, then by lower block id, so ties
fall as the official rule has it. Forced blocks are no candidates; they take their places unasked.

Shape legend: T new tokens, S sequences, G index heads, C blocks of keys, K kept blocks,
R rows, each a (token, head), L lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.block_ranks import INTERPRET, sequence_keys

NO_BLOCK = tl.constexpr(2**31 - 1)
NO_RANK = tl.constexpr(-(2**31))


@dataclass(frozen=True)
class TopTiles:
    """How one launch is cut up."""

    rows: int
    """Rows of one program."""
    lanes: int
    """No fewer than the blocks to keep. More make round one's picking longer and round two's shorter."""
    unroll: int
    """Loads of a lane that are under way at a time."""
    warps: int
    """With one, a row's best is found without leaving the warp."""
    early: bool = False
    """Whether programs start before the ranks are complete and wait for them (Hopper and newer)."""


def top_tiles(rows: int, blocks: int, topk: int) -> TopTiles:
    """The cut for `rows` rows of at most `blocks` blocks."""
    lanes = min(triton.next_power_of_2(max(blocks, topk)), 256)
    if rows <= 512:
        return TopTiles(rows=1, lanes=lanes, unroll=8, warps=1)
    return TopTiles(rows=8, lanes=lanes, unroll=4, warps=4)


@triton.jit
def _deal(ranks_R, best_RL, at_RL, j, low, high_R, ranks_stride_c, WHOLE: tl.constexpr):
    """Hand every lane its block number j, of those from low to below high; WHOLE: all of them are."""
    c_RL = j * best_RL.shape[1] + tl.arange(0, best_RL.shape[1])[None, :]
    pointers = ranks_R[:, None] + c_RL * ranks_stride_c
    if WHOLE:
        rank_RL = tl.load(pointers)
    else:
        rank_RL = tl.load(pointers, mask=(c_RL >= low) & (c_RL < high_R[:, None]), other=NO_RANK)
    better_RL = rank_RL > best_RL
    return tl.where(better_RL, rank_RL, best_RL), tl.where(better_RL, c_RL, at_RL)


@triton.jit
def _pick(rank_RC, id_RC, COUNT: tl.constexpr, SLOTS: tl.constexpr):
    """Ids of the COUNT best of each row, in [R, SLOTS]; NO_BLOCK where none is left."""
    slot_K = tl.arange(0, SLOTS)[None, :]
    ids_RK = tl.full((rank_RC.shape[0], SLOTS), NO_BLOCK, tl.int32)
    for i in tl.range(0, COUNT):
        best_R = tl.max(rank_RC, 1)
        id_R = tl.min(tl.where(rank_RC == best_R[:, None], id_RC, NO_BLOCK), 1)
        id_R = tl.where(best_R == NO_RANK, NO_BLOCK, id_R)
        ids_RK = tl.where(slot_K == i, id_R[:, None], ids_RK)
        rank_RC = tl.where(id_RC == id_R[:, None], NO_RANK, rank_RC)
    return ids_RK


@triton.jit
def _top_blocks(
    ranks, ids, query_starts, key_lengths, key_starts, visible,
    first, tokens, sequences, max_keys, keys, ranks_stride_c, ranks_stride_r,
    G: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, LOCAL: tl.constexpr, INIT: tl.constexpr,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One program: the ids of ROWS rows of at most DEPTH x LANES blocks each."""
    r_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known_R = r_R < tokens * G
    token_R = first + r_R // G

    # A row's sequence is the number of sequences that end at or before it.
    s_R = tl.zeros((ROWS,), tl.int32)
    for j in tl.range(0, sequences, 32):
        s_S = j + tl.arange(0, 32)
        end_S = tl.load(query_starts + 1 + s_S, mask=s_S < sequences, other=NO_BLOCK)
        s_R += tl.sum((end_S[None, :] <= token_R[:, None]).to(tl.int32), 1)
    s_R = tl.minimum(s_R, sequences)
    known_R = known_R & (s_R < sequences)
    s_R = tl.where(known_R, s_R, 0)
    _, length_R = sequence_keys(key_lengths, key_starts, s_R, max_keys, keys)
    if visible is None:
        seen_R = length_R - (tl.load(query_starts + 1 + s_R) - 1 - token_R)
    else:
        seen_R = tl.load(visible + token_R, mask=known_R, other=0)
    seen_R = tl.where(known_R, tl.minimum(tl.maximum(seen_R, 0), length_R), 0)
    blocks_R = tl.cdiv(seen_R, BLOCK)
    high_R = blocks_R - LOCAL  # candidates are the blocks from INIT to below high
    if EARLY:
        tl.extra.cuda.gdc_wait()

    ranks_R = ranks + r_R * ranks_stride_r
    best_RL = tl.full((ROWS, LANES), NO_RANK, tl.int32)
    at_RL = tl.full((ROWS, LANES), NO_BLOCK, tl.int32)
    partial: tl.constexpr = (INIT + LANES - 1) // LANES
    end = tl.cdiv(tl.max(high_R, 0), LANES)
    whole_end = tl.minimum(tl.maximum(tl.min(high_R, 0) // LANES, partial), end)
    for j in tl.range(0, tl.minimum(partial, end)):
        best_RL, at_RL = _deal(ranks_R, best_RL, at_RL, j, INIT, high_R, ranks_stride_c, False)
    for j in tl.range(partial, whole_end, loop_unroll_factor=UNROLL):
        best_RL, at_RL = _deal(ranks_R, best_RL, at_RL, j, INIT, high_R, ranks_stride_c, True)
    for j in tl.range(whole_end, end):
        best_RL, at_RL = _deal(ranks_R, best_RL, at_RL, j, INIT, high_R, ranks_stride_c, False)

    slot_K = tl.arange(0, SLOTS)[None, :]
    COUNT: tl.constexpr = K - LOCAL - INIT
    ids_RK = tl.full((ROWS, SLOTS), NO_BLOCK, tl.int32)
    if COUNT > 0:
        ids_RK = _pick(best_RL, at_RL, COUNT, SLOTS)
        if DEPTH > 1:
            lane_RK = ids_RK % LANES
            c_RKD = lane_RK[:, :, None] + (tl.arange(0, DEPTH) * LANES)[None, None, :]
            c_RC = tl.reshape(
                tl.where((ids_RK == NO_BLOCK)[:, :, None], NO_BLOCK, c_RKD), (ROWS, SLOTS * DEPTH)
            )
            candidate_RC = (c_RC >= INIT) & (c_RC < high_R[:, None])
            rank_RC = tl.load(ranks_R[:, None] + c_RC * ranks_stride_c, mask=candidate_RC, other=NO_RANK)
            ids_RK = _pick(rank_RC, c_RC, COUNT, SLOTS)
    # Behind the picked ones the forced ones: the first INIT, and the last LOCAL that are not among those.
    initial_RK = slot_K - COUNT
    local_RK = high_R[:, None] + slot_K - (COUNT + INIT)
    ids_RK = tl.where((initial_RK >= 0) & (initial_RK < blocks_R[:, None]), initial_RK, ids_RK)
    ids_RK = tl.where(slot_K >= COUNT + INIT, tl.where(local_RK >= INIT, local_RK, NO_BLOCK), ids_RK)
    ids_RK = tl.sort(tl.where(slot_K < K, ids_RK, NO_BLOCK), 1)
    ids_RK = tl.where(ids_RK == NO_BLOCK, -1, ids_RK)
    out_RK = ids + (first * G + r_R).to(tl.int64)[:, None] * K + slot_K
    tl.store(out_RK, ids_RK, mask=(r_R < tokens * G)[:, None] & (slot_K < K))


def launch_top_blocks(
    ranks_CR: Tensor, ids_TGK: Tensor, batch: Batch, first: int, tokens: int, keys: int | None,
    block: int, local: int, init: int, tiles: TopTiles,
) -> None:  # fmt: skip
    """Write the ids of `tokens` tokens from `first` on to ids_TGK, from the ranks of exactly these tokens.

    `keys` is the length of the packed keys, None where they lie in pages.
    """
    G, K = ids_TGK.shape[1:]
    if tokens * G == 0:
        return
    depth = triton.next_power_of_2(triton.cdiv(max(batch.max_keys, 1), block * tiles.lanes))
    early = {"launch_pdl": True} if tiles.early and not INTERPRET.value else {}
    _top_blocks[(triton.cdiv(tokens * G, tiles.rows),)](
        ranks_CR, ids_TGK, batch.query_starts, batch.key_lengths, batch.key_starts, batch.visible,
        first, tokens, batch.sequences, batch.max_keys, 2**31 - 1 if keys is None else keys,
        ranks_CR.stride(0), ranks_CR.stride(1),
        G=G, BLOCK=block, K=K, LOCAL=local, INIT=init, SLOTS=triton.next_power_of_2(K),
        ROWS=tiles.rows, LANES=tiles.lanes, DEPTH=depth, UNROLL=tiles.unroll, EARLY=bool(early),
        num_warps=tiles.warps, **early,
    )  # fmt: skip
