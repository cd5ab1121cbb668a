"""The ranks of whole lanes on Hopper, in Gluon: one block is multiplied while another is ranked.

`block_ranks.py` leaves the matrix units idle while its programs look for the best of a block. Here a program
issues the next block's product first, and two sets of accumulators take turns. Only lanes that every row of
the tile sees whole are done here, so nothing is masked; `block_ranks.py` does the others.

Shape legend: T new tokens, S sequences, N keys, G index heads, D head width, C blocks of keys,
R = T x G rows, L lanes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.sizes import ceil_div

KINDS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
ROWS = 128
KEYS = gl.constexpr(128)
UNROLL = 8  # lanes are whole numbers of these: the last product of each such run is waited for idly
NAN_SCORE = gl.constexpr(-1e30)
MAX_SCORE = gl.constexpr((2 - 2**-23) * 2.0**127)
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # renamed after Triton 3.6


@gluon.jit
def _fetch(k_desc, k_smem, bars, i, span, first_key, STAGES: gl.constexpr):
    """Start copying block i of the lane to its slot, unless it is past the end."""
    slot, there = i % STAGES, i < span
    mbarrier.expect(bars.index(slot), k_desc.block_type.nbytes, pred=there)
    at = [first_key + i * KEYS, 0]
    tma.async_copy_global_to_shared(k_desc, at, bars.index(slot), k_smem.index(slot), pred=there)


@gluon.jit
def _multiply(q_smem, k_smem, bars, i, zero, STAGES: gl.constexpr):
    """Start the product of the rows with block i, once its keys are there."""
    mbarrier.wait(bars.index(i % STAGES), (i // STAGES) & 1)
    k_DN = k_smem.index(i % STAGES).permute((1, 0))
    return warpgroup_mma(q_smem, k_DN, zero, use_acc=False, is_async=True)


@gluon.jit
def _keep(x_RN, c, best_R, ranks_R, known_R):
    """Write the ranks of block c and take them into the best of the lane; see `block_ranks._rank`."""
    score_R = gl.max(x_RN, 1)
    score_R = gl.where(score_R > NAN_SCORE, score_R, NAN_SCORE)
    bits = (gl.minimum(score_R, MAX_SCORE) + 0.0).to(gl.int32, bitcast=True)
    rank_R = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    gl.store(ranks_R + c, rank_R, mask=known_R)
    return gl.maximum(best_R, rank_R)


@gluon.jit
def _whole_ranks(
    q_desc, k_desc, ranks, lane_ranks, query_starts, key_lengths, key_starts,
    first, tokens, span, max_keys, keys, ranks_stride, lanes_stride,
    G: gl.constexpr, D: gl.constexpr, ROWS: gl.constexpr, RUN: gl.constexpr, STAGES: gl.constexpr,
    WIDTH: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one sequence against one lane, if all of them see all of it."""
    s = gl.program_id(2)
    begin = gl.maximum(gl.load(query_starts + s), first)
    end = gl.load(query_starts + s + 1)
    row = begin * G + gl.program_id(0) * ROWS
    stop = gl.minimum(end, first + tokens) * G
    if row >= stop:
        return
    start = 0
    if key_starts is not None:
        start = gl.maximum(gl.load(key_starts + s), 0)
    length = gl.minimum(gl.minimum(gl.load(key_lengths + s), max_keys), keys - start)
    lane = gl.program_id(1)
    block = lane * span
    if (length - (end - 1 - row // G)) // KEYS < block + span:
        return

    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, KEYS, WIDTH]
    )
    rows: gl.constexpr = gl.SliceLayout(1, mma)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [ROWS, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, KEYS, D], k_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES + 1):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    mbarrier.expect(bars.index(STAGES), q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [row, 0], bars.index(STAGES), q_smem)
    first_key = start + block * KEYS
    for i in gl.static_range(STAGES):
        _fetch(k_desc, k_smem, bars, i, span, first_key, STAGES)

    r_R = row + gl.arange(0, ROWS, layout=rows)
    known_R = r_R < stop
    row_R = (r_R - first * G).to(gl.int64)
    ranks_R = ranks + row_R * ranks_stride + block
    best_R = gl.full([ROWS], -(2**31), gl.int32, layout=rows)
    zero = gl.zeros([ROWS, KEYS], gl.float32, layout=mma)
    mbarrier.wait(bars.index(STAGES), 0)
    # Straight code between drained ends: across a loop's edge the assembler would put the products in a row.
    for i in range(0, span, RUN):
        this = _multiply(q_smem, k_smem, bars, i, zero, STAGES)
        for j in gl.static_range(RUN - 1):
            following = _multiply(q_smem, k_smem, bars, i + j + 1, zero, STAGES)
            x_RN = warpgroup_mma_wait(num_outstanding=1, deps=(this,))
            barrier()  # all warps are done with the slot
            _fetch(k_desc, k_smem, bars, i + j + STAGES, span, first_key, STAGES)
            best_R = _keep(x_RN, i + j, best_R, ranks_R, known_R)
            this = following
        x_RN = warpgroup_mma_wait(num_outstanding=0, deps=(this,))
        barrier()
        _fetch(k_desc, k_smem, bars, i + RUN - 1 + STAGES, span, first_key, STAGES)
        best_R = _keep(x_RN, i + RUN - 1, best_R, ranks_R, known_R)
    gl.store(lane_ranks + row_R * lanes_stride + lane, best_R, mask=known_R)


def takes(q_TGD: Tensor, k: Tensor, batch: Batch, block: int, rows: int, span: int) -> bool:
    """Whether the kernel takes these; what it does not take, `block_ranks.py` does."""
    D = q_TGD.shape[-1]
    return (
        rows == ROWS
        and block == KEYS.value
        and span % UNROLL == 0
        and D in (64, 128)
        and k.dtype in KINDS
        and batch.pages is None
        and batch.visible is None
        and q_TGD.is_contiguous()
        and k.stride(0) * k.element_size() % 16 == 0
        and q_TGD.data_ptr() % 16 == k.data_ptr() % 16 == 0
    )


def launch_whole_ranks(
    q_TGD: Tensor, k_ND: Tensor, batch: Batch, blocks_RC: Tensor, best_RL: Tensor,
    first: int, tokens: int, span: int,
) -> None:  # fmt: skip
    """Fill the ranks of the lanes that tiles of rows see whole, as `launch_block_ranks` does."""
    T, G, D = q_TGD.shape
    kind = KINDS[k_ND.dtype]
    lanes = batch.max_keys // (KEYS.value * span)
    grid = (ceil_div(min(batch.max_queries, tokens) * G, ROWS), lanes, batch.sequences)
    if min(grid) == 0:
        return
    q_tile, k_tile = [ROWS, D], [KEYS.value, D]
    q_desc = TensorDescriptor.from_tensor(
        q_TGD.view(T * G, D), q_tile, gl.NVMMASharedLayout.get_default_for(q_tile, kind)
    )
    k_desc = TensorDescriptor.from_tensor(k_ND, k_tile, gl.NVMMASharedLayout.get_default_for(k_tile, kind))
    _whole_ranks[grid](
        q_desc, k_desc, blocks_RC, best_RL, batch.query_starts, batch.key_lengths, batch.key_starts,
        first, tokens, span, batch.max_keys, k_ND.shape[0], blocks_RC.stride(0), best_RL.stride(0),
        G=G, D=D, ROWS=ROWS, RUN=UNROLL, STAGES=6 if k_ND.dtype.itemsize == 1 else 4,
        WIDTH=32 // k_ND.dtype.itemsize, num_warps=8,
    )  # fmt: skip
