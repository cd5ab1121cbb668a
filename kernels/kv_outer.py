"""Sparse attention that walks the key blocks: for many queries at once.

A program holds one block of keys and values, and a piece of the list of queries that chose it passes by: a
few queries with all heads of their group fill one tile of the matrix units, however the selection falls. A
key block is read once per piece instead of once per query. What is paid for that: every (query, block) pair
writes its partial result, normalised, to a slot of its own [T, G, K], and a second kernel merges a query's
slots. No slot is written twice and nothing is added in memory, so two runs agree bit for bit.

Per pair of 128 keys x 16 heads x 128 wide in bf16, 1.05 MFLOP stand against 4 KB of queries read, 4 KB of
partial results written and read again, and 64 KB of keys and values divided by the queries of the block.

Shape legend: T new tokens, N keys, P pages, H query heads, G KV groups, D head width, K kept blocks, B keys
of a block, R heads of a group (rounded up to a power of two in tiles), M rows of a tile (queries x R).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.merge import merge
from pilotfish.kernels.reverse_index import FIELDS, reverse_index
from pilotfish.kernels.sizes import ceil_div, power_of_2

INTERPRET = triton.knobs.runtime.interpret
LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class KVOuterTiles:
    """How the pass is cut up.

    rows: (query, head) pairs in a tile. piece: queries of one program at most. tokens: queries whose slots
    are held at a time. merge_heads: heads that one program of the merge takes.
    """

    rows: int = 64
    piece: int = 256
    warps: int = 4
    tokens: int = 8192
    merge_heads: int = 4


def kv_outer(
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
    tiles: KVOuterTiles,
) -> None:
    """Fill `out_THD` and `lse_TH`; arguments as in `attention.sparse_attention`, checked there."""
    T, H, D = q_THD.shape
    G, K = ids_TGK.shape[1:]
    heads = H // G
    padded = power_of_2(heads)
    rows = max(tiles.rows, padded)
    page_k, page_v = (x.stride(0) if batch.pages is not None else 0 for x in (k, v))
    tokens = ceil_div(T, ceil_div(T, tiles.tokens))
    slots = (tokens, G, K, heads)
    partial_TGKRD = torch.empty(*slots, D, dtype=q_THD.dtype, device=q_THD.device)
    partial_lse_TGKR = torch.empty(slots, dtype=torch.float32, device=q_THD.device)
    for first in range(0, T, tokens):
        part = slice(first, min(first + tokens, T))
        index = reverse_index(ids_TGK[part], k, batch, block, tiles.piece, first)
        _attend_blocks[(len(index.pieces_PF),)](
            q_THD[part], k, v, index.entries_E, index.limits_E, index.pieces_PF,
            partial_TGKRD, partial_lse_TGKR,
            *q_THD.stride()[:2], page_k, *k.stride()[-3:-1], page_v, *v.stride()[-3:-1],
            scale * LOG2E, 0 if batch.pages is not None else k.shape[0],
            CHOICES=G * K, HEADS=heads, PADDED=padded, D=D, BLOCK=block, ROWS=rows,
            PIECE=power_of_2(tiles.piece), FIELDS=FIELDS,
            PAGED=batch.pages is not None, INTERPRET=INTERPRET, num_warps=tiles.warps, num_stages=1,
        )  # fmt: skip
        done = part.stop - first
        merge(
            partial_TGKRD[:done], partial_lse_TGKR[:done], index.lists_TGK, out_THD[part], lse_TH[part],
            heads=min(tiles.merge_heads, heads),
        )  # fmt: skip


@triton.jit(do_not_specialize=["available"])
def _attend_blocks(
    q, k, v, entries, limits, pieces, partial, partial_lse,
    q_t, q_h, k_p, k_n, k_g, v_p, v_n, v_g, scale, available,
    CHOICES: tl.constexpr, HEADS: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECE: tl.constexpr, FIELDS: tl.constexpr, PAGED: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """One piece: every query of it against one block of keys. scale is that of base-2 exponentials."""
    fields = pieces + tl.program_id(0) * FIELDS
    count = tl.load(fields + 1)
    if count == 0:
        return
    first = tl.load(fields)
    g, place = tl.load(fields + 2).to(tl.int64), tl.load(fields + 3).to(tl.int64)
    entries += first
    limits += first
    row, key, column = tl.arange(0, ROWS), tl.arange(0, BLOCK), tl.arange(0, D)
    lane, member = row % PADDED, row // PADDED
    STEP: tl.constexpr = ROWS // PADDED

    # All that the first tile needs is asked for before any of it is waited for. From then on, what the next
    # tile needs is fetched while this one is computed: its queries, and the entries of the one after.
    entry = tl.load(entries + member, mask=member < count, other=0)
    limit = tl.load(limits + member, mask=member < count, other=1)
    next_entry = tl.load(entries + STEP + member, mask=STEP + member < count, other=0)
    next_limit = tl.load(limits + STEP + member, mask=STEP + member < count, other=1)
    anyone = tl.arange(0, PIECE)
    limit_of_all = tl.load(limits + anyone, mask=anyone < count, other=0)
    if PAGED:
        k += place * k_p
        v += place * v_p
        there = (key < BLOCK)[:, None]
    else:
        k += place * k_n
        v += place * v_n
        there = (place + key < available)[:, None]
    k_at = k + g * k_g + key[:, None] * k_n + column[None, :]
    v_at = v + g * v_g + key[:, None] * v_n + column[None, :]
    k_BD = tl.load(k_at, mask=there, other=0.0)
    v_BD = tl.load(v_at, mask=there, other=0.0)
    token = (entry // CHOICES).to(tl.int64)[:, None]
    live = (member < count) & (lane < HEADS)
    q += (g * HEADS + lane)[:, None] * q_h + column[None, :]
    q_MD = tl.load(q + token * q_t, mask=live[:, None], other=0.0)

    if INTERPRET:
        k_BD, v_BD = k_BD.to(tl.float32), v_BD.to(tl.float32)
    else:
        k_BD, v_BD = k_BD.to(q_MD.dtype), v_BD.to(q_MD.dtype)
    # Values that no query sees may hold anything, NaN too, and weigh 0: 0 * NaN must not arise. To the keys
    # it makes no difference, but now both wait for the same thing, and so are fetched together.
    most = tl.max(limit_of_all, 0)
    if most < BLOCK:
        seen = (key < most)[:, None]
        k_BD = tl.where(seen, k_BD, tl.zeros_like(k_BD))
        v_BD = tl.where(seen, v_BD, tl.zeros_like(v_BD))
    for start in range(0, count, STEP):
        token = (next_entry // CHOICES).to(tl.int64)[:, None]
        next_live = (start + STEP + member < count) & (lane < HEADS)
        next_q_MD = tl.load(q + token * q_t, mask=next_live[:, None], other=0.0)
        later = start + 2 * STEP + member
        later_entry = tl.load(entries + later, mask=later < count, other=0)
        later_limit = tl.load(limits + later, mask=later < count, other=1)

        s_MB = tl.dot(q_MD.to(k_BD.dtype), tl.trans(k_BD), input_precision="ieee")
        s_MB = tl.where(key[None, :] < limit[:, None], s_MB, float("-inf"))
        top = tl.max(s_MB, 1) * scale
        p_MB = tl.exp2(s_MB * scale - top[:, None])
        total = tl.sum(p_MB, 1)
        o_MD = tl.dot(p_MB.to(v_BD.dtype), v_BD, input_precision="ieee") * (1.0 / total)[:, None]
        slot = entry.to(tl.int64) * HEADS + lane
        at = slot[:, None] * D + column[None, :]
        tl.store(partial + at, o_MD.to(partial.dtype.element_ty), mask=live[:, None])
        tl.store(partial_lse + slot, top + tl.log2(total), mask=live)

        q_MD, entry, limit, live = next_q_MD, next_entry, next_limit, next_live
        next_entry, next_limit = later_entry, later_limit
