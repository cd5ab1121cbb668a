"""The loss that trains the index branch, and its gradient, in one pass over the key blocks.

The loss of a (token, group) is KL(p || s): p, the teacher, is the mean over the group's heads of the main
branch's attention to the chosen keys; s, the student, is the softmax of the index scores over the same
keys. The teacher is detached, so the gradient by an index score is s - p, and nothing else is needed: the
forward pass computes the gradients of index queries and keys beside the loss, and the backward pass scales
them.

Two kernels walk the lists of `reverse_index.py`. The first leaves the log-sum-exp of the index scores of
each (query, block) pair in the slot of that choice; summed over the slots they are the student's
normaliser. The second keeps a block of keys and index keys on the chip, takes the queries that chose it
head by head, adds the heads' probabilities up in registers, and has teacher and student side by side.

Source: arXiv 2606.13392, section 2 (the loss), appendix (its gradient). Nothing is added by atomics, so two
runs agree bit for bit.

Shape legend: T new tokens, N keys, H query heads, G KV groups (= index heads), D head width, I index width, K
kept blocks, B keys of a block, R rows of a tile (queries), P pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.backward import INTERPRET, LOG2E, add_pieces, add_slots, even_chunk
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.reverse_index import reverse_index

SLOT_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Tiles:
    """rows: queries that pass at once. piece: queries of one program at most; a power of two."""

    rows: int
    warps: int
    stages: int
    piece: int = 1024


def default_tiles(dtype: torch.dtype, width: int, block: int) -> Tiles:
    """What is used where no tiles are given. fp32 has no matrix unit that keeps its precision."""
    if dtype == torch.float32:
        return Tiles(rows=16, warps=8 if block * width > 64 * 64 else 4, stages=1)
    return Tiles(rows=64, warps=4, stages=3)


def index_kl(
    q_THD: Tensor,
    k_NGD: Tensor,
    lse_TH: Tensor,
    qi_TGI: Tensor,
    ki_NI: Tensor,
    ids_TGK: Tensor,
    batch: Batch,
    *,
    block: int,
    scale: float,
    index_scale: float,
    with_gradient: bool = True,
    tiles: Tiles | None = None,
    slot_bytes: int = SLOT_BYTES,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over tokens and groups of the KL, in nat (fp32 scalar), and its gradients dqi [T, G, I], dki [N,
    I].

    lse: of the main branch over the chosen blocks, natural logarithm, as `sparse_attention` returns it.
    index_scale: factor on the index products inside the student's softmax. dqi has the type of qi, dki is
    fp32; both are empty without `with_gradient`. Tokens that see nothing add nothing.
    """
    T, H, D = q_THD.shape
    N, G = k_NGD.shape[:2]
    K, width = ids_TGK.shape[2], qi_TGI.shape[2]
    tiles = tiles or default_tiles(q_THD.dtype, D, block)
    device, lse_TH = q_THD.device, lse_TH * math.log2(math.e)  # what follows is in base 2
    loss = torch.zeros((), dtype=torch.float32, device=device)
    dqi_TGI = torch.zeros(T if with_gradient else 0, G, width, dtype=qi_TGI.dtype, device=device)
    dki_GNI = torch.zeros(G, N if with_gradient else 0, width, dtype=torch.float32, device=device)
    shape = {
        "CHOICES": G * K, "GROUP": H // G, "D": D, "DI": width, "BLOCK": block, "ROWS": tiles.rows,
        "PIECE": tiles.piece, "PRECISION": "ieee", "INTERPRET": INTERPRET,
    }  # fmt: skip
    # Probabilities have no use for bf16's range, and the loss for its three digits.
    teacher_type = torch.float32 if q_THD.dtype == torch.float32 else torch.float16
    # A query's address comes from memory itself, which takes two stages; five keep the next tile under way,
    # where there are registers for that.
    sums_stages, student_stages = (1, 1) if tiles.stages == 1 else (5, 3)
    student_warps = 8 if block * width > 64 * 64 else 4
    chunk = even_chunk(T, slot_bytes // max(G * K * (block + width) * qi_TGI.element_size(), 1))
    rows_to_do = 0 if 0 in (N, K, batch.max_keys) else T
    for start in range(0, rows_to_do, chunk):
        part = slice(start, min(start + chunk, T))
        ids = ids_TGK[part]
        lists = reverse_index(ids, k_NGD, batch, block, tiles.piece, first_row=start)
        pieces = len(lists.pieces_PF)
        listed = (lists.entries_E, lists.limits_E, lists.pieces_PF)
        sums_TGK = torch.full(ids.shape, float("-inf"), dtype=torch.float32, device=device)
        _student_sums[(pieces,)](
            qi_TGI[part], ki_NI, *listed, sums_TGK, *qi_TGI.stride()[:2], ki_NI.stride(0), index_scale, N,
            **shape, num_warps=4, num_stages=sums_stages,
        )  # fmt: skip
        student_TG = sums_TGK.logsumexp(-1)
        losses_2P = torch.zeros(2, pieces, dtype=torch.float32, device=device)
        teacher_TGKB = torch.empty(*ids.shape, block, dtype=teacher_type, device=device)
        _teachers[(pieces,)](
            q_THD[part], k_NGD, lse_TH[part], *listed, teacher_TGKB, losses_2P[0],
            *q_THD.stride()[:2], *k_NGD.stride()[:2], scale * math.log2(math.e), H, N,
            **shape, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        rows = len(ids) if with_gradient else 0
        slots_TGKI = torch.empty(rows, G, K, width, dtype=qi_TGI.dtype, device=device)
        lengths_P = torch.empty(pieces, dtype=torch.int32, device=device)
        parts_PBI = torch.empty(pieces if with_gradient else 0, block, width, device=device)
        _losses[(pieces,)](
            teacher_TGKB, qi_TGI[part], ki_NI, student_TG, *listed,
            losses_2P[1], slots_TGKI, parts_PBI, lengths_P,
            *qi_TGI.stride()[:2], ki_NI.stride(0), index_scale, G, N,
            **shape, GRADIENT=with_gradient, num_warps=student_warps, num_stages=student_stages,
        )  # fmt: skip
        loss += losses_2P.sum()
        if with_gradient:
            add_slots(slots_TGKI[:, :, :, None], lists.lists_TGK, dqi_TGI[part], index_scale)
            add_pieces(parts_PBI[:, None], lengths_P, lists, dki_GNI[None].transpose(1, 2))
    return loss, dqi_TGI, dki_GNI.sum(0) * index_scale


@triton.jit(do_not_specialize=["available"])
def _student_sums(
    qi, ki, entries, limits, pieces, sums, stride_qt, stride_qg, stride_kn, index_scale,
    available,
    CHOICES: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DI: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECE: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """The log-sum-exp of the index scores of each choice of a piece, into its slot. Tiles stand rows x
    keys."""
    fields = pieces + tl.program_id(0) * 4
    first, count = tl.load(fields), tl.load(fields + 1)
    if count == 0:
        return
    group, key = tl.load(fields + 2), tl.load(fields + 3).to(tl.int64)
    keys, width, rows = tl.arange(0, BLOCK), tl.arange(0, DI), tl.arange(0, ROWS)
    all_ = tl.arange(0, PIECE)
    length = tl.minimum(tl.max(tl.load(limits + first + all_, mask=all_ < count, other=0)), available - key)
    ki_BI = tl.load(ki + (key + keys)[:, None] * stride_kn + width, mask=(keys < length)[:, None], other=0.0)
    if INTERPRET:
        ki_BI = ki_BI.to(tl.float32)
    for start in range(0, count, ROWS):
        live = start + rows < count
        entry = tl.load(entries + first + start + rows, mask=live, other=0)
        limit_R = tl.load(limits + first + start + rows, mask=live, other=1)
        token = (entry // CHOICES).to(tl.int64)
        at = token[:, None] * stride_qt + group * stride_qg + width
        qi_RI = tl.load(qi + at, mask=live[:, None], other=0.0)
        if INTERPRET:
            qi_RI = qi_RI.to(tl.float32)
        s_RB = tl.dot(qi_RI, tl.trans(ki_BI), input_precision=PRECISION) * (index_scale * LOG2E)
        s_RB = tl.where(keys[None] < limit_R[:, None], s_RB, float("-inf"))
        top_R = tl.max(s_RB, 1)
        sum_R = tl.sum(tl.exp2(s_RB - top_R[:, None]), 1)
        tl.store(sums + entry, (top_R + tl.log2(sum_R)) / LOG2E, mask=live)


@triton.jit(do_not_specialize=["available"])
def _teachers(
    q, k, lse, entries, limits, pieces, teachers, losses,
    stride_qt, stride_qh, stride_kn, stride_kg, scale, heads, available,
    CHOICES: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DI: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECE: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """The mean p of the heads' attention of each choice of a piece to its block, and the sum of p log p.

    Tiles stand rows x keys; scale and lse are those of base-2 exponentials.
    """
    fields = pieces + tl.program_id(0) * 4
    first, count = tl.load(fields), tl.load(fields + 1)
    if count == 0:
        return
    group, key = tl.load(fields + 2).to(tl.int64), tl.load(fields + 3).to(tl.int64)
    keys, rows, width, all_ = tl.arange(0, BLOCK), tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, PIECE)
    length = tl.minimum(tl.max(tl.load(limits + first + all_, mask=all_ < count, other=0)), available - key)
    k += key * stride_kn + group * stride_kg
    k_BD = tl.load(k + keys[:, None] * stride_kn + width, mask=(keys < length)[:, None], other=0.0)
    if INTERPRET:
        k_BD = k_BD.to(tl.float32)
    loss_R = tl.zeros([ROWS], tl.float32)
    for start in range(0, count, ROWS):
        live = start + rows < count
        entry = tl.load(entries + first + start + rows, mask=live, other=0)
        limit_R = tl.load(limits + first + start + rows, mask=live, other=0)
        token = (entry // CHOICES).to(tl.int64)
        p_RB = tl.zeros([ROWS, BLOCK], tl.float32)
        for head in range(GROUP):
            h = group * GROUP + head
            at = token[:, None] * stride_qt + h * stride_qh + width
            q_RD = tl.load(q + at, mask=live[:, None], other=0.0)
            lse_R = tl.load(lse + token * heads + h, mask=live, other=0.0)
            if INTERPRET:
                q_RD = q_RD.to(tl.float32)
            s_RB = tl.dot(q_RD, tl.trans(k_BD), input_precision=PRECISION)
            p_RB += tl.exp2(s_RB * scale - lse_R[:, None])
        p_RB = tl.where(keys[None] < limit_R[:, None], p_RB / GROUP, 0.0).to(teachers.dtype.element_ty)
        tl.store(teachers + entry[:, None] * BLOCK + keys, p_RB, mask=live[:, None])
        p_RB = p_RB.to(tl.float32)
        loss_R += tl.sum(p_RB * tl.log2(tl.maximum(p_RB, 1e-37)), 1)
    tl.store(losses + tl.program_id(0), tl.sum(loss_R) / LOG2E)


@triton.jit(do_not_specialize=["available"])
def _losses(
    teachers, qi, ki, student, entries, limits, pieces, losses, slots, parts, lengths,
    stride_it, stride_ig, stride_in, index_scale, groups, available,
    CHOICES: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DI: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECE: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
    GRADIENT: tl.constexpr,
):  # fmt: skip
    """One piece: its share of the loss and of dki, and the dqi slots of its choices. Tiles stand rows x
    keys."""
    piece = tl.program_id(0)
    fields = pieces + piece * 4
    first, count = tl.load(fields), tl.load(fields + 1)
    if count == 0:
        return
    group, key = tl.load(fields + 2).to(tl.int64), tl.load(fields + 3).to(tl.int64)
    keys, rows, width, all_ = tl.arange(0, BLOCK), tl.arange(0, ROWS), tl.arange(0, DI), tl.arange(0, PIECE)
    length = tl.minimum(tl.max(tl.load(limits + first + all_, mask=all_ < count, other=0)), available - key)
    ki_BI = tl.load(ki + (key + keys)[:, None] * stride_in + width, mask=(keys < length)[:, None], other=0.0)
    if INTERPRET:
        ki_BI = ki_BI.to(tl.float32)
    loss_R = tl.zeros([ROWS], tl.float32)
    dki_BI = tl.zeros([BLOCK, DI], tl.float32)
    for start in range(0, count, ROWS):
        live = start + rows < count
        entry = tl.load(entries + first + start + rows, mask=live, other=0)
        limit_R = tl.load(limits + first + start + rows, mask=live, other=0)
        token = (entry // CHOICES).to(tl.int64)
        p_RB = tl.load(teachers + entry[:, None] * BLOCK + keys, mask=live[:, None], other=0.0).to(tl.float32)
        at = token[:, None] * stride_it + group * stride_ig + width
        qi_RI = tl.load(qi + at, mask=live[:, None], other=0.0)
        student_R = tl.load(student + token * groups + group, mask=live, other=0.0)
        if INTERPRET:
            qi_RI = qi_RI.to(tl.float32)
        s_RB = tl.dot(qi_RI, tl.trans(ki_BI), input_precision=PRECISION)
        s_RB = s_RB * (index_scale * LOG2E) - (student_R * LOG2E)[:, None]
        seen_RB = keys[None] < limit_R[:, None]
        loss_R += tl.sum(tl.where(seen_RB, p_RB * s_RB, 0.0), 1)
        if GRADIENT:
            ds_RB = tl.where(seen_RB, tl.exp2(s_RB) - p_RB, 0.0).to(qi_RI.dtype)
            dki_BI = tl.dot(tl.trans(ds_RB), qi_RI, dki_BI, input_precision=PRECISION)
            dqi_RI = tl.dot(ds_RB, ki_BI, input_precision=PRECISION)
            slot = slots + entry[:, None] * DI + width
            tl.store(slot, dqi_RI.to(slots.dtype.element_ty), mask=live[:, None])
    tl.store(losses + piece, -tl.sum(loss_R) / LOG2E)
    if GRADIENT:
        tl.store(lengths + piece, length)
        part = parts + piece.to(tl.int64) * (BLOCK * DI) + keys[:, None] * DI + width
        tl.store(part, dki_BI)
