"""The blocks that each row keeps, from their ranks, on the GPU: exact, in two rounds, without sorting.

The ranks come with the best of each lane, a run of neighbouring blocks. Round one picks the K best lanes; the
blocks to keep lie in them, since a block in any other lane is beaten by K blocks, the best of those lanes.
The last of these lanes is a bar that K blocks reach, and seldom many more: round two drops the worst of those
that reach it until the right number is left, or picks the best where too many do. Both rounds go by rank,
then by lower block id, so ties fall as the official rule has it. Forced blocks are no candidates of round
two; they take their places unasked.

One warp does a row: a best among 32 threads is one instruction, among warps it would be a hundred times that.

Shape legend: T new tokens, S sequences, G index heads, C blocks of keys, K kept blocks, L lanes,
R rows, each a (token, head).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.block_ranks import INTERPRET, NO_BLOCK, NO_RANK, Ranks, sequence_keys
from pilotfish.kernels.sizes import ceil_div, power_of_2


@triton.jit
def _best(rank_C, id_C):
    """The best rank and the id that has it, NO_BLOCK where none is left."""
    best = tl.max(rank_C, 0)
    chosen = tl.min(tl.where(rank_C == best, id_C, NO_BLOCK), 0)
    return best, tl.where(best == NO_RANK, NO_BLOCK, chosen)


@triton.jit
def _best_lanes(rank_L, at_L, span, K: tl.constexpr, SLOTS: tl.constexpr):
    """The K best lanes, [SLOTS], ascending, NO_BLOCK where there are fewer; and the rank of the last."""
    slot_K = tl.arange(0, SLOTS)
    lane_K = tl.full((SLOTS,), NO_BLOCK, tl.int32)
    bar = NO_RANK
    for i in tl.range(0, K):
        bar, chosen = _best(rank_L, at_L)
        lane_K = tl.where(slot_K == i, tl.where(chosen == NO_BLOCK, NO_BLOCK, chosen // span), lane_K)
        rank_L = tl.where(at_L == chosen, NO_RANK, rank_L)
    order_K = tl.where(lane_K == NO_BLOCK, NO_BLOCK - SLOTS + slot_K, lane_K)
    place_K = tl.sum((order_K[None, :] < order_K[:, None]).to(tl.int32), 1)
    return tl.sum(tl.where(place_K[None, :] == slot_K[:, None], lane_K[None, :], 0), 1), bar


@triton.jit
def _keep_best(rank_C, id_C, kept_C, COUNT: tl.constexpr):
    """Of the candidates kept so far, at least as many as there are to keep, the COUNT best."""
    spare = tl.sum(kept_C.to(tl.int32), 0) - COUNT
    if spare > COUNT:
        rank_C = tl.where(kept_C, rank_C, NO_RANK)
        kept_C = kept_C & False
        for _ in tl.range(0, COUNT):
            _, chosen = _best(rank_C, id_C)
            kept_C |= id_C == chosen
            rank_C = tl.where(id_C == chosen, NO_RANK, rank_C)
    else:
        for _ in tl.range(0, spare):
            worst = tl.min(tl.where(kept_C, rank_C, NO_BLOCK), 0)
            kept_C &= id_C != tl.max(tl.where(kept_C & (rank_C == worst), id_C, -1), 0)
    return kept_C


@triton.jit
def _top_blocks(
    ranks, lane_ranks, lane_ids, ids, query_starts, key_lengths, key_starts, visible,
    first, sequences, max_keys, keys, span, ranks_stride, lanes_stride,
    G: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, LOCAL: tl.constexpr, INIT: tl.constexpr,
    SLOTS: tl.constexpr, LANES: tl.constexpr, SPAN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program: the ids of one row of at most LANES lanes of at most SPAN blocks."""
    row = tl.program_id(0)
    token = first + row // G

    # The token's sequence is the number of sequences that end at or before it.
    s = 0
    for j in tl.range(0, sequences, 32):
        s_S = j + tl.arange(0, 32)
        end_S = tl.load(query_starts + 1 + s_S, mask=s_S < sequences, other=NO_BLOCK)
        s += tl.sum((end_S <= token).to(tl.int32), 0)
    blocks = 0
    if s < sequences:
        _, length = sequence_keys(key_lengths, key_starts, s, max_keys, keys)
        if visible is None:
            seen = length - (tl.load(query_starts + 1 + s) - 1 - token)
        else:
            seen = tl.load(visible + token)
        blocks = tl.cdiv(tl.minimum(tl.maximum(seen, 0), length), BLOCK)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        # The attention behind may take its place now; it waits for the end of this launch.
        tl.extra.cuda.gdc_launch_dependents()

    slot_K = tl.arange(0, SLOTS)
    COUNT: tl.constexpr = K - LOCAL - INIT
    ids += (first * G + row).to(tl.int64) * K
    initial = tl.minimum(blocks, INIT)
    high = tl.maximum(blocks - LOCAL, initial)  # candidates are the blocks from INIT to below high
    picked = 0
    if COUNT > 0:
        # Lanes stand by their forced blocks too, so as many more are picked.
        bar = NO_RANK
        if LANES > SLOTS:
            lane_L = tl.arange(0, LANES)
            there_L = lane_L * span < blocks
            lanes_L = row.to(tl.int64) * lanes_stride + lane_L
            rank_L = tl.load(lane_ranks + lanes_L, mask=there_L, other=NO_RANK)
            at_L = tl.load(lane_ids + lanes_L, mask=there_L, other=NO_BLOCK)
            lane_K, bar = _best_lanes(rank_L, at_L, span, K, SLOTS)
        else:
            lane_K = tl.where(slot_K * span < blocks, slot_K, NO_BLOCK)
        j_P = tl.arange(0, SPAN)
        c_KP = tl.where(lane_K == NO_BLOCK, 0, lane_K)[:, None] * span + j_P[None, :]
        candidate_KP = (lane_K != NO_BLOCK)[:, None] & (j_P < span)[None, :] & (c_KP >= INIT) & (c_KP < high)
        rank_KP = tl.load(ranks + row.to(tl.int64) * ranks_stride + c_KP, mask=candidate_KP, other=NO_RANK)
        rank_C = tl.reshape(rank_KP, (SLOTS * SPAN,))
        c_C = tl.reshape(tl.where(candidate_KP, c_KP, NO_BLOCK), (SLOTS * SPAN,))
        kept_C = tl.reshape(candidate_KP, (SLOTS * SPAN,)) & (rank_C >= bar)
        kept_C = _keep_best(rank_C, c_C, kept_C, COUNT)
        # Lanes stand in order, so the candidates do.
        place_C = tl.cumsum(kept_C.to(tl.int32), 0)
        picked = tl.max(place_C, 0)
        tl.store(ids + initial + place_C - 1, c_C, mask=kept_C)
    # Before the picked ones the first blocks, behind them the last, behind those nothing.
    behind_K = slot_K - initial - picked
    forced_K = tl.where(slot_K < initial, slot_K, tl.where(behind_K < blocks - high, high + behind_K, -1))
    tl.store(ids + slot_K, forced_K, mask=(slot_K < K) & ((slot_K < initial) | (behind_K >= 0)))


def launch_top_blocks(
    ranks: Ranks, ids_TGK: Tensor, batch: Batch, first: int, tokens: int, keys: int | None,
    block: int, local: int, init: int, early: bool = False,
) -> None:  # fmt: skip
    """Write the ids of `tokens` tokens from `first` on to ids_TGK, from the ranks of exactly these tokens.

    `keys` is the length of the packed keys, None where they lie in pages. With `early` (Hopper and newer) the
    programs may start before the ranks are complete, and wait for them; so may the launch behind, if it
    is made to, and wait for the ids.
    """
    G, K = ids_TGK.shape[1:]
    if tokens * G == 0:
        return
    lanes = ceil_div(ceil_div(max(batch.max_keys, 1), block), ranks.span)
    early = early and not INTERPRET.value
    _top_blocks[(tokens * G,)](
        ranks.blocks_RC, ranks.best_RL, ranks.at_RL, ids_TGK,
        batch.query_starts, batch.key_lengths, batch.key_starts, batch.visible,
        first, batch.sequences, batch.max_keys, 2**31 - 1 if keys is None else keys, ranks.span,
        ranks.blocks_RC.stride(0), ranks.best_RL.stride(0),
        G=G, BLOCK=block, K=K, LOCAL=local, INIT=init, SLOTS=power_of_2(K),
        LANES=power_of_2(lanes), SPAN=power_of_2(ranks.span), EARLY=early,
        num_warps=1, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
