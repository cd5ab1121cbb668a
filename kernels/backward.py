"""Gradients of the sparse branch, key block by key block.

A program holds one block of keys and values, and a piece of the list of queries that chose it passes by: a
few queries with all heads of their group make one tile of the matrix units. Five products per tile, as in
every flash backward: the scores again, the gradient of the probabilities, and the three gradients.

- dK and dV of a piece stay in registers and leave once, to a place of the piece's own; a second kernel adds
  the pieces of a block in their order.
- dQ of a (query, block) pair leaves to the slot of that choice, [T, G, K]; a third kernel adds the K slots.

Nothing is added by atomics, so two runs agree bit for bit. The slots are what costs memory: queries are taken
in chunks that keep them under `SLOT_BYTES`.

Shape legend: T new tokens, N keys, H query heads, G KV groups, D head width, K kept blocks, B keys of a
block, R rows of a tile (= queries x padded group), P pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.reverse_index import ReverseIndex, reverse_index
from pilotfish.kernels.sizes import ceil_div, power_of_2

INTERPRET = triton.knobs.runtime.interpret
SLOT_BYTES = 4 * 1024**3
LOG2E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Tiles:
    """How the main kernel cuts its work.

    rows: (query, head) pairs that pass at once. piece: queries of one program at most.
    """

    rows: int
    warps: int
    stages: int
    piece: int = 512


def default_tiles(dtype: torch.dtype, width: int, block: int) -> Tiles:
    """What is used where no tiles are given. fp32 has no matrix unit that keeps its precision."""
    if dtype == torch.float32:
        return Tiles(rows=16, warps=8 if block * width > 64 * 64 else 4, stages=1)
    # A query's address comes from memory itself, which takes two stages; five keep the next tile under way.
    return Tiles(rows=64, warps=8 if block * width > 64 * 64 else 4, stages=5)


def sparse_attention_backward(
    dout_THD: Tensor,
    dlse_TH: Tensor | None,
    q_THD: Tensor,
    k_NGD: Tensor,
    v_NGD: Tensor,
    ids_TGK: Tensor,
    out_THD: Tensor,
    lse_TH: Tensor,
    batch: Batch,
    *,
    block: int,
    scale: float,
    tiles: Tiles | None = None,
    slot_bytes: int = SLOT_BYTES,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (dq, dk, dv) of `sparse_attention`, in the types of q, k and v.

    dout, dlse: gradients by its two results; dlse may be None. out, lse: those results. Keys must be
    contiguous, not paged. The last dimension of every tensor is contiguous. Two runs give the same bits.
    """
    T, H, D = q_THD.shape
    N, G = k_NGD.shape[:2]
    K, group = ids_TGK.shape[2], H // G
    tiles = tiles or default_tiles(q_THD.dtype, D, block)
    padded = power_of_2(group)
    rows = max(tiles.rows, padded, 16)
    device = q_THD.device
    dq_THD = torch.zeros(T, H, D, dtype=q_THD.dtype, device=device)
    gradients_2NGD = torch.zeros(2, N, G, D, dtype=torch.float32, device=device)
    dout_THD = dout_THD if dout_THD.stride(-1) == 1 else dout_THD.contiguous()
    lse_TH = lse_TH * math.log2(math.e)  # what follows is in base 2
    delta_TH = torch.empty(T, H, dtype=torch.float32, device=device)
    if T:
        _row_products[(ceil_div(T * H, 32),)](
            out_THD, dout_THD, delta_TH, *out_THD.stride()[:2], *dout_THD.stride()[:2], T * H, H, D=D, ROWS=32
        )
    if dlse_TH is not None:
        delta_TH -= dlse_TH
    chunk = even_chunk(T, slot_bytes // max(H * K * D * q_THD.element_size(), 1))
    rows_to_do = 0 if 0 in (N, K, batch.max_keys) else T
    for start in range(0, rows_to_do, chunk):
        part = slice(start, min(start + chunk, T))
        ids = ids_TGK[part]
        lists = reverse_index(ids, k_NGD, batch, block, tiles.piece, first_row=start)
        pieces = len(lists.pieces_PF)
        slots_TGKRD = torch.empty(len(ids), G, K, group, D, dtype=q_THD.dtype, device=device)
        parts_P2BD = torch.empty(pieces, 2, block, D, dtype=torch.float32, device=device)
        lengths_P = torch.empty(pieces, dtype=torch.int32, device=device)
        _pieces[(pieces,)](
            q_THD[part], k_NGD, v_NGD, dout_THD[part], lse_TH[part], delta_TH[part],
            lists.entries_E, lists.limits_E, lists.pieces_PF, slots_TGKRD, parts_P2BD, lengths_P,
            *q_THD.stride()[:2], *k_NGD.stride()[:2], *v_NGD.stride()[:2], *dout_THD.stride()[:2],
            scale * math.log2(math.e), H, N,
            CHOICES=G * K, GROUP=group, PADDED=padded, D=D, BLOCK=block, ROWS=rows, PIECE=tiles.piece,
            PRECISION="ieee", INTERPRET=INTERPRET, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        add_slots(slots_TGKRD, lists.lists_TGK, dq_THD[part], scale)
        add_pieces(parts_P2BD, lengths_P, lists, gradients_2NGD)
    dk_NGD, dv_NGD = gradients_2NGD
    return dq_THD, (dk_NGD * scale).to(k_NGD.dtype), dv_NGD.to(v_NGD.dtype, copy=True)


def even_chunk(rows: int, most: int) -> int:
    """The size of the fewest equal chunks of at most `most` rows."""
    return ceil_div(max(rows, 1), ceil_div(max(rows, 1), max(most, 1)))


def add_slots(slots_TGKRD: Tensor, lists_TGK: Tensor, sums_THD: Tensor, scale: float) -> None:
    """Write the sum of each token's K slots times `scale` to `sums`, contiguous.

    Slots whose list is -1 are not read.
    """
    T, G, K, group, D = slots_TGKRD.shape
    _add_slots[(T, G)](
        slots_TGKRD, lists_TGK, sums_THD, scale,
        KEPT=K, GROUP=group, PADDED=power_of_2(group), D=D,
        num_warps=4 if group > 4 else 1,
    )  # fmt: skip


def add_pieces(parts_PMBD: Tensor, lengths_P: Tensor, lists: ReverseIndex, sums_MNGD: Tensor) -> None:
    """Add the pieces of each list, in their order, to `sums`, fp32. lengths: keys of a piece that count."""
    pieces, planes, block, D = parts_PMBD.shape
    _add_pieces[(pieces, planes)](
        parts_PMBD, lengths_P, lists.pieces_PF, sums_MNGD, pieces, planes, *sums_MNGD.stride()[:3],
        D=D, BLOCK=block, num_warps=8,
    )  # fmt: skip


@triton.jit
def _row_products(
    out, dout, delta, stride_ot, stride_oh, stride_dt, stride_dh, total, heads,
    D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """delta = <out, dout> of each (token, head), fp32."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token, head, width = (row // heads)[:, None], (row % heads)[:, None], tl.arange(0, D)
    live = row < total
    o = tl.load(out + token * stride_ot + head * stride_oh + width, mask=live[:, None], other=0.0)
    d = tl.load(dout + token * stride_dt + head * stride_dh + width, mask=live[:, None], other=0.0)
    tl.store(delta + row, tl.sum(o.to(tl.float32) * d.to(tl.float32), 1), mask=live)


@triton.jit(do_not_specialize=["available"])
def _pieces(
    q, k, v, dout, lse, delta, entries, limits, pieces, slots, parts, lengths,
    stride_qt, stride_qh, stride_kn, stride_kg, stride_vn, stride_vg, stride_dt, stride_dh,
    scale, heads, available,
    CHOICES: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECE: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """One piece: its share of dK and dV, and the dQ slots of its choices. Tiles stand keys x rows.

    scale and lse are those of base-2 exponentials; what leaves wants the scale still.
    """
    piece = tl.program_id(0)
    fields = pieces + piece * 4
    first, count = tl.load(fields), tl.load(fields + 1)
    if count == 0:
        return
    group, key = tl.load(fields + 2).to(tl.int64), tl.load(fields + 3).to(tl.int64)
    all_ = tl.arange(0, PIECE)
    # Sequences that share keys may leave limits of one block beside the place of another: never past the end.
    length = tl.minimum(tl.max(tl.load(limits + first + all_, mask=all_ < count, other=0)), available - key)
    tl.store(lengths + piece, length)
    keys, width = tl.arange(0, BLOCK), tl.arange(0, D)
    there = (keys < length)[:, None]
    k_BD = tl.load(k + (key + keys)[:, None] * stride_kn + group * stride_kg + width, mask=there, other=0.0)
    v_BD = tl.load(v + (key + keys)[:, None] * stride_vn + group * stride_vg + width, mask=there, other=0.0)
    if INTERPRET:
        k_BD, v_BD = k_BD.to(tl.float32), v_BD.to(tl.float32)
    dk_BD = tl.zeros([BLOCK, D], tl.float32)
    dv_BD = tl.zeros([BLOCK, D], tl.float32)
    rows = tl.arange(0, ROWS)
    lane = rows % PADDED
    head = group * GROUP + lane
    for start in range(0, count, ROWS // PADDED):
        member = start + rows // PADDED
        live = member < count
        entry = tl.load(entries + first + member, mask=live, other=0)
        if PADDED > GROUP:
            live &= lane < GROUP
        token = (entry // CHOICES).to(tl.int64)
        at = token[:, None] * stride_qt + head[:, None] * stride_qh + width
        q_RD = tl.load(q + at, mask=live[:, None], other=0.0)
        at = token[:, None] * stride_dt + head[:, None] * stride_dh + width
        do_RD = tl.load(dout + at, mask=live[:, None], other=0.0)
        lse_R = tl.load(lse + token * heads + head, mask=live, other=0.0)
        delta_R = tl.load(delta + token * heads + head, mask=live, other=0.0)
        limit_R = tl.load(limits + first + member, mask=live, other=0)
        if INTERPRET:
            q_RD, do_RD = q_RD.to(tl.float32), do_RD.to(tl.float32)
        s_BR = tl.dot(k_BD, tl.trans(q_RD), input_precision=PRECISION)
        p_BR = tl.exp2(s_BR * scale - lse_R[None])
        p_BR = tl.where(keys[:, None] < limit_R[None], p_BR, 0.0)
        dv_BD = tl.dot(p_BR.to(do_RD.dtype), do_RD, dv_BD, input_precision=PRECISION)
        dp_BR = tl.dot(v_BD, tl.trans(do_RD), input_precision=PRECISION)
        ds_BR = (p_BR * (dp_BR - delta_R[None])).to(q_RD.dtype)
        dk_BD = tl.dot(ds_BR, q_RD, dk_BD, input_precision=PRECISION)
        dq_RD = tl.dot(tl.trans(ds_BR), k_BD, input_precision=PRECISION)
        slot = slots + (entry.to(tl.int64) * GROUP + lane)[:, None] * D + width
        tl.store(slot, dq_RD.to(slots.dtype.element_ty), mask=live[:, None])
    part = parts + piece.to(tl.int64) * (2 * BLOCK * D) + keys[:, None] * D + width
    tl.store(part, dk_BD)
    tl.store(part + BLOCK * D, dv_BD)


@triton.jit
def _add_slots(
    slots, lists, sums, scale,
    KEPT: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One token and group: the sum of the slots of its choices."""
    pair = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    lane, width = tl.arange(0, PADDED)[:, None], tl.arange(0, D)
    sum_RD = tl.zeros([PADDED, D], tl.float32)
    # Unrolled, so that the slots are read side by side.
    for j in tl.static_range(KEPT):
        live = (tl.load(lists + pair * KEPT + j) >= 0) & (lane < GROUP)
        at = ((pair * KEPT + j) * GROUP + lane) * D + width
        sum_RD += tl.load(slots + at, mask=live, other=0.0).to(tl.float32)
    at = (pair * GROUP + lane) * D + width
    tl.store(sums + at, (sum_RD * scale).to(sums.dtype.element_ty), mask=lane < GROUP)


@triton.jit
def _add_pieces(
    parts, lengths, pieces, sums, all_pieces, planes, stride_m, stride_n, stride_g,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The program of a list's first piece adds up one plane of the list's pieces."""
    piece, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    fields = pieces + piece * 4
    group, key = tl.load(fields + 2), tl.load(fields + 3)
    same = (piece > 0) & (tl.load(fields - 2, mask=piece > 0, other=-1) == group)
    same = same & (tl.load(fields - 1, mask=piece > 0, other=-1) == key)
    if same or tl.load(fields + 1) == 0:
        return
    keys, width = tl.arange(0, BLOCK)[:, None], tl.arange(0, D)
    sum_BD = tl.zeros([BLOCK, D], tl.float32)
    part = parts + (piece.to(tl.int64) * planes + plane) * (BLOCK * D) + keys * D + width
    length = 0
    more = 1
    while more != 0:
        sum_BD += tl.load(part)
        length = tl.maximum(length, tl.load(lengths + piece))
        piece += 1
        part += planes * (BLOCK * D)
        fields += 4
        inside = piece < all_pieces
        more = tl.load(fields + 1, mask=inside, other=0)
        more = tl.where(tl.load(fields + 2, mask=inside, other=-1) == group, more, 0)
        more = tl.where(tl.load(fields + 3, mask=inside, other=-1) == key, more, 0)
    at = sums + plane * stride_m + (key.to(tl.int64) + keys) * stride_n + group * stride_g + width
    tl.store(at, tl.load(at, mask=keys < length, other=0.0) + sum_BD, mask=keys < length)
