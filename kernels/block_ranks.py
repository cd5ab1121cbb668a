"""Ranks of every block of keys on the GPU: for each new token and index head, the best product in a block.

A rank is the score as an integer of the same order, so that comparing, and picking the largest, is exact and
cheap.

The heads of a token share their keys, so a tile's rows are (token, head) pairs: 32 tokens of 4 heads fill the
128 rows of a matrix instruction. Programs stand side by side over the rows and over spans of the keys; those
that run at the same time read the same span, which then stays in the L2 cache. Where a sequence has few rows
the operands change places, keys in front: then the keys, read once, decide the time.

Shape legend: T new tokens, S sequences, N keys, P pages, G index heads, D head width, C blocks of keys,
R = T x G rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pilotfish.kernels.batch import Batch

INTERPRET = tl.constexpr(triton.knobs.runtime.interpret)
NAN_SCORE = tl.constexpr(-1e30)
MAX_SCORE = tl.constexpr((2 - 2**-23) * 2.0**127)
NARROW = tl.constexpr(16)  # width of a step of float32, which has no matrix instruction of full precision


LONGEST_STEP = 128  # keys
LONGEST_SPAN = 64  # steps


@dataclass(frozen=True)
class ScoreTiles:
    """How one launch is cut up."""

    rows: int
    """(Token, head) pairs of one program."""
    keys: int
    """Keys of one step: a multiple of the block."""
    span: int
    """Blocks of one program: a multiple of a step's."""
    warps: int
    stages: int
    """Steps whose keys are under way at a time."""
    keys_first: bool
    """Whether the keys are the matrix instruction's first operand."""
    early: bool = False
    """Whether the launch behind this one may start before this one ends (Hopper and newer)."""


def score_tiles(
    rows: int, blocks: int, sequences: int, block: int, dtype: torch.dtype, cores: int
) -> ScoreTiles:
    """The cut for sequences of at most `rows` rows and `blocks` blocks on `cores` multiprocessors."""
    if dtype == torch.float32:
        tile, warps, stages, keys_first = 32, 4, 1, False
    elif rows > 64:
        tile, warps, stages, keys_first = 128, 4, 2, False
    else:
        tile, warps, stages, keys_first = max(16, triton.next_power_of_2(rows)), 4, 3, True
    # Two programs share a multiprocessor: one multiplies while the other looks for the best. Spans are such
    # that the programs come in whole waves, and long enough that starting one costs little.
    steps = triton.cdiv(blocks * block, LONGEST_STEP) * sequences * triton.cdiv(rows, tile)
    slots = 2 * cores
    span = triton.cdiv(steps, slots * triton.cdiv(steps, slots * LONGEST_SPAN))
    return ScoreTiles(tile, LONGEST_STEP, span * LONGEST_STEP // block, warps, stages, keys_first)


@triton.jit
def sequence_keys(key_lengths, key_starts, s, max_keys, keys):
    """First key and number of keys of sequence s, never past the buffer (`keys` entries; pages: no limit)."""
    length = tl.minimum(tl.load(key_lengths + s), max_keys)
    start = 0
    if key_starts is not None:
        start = tl.maximum(tl.load(key_starts + s), 0)
    length = tl.maximum(tl.minimum(length, keys - start), 0)
    return start, length


@triton.jit
def _at_least_nan(x):
    return tl.where(x > NAN_SCORE, x, NAN_SCORE)


@triton.jit
def _rank(score):
    """Integers in the order of the scores; NaN is -1e30, as is all below, and -0 is 0."""
    bits = (tl.minimum(_at_least_nan(score), MAX_SCORE) + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _rows(pointers_R, mask_R1, D: tl.constexpr):
    """The first D numbers of each row."""
    x_RD = tl.load(pointers_R[:, None] + tl.arange(0, D)[None, :], mask=mask_R1)
    return x_RD.to(tl.float32) if INTERPRET else x_RD


@triton.jit
def _score_step(
    q_R, q_RD, k, ranks_R, seen_R, known_R, pages_s, c, start, length, page_count,
    k_stride_p, k_stride_n, ranks_stride_c,
    D: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr, KEYS_FIRST: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Score the blocks from c on, KEYS keys in all; WHOLE: every row sees every one of these keys."""
    STEP: tl.constexpr = KEYS // BLOCK
    within_N = tl.arange(0, KEYS)
    n_N = c * BLOCK + within_N
    if pages_s is not None:
        page_N = tl.load(pages_s + n_N // BLOCK, mask=n_N < length, other=0)
        page_N = tl.minimum(tl.maximum(page_N, 0), page_count - 1).to(tl.int64)
        k_N = k + page_N * k_stride_p + (n_N % BLOCK) * k_stride_n
    else:
        k_N = k + (start + c * BLOCK).to(tl.int64) * k_stride_n + within_N * k_stride_n
    there_N1 = None if WHOLE else (n_N < length)[:, None]

    block_C = c + tl.arange(0, STEP)
    if KEYS_FIRST:
        x_NR = tl.dot(_rows(k_N, there_N1, D), tl.trans(q_RD), input_precision="ieee")
        if not WHOLE:
            x_NR = tl.where(n_N[:, None] < seen_R[None, :], _at_least_nan(x_NR), float("-inf"))
        best = tl.max(tl.reshape(x_NR, (STEP, BLOCK, ranks_R.shape[0])), 1)
        pointers = ranks_R[None, :] + (block_C * ranks_stride_c)[:, None]
        wanted = known_R[None, :] & (block_C * BLOCK < length)[:, None]
    else:
        if q_RD is not None:
            x_RN = tl.dot(q_RD, tl.trans(_rows(k_N, there_N1, D)), input_precision="ieee")
        else:
            x_RN = tl.zeros((ranks_R.shape[0], KEYS), tl.float32)
            for d in tl.range(0, D, NARROW, num_stages=1):
                qd, kd = _rows(q_R + d, known_R[:, None], NARROW), _rows(k_N + d, there_N1, NARROW)
                x_RN = tl.dot(qd, tl.trans(kd), x_RN, input_precision="ieee")
        if not WHOLE:
            x_RN = tl.where(n_N[None, :] < seen_R[:, None], _at_least_nan(x_RN), float("-inf"))
        best = tl.max(tl.reshape(x_RN, (ranks_R.shape[0], STEP, BLOCK)), 2)
        pointers = ranks_R[:, None] + (block_C * ranks_stride_c)[None, :]
        wanted = known_R[:, None] & (block_C * BLOCK < length)[None, :]
    tl.store(pointers, _rank(best), mask=wanted)


@triton.jit
def _block_ranks(
    q, k, ranks, query_starts, key_lengths, pages, key_starts, visible,
    first, tokens, span, max_keys, keys, page_count,
    q_stride_t, q_stride_g, k_stride_p, k_stride_n, pages_stride, ranks_stride_c, ranks_stride_r,
    G: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KEYS_FIRST: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one sequence, of tokens first..first + tokens, against `span` blocks."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    s = tl.program_id(2)
    begin = tl.maximum(tl.load(query_starts + s), first)
    end = tl.load(query_starts + s + 1)
    row = begin * G + tl.program_id(0) * ROWS
    stop = tl.minimum(end, first + tokens) * G
    if row >= stop:
        return
    start, length = sequence_keys(key_lengths, key_starts, s, max_keys, keys)

    r_R = row + tl.arange(0, ROWS)
    token_R, head_R = r_R // G, r_R % G
    known_R = r_R < stop
    if visible is None:
        seen_R = length - (end - 1 - token_R)
    else:
        seen_R = tl.load(visible + token_R, mask=known_R, other=0)
    seen_R = tl.where(known_R, tl.minimum(tl.maximum(seen_R, 0), length), 0)
    most = tl.max(seen_R, 0)
    least = tl.min(tl.where(known_R, seen_R, most), 0)

    STEP: tl.constexpr = KEYS // BLOCK
    block = tl.program_id(1) * span
    block_end = tl.minimum(block + span, tl.cdiv(most, BLOCK))
    if block >= block_end:
        return
    whole_end = block + tl.maximum(tl.minimum(least // BLOCK, block_end) - block, 0) // STEP * STEP

    q_R = q + token_R.to(tl.int64) * q_stride_t + head_R * q_stride_g
    q_RD = None if q.dtype.element_ty == tl.float32 else _rows(q_R, known_R[:, None], D)
    ranks_R = ranks + (r_R - first * G) * ranks_stride_r
    pages_s = None if pages is None else pages + s * pages_stride
    for c in tl.range(block, whole_end, STEP, num_stages=STAGES):
        _score_step(
            q_R, q_RD, k, ranks_R, seen_R, known_R, pages_s, c, start, length, page_count,
            k_stride_p, k_stride_n, ranks_stride_c, D, BLOCK, KEYS, KEYS_FIRST, True,
        )  # fmt: skip
    for c in tl.range(whole_end, block_end, STEP, num_stages=1):
        _score_step(
            q_R, q_RD, k, ranks_R, seen_R, known_R, pages_s, c, start, length, page_count,
            k_stride_p, k_stride_n, ranks_stride_c, D, BLOCK, KEYS, KEYS_FIRST, False,
        )  # fmt: skip


def launch_block_ranks(
    q_TGD: Tensor,
    k: Tensor,
    batch: Batch,
    ranks_CR: Tensor,
    first: int,
    tokens: int,
    block: int,
    tiles: ScoreTiles,
) -> None:
    """Write the ranks of `tokens` tokens from `first` on to ranks_CR, int32, any strides.

    A block's score is the largest product of the row with a visible key of the block. Of blocks that a row
    sees nothing of, the rank may stay unwritten.
    """
    G, D = q_TGD.shape[1:]
    paged = batch.pages is not None
    rows = min(batch.max_queries, tokens) * G
    grid = (
        triton.cdiv(rows, tiles.rows),
        triton.cdiv(triton.cdiv(batch.max_keys, block), tiles.span),
        batch.sequences,
    )
    if min(grid) == 0:
        return
    _block_ranks[grid](
        q_TGD, k, ranks_CR,
        batch.query_starts, batch.key_lengths, batch.pages, batch.key_starts, batch.visible,
        first, tokens, tiles.span, batch.max_keys, 2**31 - 1 if paged else k.shape[0], k.shape[0],
        q_TGD.stride(0), q_TGD.stride(1), k.stride(0) if paged else 0, k.stride(1 if paged else 0),
        batch.pages.stride(0) if batch.pages is not None else 0, ranks_CR.stride(0), ranks_CR.stride(1),
        G=G, D=D, BLOCK=block, ROWS=tiles.rows, KEYS=tiles.keys, KEYS_FIRST=tiles.keys_first,
        STAGES=tiles.stages + paged, EARLY=tiles.early and not INTERPRET.value, num_warps=tiles.warps,
    )  # fmt: skip
