"""The blocks that each row keeps, from their ranks, on the GPU: exact, in two rounds, without sorting.

The ranks come with the best of each lane, a run of neighbouring blocks. Round one picks the K best lanes; the
blocks to keep lie in them, since a block in any other lane is beaten by K blocks, the best of those lanes.
Round two picks the best among the blocks of these lanes. Both rounds go by rank, then by lower block id, so
ties fall as the official rule has it. Forced blocks are no candidates of round two; they take their places
unasked.

One warp does a row: a best among 32 threads is one instruction, among warps it would be a hundred times that.

Shape legend: T new tokens, S sequences, G index heads, C blocks of keys, K kept blocks, L lanes,
R rows, each a (token, head).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.block_ranks import INTERPRET, NO_RANK, Ranks, sequence_keys
from pilotfish.kernels.sizes import ceil_div, power_of_2

NO_BLOCK = tl.constexpr(2**31 - 1)
CHANGING = ["first", "sequences", "max_queries", "max_keys", "keys", "span", "lanes_stride"]
"""Numbers that change while a prompt is read. Kernels are not compiled anew for handsome ones among them."""


@triton.jit
def _candidates(ranks_C, lane_K, span, low, high, SLOTS: tl.constexpr, SPAN: tl.constexpr):
    """Ranks and ids of the blocks of these lanes from `low` to below `high`, NO_RANK and NO_BLOCK else."""
    j_P = tl.arange(0, SPAN)
    c_KP = tl.where(lane_K == NO_BLOCK, 0, lane_K)[:, None] * span + j_P[None, :]
    candidate_KP = (lane_K != NO_BLOCK)[:, None] & (j_P < span)[None, :] & (c_KP >= low) & (c_KP < high)
    rank_KP = tl.load(ranks_C + c_KP, mask=candidate_KP, other=NO_RANK)
    c_KP = tl.where(candidate_KP, c_KP, NO_BLOCK)
    return tl.reshape(rank_KP, (SLOTS * SPAN,)), tl.reshape(c_KP, (SLOTS * SPAN,))


@triton.jit
def _pick(rank_C, id_C, COUNT: tl.constexpr, SLOTS: tl.constexpr):
    """Ids of the COUNT best, [SLOTS] from the best on; NO_BLOCK where none is left."""
    slot_K = tl.arange(0, SLOTS)
    ids_K = tl.full((SLOTS,), NO_BLOCK, tl.int32)
    for i in tl.range(0, COUNT):
        best = tl.max(rank_C, 0)
        chosen = tl.min(tl.where(rank_C == best, id_C, NO_BLOCK), 0)
        chosen = tl.where(best == NO_RANK, NO_BLOCK, chosen)
        ids_K = tl.where(slot_K == i, chosen, ids_K)
        rank_C = tl.where(id_C == chosen, NO_RANK, rank_C)
    return ids_K


@triton.jit
def _write_ascending(out, id_K, SLOTS: tl.constexpr):
    """Write the ids that are no NO_BLOCK in order; returns how many."""
    slot_K = tl.arange(0, SLOTS)
    order_K = tl.where(id_K == NO_BLOCK, NO_BLOCK - SLOTS + slot_K, id_K)
    place_K = tl.sum((order_K[None, :] < order_K[:, None]).to(tl.int32), 1)
    tl.store(out + place_K, id_K, mask=id_K != NO_BLOCK)
    return tl.sum((id_K != NO_BLOCK).to(tl.int32), 0)


@triton.jit(do_not_specialize=CHANGING)
def _top_blocks(
    ranks, lane_ranks, ids, query_starts, key_lengths, key_starts, visible,
    first, sequences, max_queries, max_keys, keys, span, ranks_stride, lanes_stride,
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
        # Of rows that no sequence claims nothing was ranked.
        begin = tl.load(query_starts + s)
        seen = tl.where((token >= begin) & (token - begin < max_queries), seen, 0)
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
        ranks += row.to(tl.int64) * ranks_stride
        lane_ranks += row.to(tl.int64) * lanes_stride
        # Lanes stand by their forced blocks too, so as many more are picked.
        if LANES > SLOTS:
            lane_L = tl.arange(0, LANES)
            rank_L = tl.load(lane_ranks + lane_L, mask=lane_L * span < blocks, other=NO_RANK)
            lane_K = _pick(rank_L, lane_L, K, SLOTS)
        else:
            lane_K = tl.where(slot_K * span < blocks, slot_K, NO_BLOCK)
        rank_C, c_C = _candidates(ranks, lane_K, span, INIT, high, SLOTS, SPAN)
        picked = _write_ascending(ids + initial, _pick(rank_C, c_C, COUNT, SLOTS), SLOTS)
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
        ranks.blocks_RC, ranks.best_RL, ids_TGK,
        batch.query_starts, batch.key_lengths, batch.key_starts, batch.visible,
        first, batch.sequences, batch.max_queries, batch.max_keys,
        2**31 - 1 if keys is None else keys, ranks.span,
        ranks.blocks_RC.stride(0), ranks.best_RL.stride(0),
        G=G, BLOCK=block, K=K, LOCAL=local, INIT=init, SLOTS=power_of_2(K),
        LANES=power_of_2(lanes), SPAN=power_of_2(ranks.span), EARLY=early,
        num_warps=1, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
