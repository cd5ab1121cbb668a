"""Merging partial results of attention: the same queries against different keys.

Each partial result is normalised by itself and comes with the base-2 logarithm of its sum of exponentials;
merged, it weighs 2 ** (its logarithm - that of all).

Shape legend: T new tokens, H query heads, G KV groups, J partial results of a query, D head width, R heads
of a group.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.sizes import ceil_div, power_of_2

LN2 = tl.constexpr(0.6931471805599453)


def merge(
    partial_TGJRD: Tensor,
    partial_lse_TGJR: Tensor,
    live_TGJ: Tensor | None,
    out_THD: Tensor,
    lse_TH: Tensor,
    *,
    heads: int = 4,
    overlap: bool = False,
) -> None:
    """Merge J partial results per query into `out_THD` and natural-log `lse_TH`; H = G * R.

    live: results with a negative number do not exist and are not read; None: all exist. Queries without any
    give zeros and -inf. heads: how many a program takes. overlap: start while the kernel before, which must
    be the one that writes the results, still runs.
    """
    T, G, J, R, D = partial_TGJRD.shape
    slots = power_of_2(J)
    _merge[(T * G, ceil_div(R, heads))](
        partial_TGJRD, partial_lse_TGJR, partial_lse_TGJR if live_TGJ is None else live_TGJ, out_THD, lse_TH,
        *out_THD.stride()[:2], *lse_TH.stride(), G,
        J=J, SLOTS=slots, AT_ONCE=min(slots, 32), R=R, HEADS=heads, D=D,
        ALL_LIVE=live_TGJ is None, OVERLAP=overlap, num_warps=1, launch_pdl=overlap,
    )  # fmt: skip


@triton.jit
def _merge(
    partial, partial_lse, live, out, lse, out_t, out_h, lse_t, lse_h, groups,
    J: tl.constexpr, SLOTS: tl.constexpr, AT_ONCE: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, ALL_LIVE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one token and group, by one warp: what it sums hardly leaves a thread."""
    query = tl.program_id(0).to(tl.int64)
    t, g, first = query // groups, query % groups, query * J
    column, slot = tl.arange(0, D), tl.arange(0, AT_ONCE)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    for i in tl.static_range(HEADS):
        r = tl.program_id(1) * HEADS + i
        top, total, merged = float("-inf"), 0.0, tl.zeros([D], tl.float32)
        for start in tl.static_range(0, SLOTS, AT_ONCE):
            there = (start + slot < J) & (r < R)
            if not ALL_LIVE:
                there &= tl.load(live + first + start + slot, mask=there, other=-1) >= 0
            row = (first + start + slot) * R + r
            logs = tl.load(partial_lse + row, mask=there, other=float("-inf"))
            part = tl.load(partial + row[:, None] * D + column[None, :], mask=there[:, None], other=0.0)
            higher = tl.maximum(top, tl.max(logs, 0))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weight, shrink = tl.exp2(logs - base), tl.exp2(top - base)
            total = total * shrink + tl.sum(weight, 0)
            merged = merged * shrink + tl.sum(part.to(tl.float32) * weight[:, None], 0)
            top = higher
        any_key = total > 0
        total = tl.where(any_key, total, 1.0)
        log = tl.where(any_key, (top + tl.log2(total)) * LN2, float("-inf"))
        at = out + t * out_t + (g * R + r) * out_h + column
        tl.store(at, (merged / total).to(out.dtype.element_ty), mask=r < R)
        tl.store(lse + t * lse_t + (g * R + r) * lse_h, log, mask=r < R)
