"""The blocks that each row keeps, from their scores, on the GPU: exact, in two rounds, without sorting.

Round one deals the blocks out to lanes (block c to lane c mod LANES) and keeps each lane's best. The blocks
to keep lie in the K best lanes: a block in any other lane is beaten by K blocks, the best of those lanes.
Round two picks the K best among the blocks of these lanes. Both rounds rank by score, then by lower block id,
so ties fall as the official rule has it.

Shape legend: T new tokens, S sequences, G index heads, C blocks of keys, K kept blocks,
R rows, each a (token, head), L lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.block_scores import MAX_SCORE, sequence_keys

NO_BLOCK = tl.constexpr(2**31 - 1)


@dataclass(frozen=True)
class TopTiles:
    """How one launch is cut up: rows per program, lanes, loads in flight of one lane, warps."""

    rows: int
    lanes: int
    unroll: int
    warps: int


def top_tiles(rows: int, blocks: int, topk: int) -> TopTiles:
    """The cut for `rows` rows of at most `blocks` blocks."""
    wide = triton.next_power_of_2(max(blocks, topk, 16))
    if rows <= 256:
        return TopTiles(rows=1, lanes=min(wide, 1024), unroll=8, warps=4)
    return TopTiles(rows=8, lanes=min(wide, 256), unroll=4, warps=4)


@triton.jit
def _ranked(scores_R, c, blocks_R, scores_stride_c, LOCAL: tl.constexpr, INIT: tl.constexpr):
    """Scores of blocks c as they are ranked: forced blocks inf, invisible ones -inf, -0 as 0."""
    seen = c < blocks_R
    x = tl.load(scores_R + c * scores_stride_c, mask=seen, other=float("-inf"))
    x = tl.where(x == 0.0, 0.0, tl.minimum(x, MAX_SCORE))
    return tl.where(seen & ((c >= blocks_R - LOCAL) | (c < INIT)), float("inf"), x)


@triton.jit
def _pick(x_RC, id_RC, K: tl.constexpr, SLOTS: tl.constexpr):
    """Ids of the K best of each row, in [R, SLOTS] from the best on; NO_BLOCK where only -inf is left."""
    slot_K = tl.arange(0, SLOTS)[None, :]
    ids_RK = tl.full((x_RC.shape[0], SLOTS), NO_BLOCK, tl.int32)
    for i in tl.range(0, K):
        best_R = tl.max(x_RC, 1)
        id_R = tl.min(tl.where(x_RC == best_R[:, None], id_RC, NO_BLOCK), 1)
        id_R = tl.where(best_R == float("-inf"), NO_BLOCK, id_R)
        ids_RK = tl.where(slot_K == i, id_R[:, None], ids_RK)
        x_RC = tl.where(id_RC == id_R[:, None], float("-inf"), x_RC)
    return ids_RK


@triton.jit
def _top_blocks(
    scores, ids, query_starts, key_lengths, key_starts, visible,
    first, tokens, sequences, max_keys, keys, scores_stride_c, scores_stride_r,
    G: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, LOCAL: tl.constexpr, INIT: tl.constexpr,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One program: the ids of ROWS rows, every row's DEPTH x LANES blocks at most."""
    r_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known_R = r_R < tokens * G
    token_R = first + r_R // G

    # A row's sequence is the number of sequences that end at or before it.
    s_R = tl.zeros((ROWS,), tl.int32)
    SPAN: tl.constexpr = 32
    for j in tl.range(0, sequences, SPAN):
        s_S = j + tl.arange(0, SPAN)
        end_S = tl.load(query_starts + 1 + s_S, mask=s_S < sequences, other=NO_BLOCK)
        s_R += tl.sum((end_S[None, :] <= token_R[:, None]).to(tl.int32), 1)
    known_R = known_R & (s_R < sequences)
    s_R = tl.where(known_R, s_R, 0)
    _, length_R = sequence_keys(key_lengths, key_starts, s_R, max_keys, keys)
    if visible is None:
        seen_R = length_R - (tl.load(query_starts + 1 + s_R) - 1 - token_R)
    else:
        seen_R = tl.load(visible + token_R, mask=known_R, other=0)
    seen_R = tl.where(known_R, tl.minimum(tl.maximum(seen_R, 0), length_R), 0)
    blocks_R = tl.cdiv(seen_R, BLOCK)

    scores_R = scores + r_R * scores_stride_r
    lane_L = tl.arange(0, LANES)[None, :]
    best_RL = tl.full((ROWS, LANES), float("-inf"), tl.float32)
    at_RL = tl.full((ROWS, LANES), NO_BLOCK, tl.int32)
    for j in tl.range(0, tl.cdiv(tl.max(blocks_R, 0), LANES), loop_unroll_factor=UNROLL):
        c_RL = j * LANES + lane_L
        x_RL = _ranked(scores_R[:, None], c_RL, blocks_R[:, None], scores_stride_c, LOCAL, INIT)
        better_RL = x_RL > best_RL
        best_RL = tl.where(better_RL, x_RL, best_RL)
        at_RL = tl.where(better_RL, c_RL, at_RL)
    ids_RK = _pick(best_RL, at_RL, K, SLOTS)
    if DEPTH > 1:
        lane_RK = tl.where(ids_RK == NO_BLOCK, NO_BLOCK, ids_RK % LANES)
        j_D = tl.arange(0, DEPTH)
        # Lanes that were not picked must not overflow into a block.
        c_RKD = tl.where(
            (lane_RK == NO_BLOCK)[:, :, None], NO_BLOCK, lane_RK[:, :, None] + j_D[None, None, :] * LANES
        )
        c_RC = tl.reshape(c_RKD, (ROWS, SLOTS * DEPTH))
        x_RC = _ranked(scores_R[:, None], c_RC, blocks_R[:, None], scores_stride_c, LOCAL, INIT)
        ids_RK = _pick(x_RC, c_RC, K, SLOTS)
    ids_RK = tl.sort(ids_RK, 1)
    ids_RK = tl.where(ids_RK == NO_BLOCK, -1, ids_RK)
    slot_K = tl.arange(0, SLOTS)[None, :]
    out_RK = ids + (first * G + r_R).to(tl.int64)[:, None] * K + slot_K
    tl.store(out_RK, ids_RK, mask=(r_R < tokens * G)[:, None] & (slot_K < K))


def launch_top_blocks(
    scores_CR: Tensor, ids_TGK: Tensor, batch: Batch, first: int, tokens: int, keys: int | None,
    block: int, local: int, init: int, tiles: TopTiles,
) -> None:  # fmt: skip
    """Write the ids of `tokens` tokens from `first` on to ids_TGK, from the scores of exactly these tokens.

    `keys` is the length of the packed keys, None where they lie in pages.
    """
    G, K = ids_TGK.shape[1:]
    if tokens * G == 0:
        return
    depth = triton.next_power_of_2(triton.cdiv(max(batch.max_keys, 1), block * tiles.lanes))
    _top_blocks[(triton.cdiv(tokens * G, tiles.rows),)](
        scores_CR, ids_TGK, batch.query_starts, batch.key_lengths, batch.key_starts, batch.visible,
        first, tokens, batch.sequences, batch.max_keys, 2**31 - 1 if keys is None else keys,
        scores_CR.stride(0), scores_CR.stride(1),
        G=G, BLOCK=block, K=K, LOCAL=local, INIT=init, SLOTS=triton.next_power_of_2(K),
        ROWS=tiles.rows, LANES=tiles.lanes, DEPTH=depth, UNROLL=tiles.unroll, num_warps=tiles.warps,
    )  # fmt: skip
