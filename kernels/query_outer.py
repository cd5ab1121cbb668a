"""Sparse attention that walks the queries: for few of them.

A program takes one token and one group, whose heads are the rows of its tile, and walks the blocks that the
token chose, or a share of them: with one token or a handful, `splits` programs per token and group fill the
card and a second kernel merges what they found. Nothing is sorted and nothing depends on how long the
context is.

Shape legend: T new tokens, N keys, P pages, H query heads, G KV groups, D head width, K kept blocks, S
splits, R heads of a group, M rows of a tile (R rounded up to 16), B keys of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.lookup import CHANGING, batch_arguments, block_of, sequence_of_one, visible_of
from pilotfish.kernels.merge import LN2, merge
from pilotfish.kernels.sizes import ceil_div, power_of_2

INTERPRET = triton.knobs.runtime.interpret
LOG2E = math.log2(math.e)
MOST_SPLITS = 32
"""More partial results than these do not fit the registers of the merge."""


@dataclass(frozen=True)
class QueryOuterTiles:
    """How the pass is cut up.

    keys: of one step. splits: programs that share the blocks of a token and group. merge_heads: heads that
    one program of the merge takes. overlap: start each kernel while the one before still ends, which takes
    Hopper or later.
    """

    keys: int = 64
    splits: int = 1
    warps: int = 4
    stages: int = 3
    merge_heads: int = 1
    overlap: bool = False


def query_outer(
    q_THD: Tensor,
    k: Tensor,
    v: Tensor,
    ids_TGK: Tensor,
    batch: Batch,
    out_THD: Tensor,
    lse_TH: Tensor,
    *,
    block: int,
    scale: float,
    tiles: QueryOuterTiles,
) -> None:
    """Fill `out_THD` and `lse_TH`; arguments as in `attention.sparse_attention`, checked there."""
    T, H, D = q_THD.shape
    G, K = ids_TGK.shape[1:]
    heads, keys = H // G, min(tiles.keys, block)
    steps = K * (block // keys)
    splits = min(tiles.splits, steps, MOST_SPLITS)
    if splits == 1:
        results_TGSRD, logs_TGSR = (x.unflatten(1, (G, heads))[:, :, None] for x in (out_THD, lse_TH))
    else:
        results_TGSRD = torch.empty(T, G, splits, heads, D, dtype=torch.float32, device=q_THD.device)
        logs_TGSR = torch.empty(T, G, splits, heads, dtype=torch.float32, device=q_THD.device)
    overlap = tiles.overlap and splits > 1 and not INTERPRET
    page_k, page_v = (x.stride(0) if batch.pages is not None else 0 for x in (k, v))
    _attend_queries[(T * G, splits)](
        q_THD, k, v, ids_TGK, results_TGSRD, logs_TGSR,
        *q_THD.stride()[:2], *ids_TGK.stride()[:2],
        page_k, *k.stride()[-3:-1], page_v, *v.stride()[-3:-1],
        *results_TGSRD.stride()[:4], *logs_TGSR.stride(), scale * LOG2E, k.shape[0], G,
        **batch_arguments(batch),
        K=K, KEPT=power_of_2(K), HEADS=heads, ROWS=max(16, power_of_2(heads)), D=D,
        BLOCK=block, KEYS=keys, STEPS=ceil_div(steps, splits), WHOLE=splits == 1, OVERLAP=overlap,
        INTERPRET=INTERPRET,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=overlap,
    )  # fmt: skip
    if splits > 1:
        merge(
            results_TGSRD, logs_TGSR, None, out_THD, lse_TH,
            heads=min(tiles.merge_heads, heads), overlap=overlap,
        )  # fmt: skip


@triton.jit(do_not_specialize=CHANGING)
def _attend_queries(
    q, k, v, ids, results, logs,
    q_t, q_h, ids_t, ids_g, k_p, k_n, k_g, v_p, v_n, v_g,
    results_t, results_g, results_s, results_r, logs_t, logs_g, logs_s, logs_r, scale, available, groups,
    query_starts, key_lengths, pages, key_starts, visible, sequences, pages_per_sequence, first_row,
    K: tl.constexpr, KEPT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, KEYS: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
    OVERLAP: tl.constexpr, INTERPRET: tl.constexpr,
    SEARCH: tl.constexpr, PAGED: tl.constexpr, PACKED: tl.constexpr, VISIBLE: tl.constexpr,
):  # fmt: skip
    """One token, one group, STEPS steps of KEYS keys. scale is that of base-2 exponentials.

    WHOLE: this is the token's only program, so the logarithm written is the natural one, and the result
    final.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    t, g, split = tl.program_id(0) // groups, tl.program_id(0) % groups, tl.program_id(1)
    t64, g64 = t.to(tl.int64), g.to(tl.int64)
    lane, column, key = tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, KEYS)
    q += t64 * q_t + (g64 * HEADS + lane)[:, None] * q_h + column[None, :]
    q_MD = tl.load(q, mask=(lane < HEADS)[:, None], other=0.0)
    j = tl.arange(0, KEPT)
    id = tl.load(ids + t64 * ids_t + g64 * ids_g + j, mask=j < K, other=-1)

    row = first_row + t
    sequence = sequence_of_one(row, query_starts, sequences, SEARCH)
    seen = visible_of(row, sequence, query_starts, key_lengths, visible, sequences, SEARCH, VISIBLE)
    place_K, limit_K = block_of(
        id, seen, sequence, pages, key_starts, sequences, pages_per_sequence, available, BLOCK, PAGED, PACKED
    )
    repeats = (id[:, None] == id[None, :]) & (j[:, None] < j[None, :])
    limit_K = tl.where(tl.sum(repeats.to(tl.int32), 0) == 0, limit_K, 0)

    if INTERPRET:
        q_MD = q_MD.to(tl.float32)
    k += g64 * k_g + key[:, None] * k_n + column[None, :]
    v += g64 * v_g + key[:, None] * v_n + column[None, :]
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    o_MD = tl.zeros([ROWS, D], tl.float32)
    # Choices stand before the padding, so a token that sees few blocks takes few steps.
    used = tl.max(tl.where(limit_K > 0, j + 1, 0), 0) * (BLOCK // KEYS)
    first = split * STEPS
    for step in range(first, tl.minimum(first + STEPS, used)):
        here = j == step // (BLOCK // KEYS)
        within = (step % (BLOCK // KEYS)) * KEYS
        place = tl.sum(tl.where(here, place_K, 0), 0).to(tl.int64)
        limit = tl.sum(tl.where(here, limit_K, 0), 0) - within
        if PAGED:
            k_at, v_at = k + place * k_p + within * k_n, v + place * v_p + within * v_n
        else:
            k_at, v_at = k + (place + within) * k_n, v + (place + within) * v_n
        k_BD = tl.load(k_at, mask=(key < limit)[:, None], other=0.0)
        v_BD = tl.load(v_at, mask=(key < limit)[:, None], other=0.0)
        k_BD, v_BD = k_BD.to(q_MD.dtype), v_BD.to(q_MD.dtype)
        s_MB = tl.dot(q_MD, tl.trans(k_BD), input_precision="ieee")
        s_MB = tl.where((key < limit)[None, :], s_MB, float("-inf"))
        higher = tl.maximum(top, tl.max(s_MB, 1) * scale)
        # Steps without a visible key may come before any that has one.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p_MB = tl.exp2(s_MB * scale - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p_MB, 1)
        o_MD = tl.dot(p_MB.to(v_BD.dtype), v_BD, o_MD * shrink[:, None], input_precision="ieee")
        top = higher

    any_key = total > 0
    total = tl.where(any_key, total, 1.0)
    log = tl.where(any_key, top + tl.log2(total), float("-inf"))
    if WHOLE:
        log *= LN2
    results += t64 * results_t + g64 * results_g + split * results_s
    tl.store(
        results + lane[:, None] * results_r + column[None, :],
        (o_MD / total[:, None]).to(results.dtype.element_ty),
        mask=(lane < HEADS)[:, None],
    )
    tl.store(logs + t64 * logs_t + g64 * logs_g + split * logs_s + lane * logs_r, log, mask=lane < HEADS)
