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
from pilotfish.kernels.block_ranks import INTERPRET, NO_BLOCK, NO_RANK, Ranks, sequence_keys
from pilotfish.kernels.sizes import ceil_div, power_of_2


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
    ids_K = tl.full((SLOTS,), NO_BLOCK, tl.int32)
    high = blocks - LOCAL  # candidates are the blocks from INIT to below high
    if COUNT > 0:
        # Lanes stand by their forced blocks too, so as many more are picked.
        if LANES > SLOTS:
            lane_L = tl.arange(0, LANES)
            there_L = lane_L * span < blocks
            lanes_L = row.to(tl.int64) * lanes_stride + lane_L
            rank_L = tl.load(lane_ranks + lanes_L, mask=there_L, other=NO_RANK)
            at_L = tl.load(lane_ids + lanes_L, mask=there_L, other=NO_BLOCK)
            lane_K = _pick(rank_L, at_L, K, SLOTS)
            lane_K = tl.where(lane_K == NO_BLOCK, NO_BLOCK, lane_K // span)
        else:
            lane_K = tl.where(slot_K * span < blocks, slot_K, NO_BLOCK)
        j_P = tl.arange(0, SPAN)
        c_KP = tl.where(lane_K == NO_BLOCK, 0, lane_K)[:, None] * span + j_P[None, :]
        candidate_KP = (lane_K != NO_BLOCK)[:, None] & (j_P < span)[None, :] & (c_KP >= INIT) & (c_KP < high)
        rank_KP = tl.load(ranks + row.to(tl.int64) * ranks_stride + c_KP, mask=candidate_KP, other=NO_RANK)
        c_C = tl.reshape(tl.where(candidate_KP, c_KP, NO_BLOCK), (SLOTS * SPAN,))
        ids_K = _pick(tl.reshape(rank_KP, (SLOTS * SPAN,)), c_C, COUNT, SLOTS)
    # Behind the picked ones the forced ones: the first INIT, and the last LOCAL that are not among those.
    initial_K, local_K = slot_K - COUNT, slot_K - COUNT - INIT + high
    ids_K = tl.where((initial_K >= 0) & (initial_K < blocks), initial_K, ids_K)
    ids_K = tl.where(slot_K >= COUNT + INIT, tl.where(local_K >= INIT, local_K, NO_BLOCK), ids_K)
    # Each goes to the place that as many come before as there are lower ids; empty slots come last, in order.
    place_K = tl.where((ids_K == NO_BLOCK) | (slot_K >= K), NO_BLOCK - SLOTS + slot_K, ids_K)
    place_K = tl.sum((place_K[None, :] < place_K[:, None]).to(tl.int32), 1)
    out_K = ids + (first * G + row).to(tl.int64) * K + place_K
    tl.store(out_K, tl.where(ids_K == NO_BLOCK, -1, ids_K), mask=place_K < K)


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
