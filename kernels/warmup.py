"""The index branch's loss over the whole context, for the warm-up before the main branch turns sparse.

The same loss as in `training.py`, but teacher and student range over every visible key. A program holds a
tile of queries of one group; the keys stream past once, and nothing of size T x N is ever stored. For each
tile of keys the heads of the group come by, their probabilities add up in registers, and teacher and
student stand side by side.

The gradient of the index keys is added by atomics, in whatever order programs end: it is the one result
here that two runs may give with other last bits.

Shape legend: T new tokens, N keys (in tiles: keys of a step), H query heads, G KV groups (= index heads), D
head width, I index width, R rows of a tile (queries), X tiles of queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.backward import INTERPRET, LOG2E
from pilotfish.kernels.batch import Batch


@dataclass(frozen=True)
class DenseTiles:
    """rows: queries of a program. keys: keys of a step."""

    rows: int
    keys: int
    warps: int
    stages: int


def default_tiles(dtype: torch.dtype, width: int) -> DenseTiles:
    """What is used where no tiles are given. fp32 has no matrix unit that keeps its precision."""
    if dtype == torch.float32:
        return DenseTiles(rows=16, keys=32, warps=4, stages=1)
    if width > 64:
        return DenseTiles(rows=128, keys=64, warps=8, stages=3)
    return DenseTiles(rows=64, keys=64, warps=4, stages=3)


def index_kl_dense(
    q_THD: Tensor,
    k_NGD: Tensor,
    lse_TH: Tensor | None,
    qi_TGI: Tensor,
    ki_NI: Tensor,
    batch: Batch,
    *,
    scale: float,
    index_scale: float,
    with_gradient: bool = True,
    tiles: DenseTiles | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over tokens and groups of the KL over all visible keys, and its gradients; see `training.index_kl`.

    lse: of full attention, natural logarithm; None: computed here, in one more pass over the keys.
    """
    T, H, D = q_THD.shape
    N, G = k_NGD.shape[:2]
    width, device = qi_TGI.shape[2], q_THD.device
    tiles = tiles or default_tiles(q_THD.dtype, D)
    rows = row_tiles(batch, T, N, tiles.rows)
    seen_T = batch.row_visible(T).int()
    if lse_TH is None:
        lse_TH = _log_sums(q_THD, k_NGD, rows, seen_T, scale, tiles)
    student_TG = _log_sums(qi_TGI, ki_NI[:, None], rows, seen_T, index_scale, tiles)
    losses_XG = torch.zeros(len(rows), G, dtype=torch.float32, device=device)
    dqi_TGI = torch.zeros(T if with_gradient else 0, G, width, dtype=qi_TGI.dtype, device=device)
    dki_NI = torch.zeros(N if with_gradient else 0, width, dtype=torch.float32, device=device)
    _dense_losses[(len(rows), G)](
        q_THD, k_NGD, lse_TH.contiguous(), qi_TGI, ki_NI, student_TG, rows, seen_T,
        losses_XG, dqi_TGI, dki_NI,
        *q_THD.stride()[:2], *k_NGD.stride()[:2], *qi_TGI.stride()[:2], ki_NI.stride(0),
        scale, index_scale, H,
        GROUP=H // G, D=D, DI=width, ROWS=tiles.rows, KEYS=tiles.keys, PRECISION="ieee", INTERPRET=INTERPRET,
        GRADIENT=with_gradient, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return losses_XG.sum(), dqi_TGI, dki_NI


def row_tiles(batch: Batch, tokens: int, keys: int, rows: int) -> Tensor:
    """The T rows cut into tiles of one sequence each, int32 [X, 4]: first row, rows, first key, keys there
    are.

    X is an upper bound known on the host; tiles too many have no rows. Heavy ones, the last, come first.
    """
    starts_S = batch.query_starts.long().clamp(0, tokens)
    tiles_S = (starts_S.diff().clamp(min=0) + rows - 1) // rows
    ends_S = tiles_S.cumsum(0)
    number_X = torch.arange(tokens // rows + batch.sequences, device=starts_S.device).flip(0)
    sequence_X = torch.bucketize(number_X, ends_S, right=True)
    known_X = sequence_X < batch.sequences
    sequence_X = sequence_X.clamp(max=batch.sequences - 1)
    first_X = starts_S[sequence_X] + (number_X - (ends_S - tiles_S)[sequence_X]) * rows
    count_X = (starts_S[sequence_X + 1] - first_X).clamp(0, rows) * known_X
    if batch.key_starts is None:
        key_X = torch.zeros_like(first_X)
    else:
        key_X = batch.key_starts.long()[sequence_X].clamp(0, keys)
    length_X = torch.minimum(batch.key_lengths.long()[sequence_X], keys - key_X)
    return torch.stack((first_X, count_X, key_X, length_X), dim=1).int()


def _log_sums(
    q_THD: Tensor, k_NGD: Tensor, rows: Tensor, seen_T: Tensor, scale: float, tiles: DenseTiles
) -> Tensor:
    """Natural log-sum-exp of the scaled products of each query head with all keys it sees, fp32 [T, H]."""
    T, H, D = q_THD.shape
    sums_TH = torch.full((T, H), float("-inf"), dtype=torch.float32, device=q_THD.device)
    _stream[(len(rows), H)](
        q_THD, k_NGD, rows, seen_T, sums_TH, *q_THD.stride()[:2], *k_NGD.stride()[:2], scale,
        GROUP=H // k_NGD.shape[1], D=D, ROWS=tiles.rows, KEYS=tiles.keys,
        PRECISION="ieee", INTERPRET=INTERPRET, num_warps=4, num_stages=tiles.stages,
    )  # fmt: skip
    return sums_TH


@triton.jit
def _stream(
    q, k, tiles, visible, sums, stride_qt, stride_qh, stride_kn, stride_kg, scale,
    GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """One tile of queries and one head against all of its keys."""
    fields, head = tiles + tl.program_id(0) * 4, tl.program_id(1).to(tl.int64)
    count = tl.load(fields + 1)
    rows, keys, width = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, D)
    live = rows < count
    token = tl.load(fields).to(tl.int64) + rows
    seen_R = tl.minimum(tl.load(visible + token, mask=live, other=0), tl.load(fields + 3))
    q_RD = tl.load(q + token[:, None] * stride_qt + head * stride_qh + width, mask=live[:, None], other=0.0)
    if INTERPRET:
        q_RD = q_RD.to(tl.float32)
    k += tl.load(fields + 2).to(tl.int64) * stride_kn + (head // GROUP) * stride_kg
    most = tl.max(seen_R)
    top_R = tl.full([ROWS], float("-inf"), tl.float32)
    sum_R = tl.zeros([ROWS], tl.float32)
    for start in range(0, most, KEYS):
        at = (start + keys).to(tl.int64)[:, None] * stride_kn + width
        k_ND = tl.load(k + at, mask=(start + keys < most)[:, None], other=0.0)
        if INTERPRET:
            k_ND = k_ND.to(tl.float32)
        s_RN = tl.dot(q_RD, tl.trans(k_ND), input_precision=PRECISION) * (scale * LOG2E)
        s_RN = tl.where((start + keys)[None] < seen_R[:, None], s_RN, float("-inf"))
        new_R = tl.maximum(top_R, tl.max(s_RN, 1))
        safe_R = tl.where(new_R == float("-inf"), 0.0, new_R)
        sum_R = sum_R * tl.exp2(top_R - safe_R) + tl.sum(tl.exp2(s_RN - safe_R[:, None]), 1)
        top_R = new_R
    heads = tl.num_programs(1)
    sum_R = tl.where(seen_R > 0, sum_R, 1.0)
    tl.store(sums + token * heads + head, (top_R + tl.log2(sum_R)) / LOG2E, mask=live & (seen_R > 0))


@triton.jit
def _dense_losses(
    q, k, lse, qi, ki, student, tiles, visible, losses, dqi, dki,
    stride_qt, stride_qh, stride_kn, stride_kg, stride_it, stride_ig, stride_in, scale, index_scale, heads,
    GROUP: tl.constexpr, D: tl.constexpr, DI: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRET: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """One tile of queries and one group: its share of the loss, its dqi, its addition to dki."""
    fields, group = tiles + tl.program_id(0) * 4, tl.program_id(1).to(tl.int64)
    count = tl.load(fields + 1)
    if count == 0:
        return
    groups = heads // GROUP
    rows, keys, width, narrow = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, D), tl.arange(0, DI)
    live = rows < count
    token = tl.load(fields).to(tl.int64) + rows
    key = tl.load(fields + 2).to(tl.int64)
    seen_R = tl.minimum(tl.load(visible + token, mask=live, other=0), tl.load(fields + 3))
    at = token[:, None] * stride_it + group * stride_ig + narrow
    qi_RI = tl.load(qi + at, mask=live[:, None], other=0.0)
    student_R = tl.load(student + token * groups + group, mask=seen_R > 0, other=0.0) * LOG2E
    if INTERPRET:
        qi_RI = qi_RI.to(tl.float32)
    k += key * stride_kn + group * stride_kg
    ki += key * stride_in
    dki += key * DI
    most = tl.max(seen_R)
    loss_R = tl.zeros([ROWS], tl.float32)
    dqi_RI = tl.zeros([ROWS, DI], tl.float32)
    for start in range(0, most, KEYS):
        place = (start + keys).to(tl.int64)[:, None]
        there = place < most
        k_ND = tl.load(k + place * stride_kn + width, mask=there, other=0.0)
        ki_NI = tl.load(ki + place * stride_in + narrow, mask=there, other=0.0)
        if INTERPRET:
            k_ND, ki_NI = k_ND.to(tl.float32), ki_NI.to(tl.float32)
        p_RN = tl.zeros([ROWS, KEYS], tl.float32)
        for head in range(GROUP):
            h = group * GROUP + head
            at = token[:, None] * stride_qt + h * stride_qh + width
            q_RD = tl.load(q + at, mask=live[:, None], other=0.0)
            lse_R = tl.load(lse + token * heads + h, mask=seen_R > 0, other=0.0) * LOG2E
            if INTERPRET:
                q_RD = q_RD.to(tl.float32)
            s_RN = tl.dot(q_RD, tl.trans(k_ND), input_precision=PRECISION)
            p_RN += tl.exp2(s_RN * (scale * LOG2E) - lse_R[:, None])
        seen_RN = (start + keys)[None] < seen_R[:, None]
        p_RN = tl.where(seen_RN, p_RN / GROUP, 0.0)
        s_RN = tl.dot(qi_RI, tl.trans(ki_NI), input_precision=PRECISION)
        s_RN = s_RN * (index_scale * LOG2E) - student_R[:, None]
        term_RN = p_RN * (tl.log2(tl.maximum(p_RN, 1e-37)) - s_RN)
        loss_R += tl.sum(tl.where(seen_RN, term_RN, 0.0), 1)
        if GRADIENT:
            ds_RN = tl.where(seen_RN, tl.exp2(s_RN) - p_RN, 0.0).to(qi_RI.dtype)
            dqi_RI = tl.dot(ds_RN, ki_NI, dqi_RI, input_precision=PRECISION)
            dki_NI = tl.dot(tl.trans(ds_RN), qi_RI, input_precision=PRECISION) * index_scale
            tl.atomic_add(dki + place * DI + narrow, dki_NI, mask=there, sem="relaxed")
    tl.store(losses + tl.program_id(0) * groups + group, tl.sum(loss_R) / LOG2E)
    if GRADIENT:
        at = dqi + (token[:, None] * groups + group) * DI + narrow
        tl.store(at, (dqi_RI * index_scale).to(dqi.dtype.element_ty), mask=live[:, None])
