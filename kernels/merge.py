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

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


def merge(
    partial_TGJRD: Tensor,
    partial_lse_TGJR: Tensor,
    live_TGJ: Tensor | None,
    out_THD: Tensor,
    lse_TH: Tensor,
    *,
    width: int = 64,
    warps: int = 4,
    overlap: bool = False,
) -> None:
    """Merge J partial results per query into `out_THD` and natural-log `lse_TH`; H = G * R.

    live: results with a negative number do not exist and are not read; None: all exist. Queries without any
    give zeros and -inf. width: columns that one program takes. overlap: start while the kernel before, which
    must be the one that writes the results, still runs.
    """
    T, G, J, R, D = partial_TGJRD.shape
    width = min(width, D)
    padded, slots = triton.next_power_of_2(R), triton.next_power_of_2(J)
    _merge[(T * G, D // width)](
        partial_TGJRD, partial_lse_TGJR, partial_lse_TGJR if live_TGJ is None else live_TGJ, out_THD, lse_TH,
        *out_THD.stride()[:2], *lse_TH.stride(), G,
        J=J, SLOTS=slots, AT_ONCE=8 if width > 16 else 32, HEADS=R, PADDED=padded, D=D, WIDTH=width,
        ALL_LIVE=live_TGJ is None, OVERLAP=overlap, num_warps=warps, launch_pdl=overlap,
    )  # fmt: skip


@triton.jit
def _merge(
    partial, partial_lse, live, out, lse, out_t, out_h, lse_t, lse_h, groups,
    J: tl.constexpr, SLOTS: tl.constexpr, AT_ONCE: tl.constexpr, HEADS: tl.constexpr, PADDED: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ALL_LIVE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One token and group, WIDTH columns."""
    query = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    lane = tl.arange(0, PADDED)
    first = query * J
    if OVERLAP:
        tl.extra.cuda.gdc_wait()

    j = tl.arange(0, SLOTS)
    there = j < J
    if not ALL_LIVE:
        there &= tl.load(live + first + j, mask=there, other=-1) >= 0
    at = (first + j)[:, None] * HEADS + lane[None, :]
    mask = there[:, None] & (lane < HEADS)[None, :]
    logs = tl.load(partial_lse + at, mask=mask, other=float("-inf"))
    top = tl.max(logs, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(logs - top[None, :]), 0)

    # Slot by slot, so that no sum crosses threads; a batch of them is asked for before the first is used.
    merged = tl.zeros([PADDED, WIDTH], tl.float32)
    for start in tl.static_range(0, J, AT_ONCE):
        parts, weights = (), ()
        for slot in tl.static_range(start, min(start + AT_ONCE, J)):
            row = (first + slot) * HEADS + lane
            mask = lane < HEADS
            if not ALL_LIVE:
                mask &= tl.load(live + first + slot) >= 0
            part = tl.load(partial + row[:, None] * D + column[None, :], mask=mask[:, None], other=0.0)
            parts += (part,)
            weights += (tl.load(partial_lse + row, mask=mask, other=float("-inf")),)
        for slot in tl.static_range(min(AT_ONCE, J - start)):
            merged += parts[slot].to(tl.float32) * tl.exp2(weights[slot] - top)[:, None]
    any_key = total > 0
    merged = merged / tl.where(any_key, total, 1.0)[:, None]

    t, head = query // groups, (query % groups) * HEADS + lane
    tl.store(
        out + t * out_t + head[:, None] * out_h + column[None, :],
        merged.to(out.dtype.element_ty),
        mask=(lane < HEADS)[:, None],
    )
    if tl.program_id(1) == 0:
        log = tl.where(any_key, (top + tl.log2(tl.where(any_key, total, 1.0))) * LN2, float("-inf"))
        tl.store(lse + t * lse_t + head * lse_h, log, mask=lane < HEADS)
