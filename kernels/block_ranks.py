"""Ranks of every block of keys on the GPU: for each new token and index head, the best product in a block.

A rank is the score as an integer of the same order: comparing ranks is exact, and cheap within a warp.
Besides every rank the best of each lane is written, of the blocks that one program sees; `top_blocks.py`
starts there.

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

from pilotfish.kernels import whole_ranks
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.card import Card
from pilotfish.kernels.sizes import ceil_div, power_of_2

INTERPRET = tl.constexpr(triton.knobs.runtime.interpret)
NAN_SCORE = tl.constexpr(-1e30)
MAX_SCORE = tl.constexpr((2 - 2**-23) * 2.0**127)
NO_RANK = tl.constexpr(-(2**31))
CHANGING = ["first", "tokens", "span", "max_keys", "keys", "page_count", "pages_stride", "lanes_stride"]
"""Numbers that change while a prompt is read. Kernels are not compiled anew for handsome ones among them."""
NARROW = tl.constexpr(16)  # width of a step of float32, which has no matrix instruction of full precision


STEP_KEYS = 128
OVERLAP_STEPS = 192
LONGEST_SPAN = 32  # blocks: longer ones cost more in picking than they save in scoring


@dataclass(frozen=True)
class ScoreTiles:
    """How one launch is cut up."""

    rows: int
    """(Token, head) pairs of one program."""
    keys: int
    """Keys of one step: a multiple of the block."""
    span: int
    """Blocks of one program and one lane: a multiple of a step's."""
    warps: int
    stages: int
    """Steps whose keys are under way at a time."""
    keys_first: bool
    """Whether the keys are the matrix instruction's first operand."""
    held: int = 1
    """Ranks of a row that are written at a time where a step is one block: 8 fill a sector of memory."""
    overlap: bool = False
    """Whether `whole_ranks.py` does the lanes that it takes (Hopper)."""
    early: bool = False
    """Whether the launch behind this one may start before this one ends (Hopper and newer)."""


def score_tiles(
    rows: int, blocks: int, sequences: int, block: int, dtype: torch.dtype, card: Card
) -> ScoreTiles:
    """The cut for sequences of at most `rows` rows and `blocks` blocks: what an H200 was fastest with."""
    short = dtype.itemsize == 1  # one more tile of these under way costs little
    # Ranks written four at a time: 5 % faster in 16 bits; fp8 is faster without.
    held = 4 if dtype.itemsize == 2 and block == STEP_KEYS and rows > 64 else 1
    if dtype == torch.float32:
        tile, warps, stages, keys_first = 32, 4, 1, False
    elif rows > 64:
        tile, warps, stages, keys_first = 128, 4 if block == STEP_KEYS else 8, 2 + short, False
    else:
        tile, warps, stages, keys_first = max(16, power_of_2(rows)), 4, 3 + short, True
    # Two programs share a multiprocessor: one multiplies while the other looks for the best. Few rows take
    # one wave of equal programs, or more where it gets too long; many rows, which see unequal numbers of
    # keys, at least four.
    step = STEP_KEYS // block
    steps = ceil_div(blocks, step) * sequences * ceil_div(rows, tile)
    slots = 2 * card.cores
    waves = ceil_div(steps * step, slots * LONGEST_SPAN)
    if not keys_first and steps > 8 * slots:
        waves = max(4, waves)
    span = ceil_div(steps, slots * waves) * step
    # Few rows: what picks from the ranks is in place before they are complete. Many: the matrix units go on.
    early = keys_first and card.capability >= (9, 0)
    # Two sets of accumulators pay where a slot gets many steps: at 124 they lost, at 248 they won.
    much = steps > OVERLAP_STEPS * slots
    overlap = much and tile == whole_ranks.ROWS and block == STEP_KEYS and card.capability[0] == 9
    return ScoreTiles(tile, STEP_KEYS, span, warps, stages, keys_first, held, overlap, early)


@dataclass(frozen=True)
class Ranks:
    """The ranks of R rows, int32: of every block, and the best of each lane, which is a run of blocks."""

    blocks_RC: Tensor
    best_RL: Tensor
    span: int
    """Blocks of a lane."""

    @staticmethod
    def empty(rows: int, blocks: int, span: int, device: torch.device) -> Ranks:
        """Memory for them; rounded up, so that a growing prefix asks for few different sizes."""
        width = ceil_div(blocks, 256) * 256
        lanes = ceil_div(blocks, span)
        blocks_RC, best_RL = (torch.empty(rows, n, dtype=torch.int32, device=device) for n in (width, lanes))
        return Ranks(blocks_RC, best_RL, span)


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
    """Integers in the order of the scores; -0 is 0."""
    bits = (tl.minimum(score, MAX_SCORE) + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _rows(pointers_R, mask_R1, D: tl.constexpr):
    """The first D numbers of each row."""
    x_RD = tl.load(pointers_R[:, None] + tl.arange(0, D)[None, :], mask=mask_R1)
    return x_RD.to(tl.float32) if INTERPRET else x_RD


@triton.jit
def _page(page, page_count):
    """A page that exists, whatever the number."""
    return tl.minimum(tl.maximum(page, 0), page_count - 1)


@triton.jit
def _score_step(
    q_R, q_RD, k, seen_R, known_R, pages_s, c, start, length, page_count, k_stride_p, k_stride_n,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
    KEYS_FIRST: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Ranks [R, C] of the blocks of a step, c and on; WHOLE: every row sees every one of their keys."""
    within_N = tl.arange(0, KEYS)
    n_N = c * BLOCK + within_N
    if pages_s is None:
        k_N = k + (start + c * BLOCK).to(tl.int64) * k_stride_n + within_N * k_stride_n
    else:
        # One page a step is a number, several are a vector: the number makes cheaper addresses.
        if KEYS == BLOCK:
            page = tl.load(pages_s + c)
        else:
            page = tl.load(pages_s + n_N // BLOCK, mask=n_N < length, other=0)
        page = _page(page, page_count).to(tl.int64)
        k_N = k + page * k_stride_p + within_N % BLOCK * k_stride_n
    there_N1 = None if WHOLE else (n_N < length)[:, None]
    k_ND = None if q_RD is None else _rows(k_N, there_N1, D)

    if KEYS_FIRST:
        x_NR = tl.dot(k_ND, tl.trans(q_RD), input_precision="ieee")
        if not WHOLE:
            x_NR = tl.where(n_N[:, None] < seen_R[None, :], _at_least_nan(x_NR), float("-inf"))
        best_RC = tl.trans(tl.max(tl.reshape(x_NR, (KEYS // BLOCK, BLOCK, ROWS)), 1))
    else:
        if k_ND is not None:
            x_RN = tl.dot(q_RD, tl.trans(k_ND), input_precision="ieee")
        else:
            x_RN = tl.zeros((ROWS, KEYS), tl.float32)
            for d in tl.range(0, D, NARROW, num_stages=1):
                qd, kd = _rows(q_R + d, known_R[:, None], NARROW), _rows(k_N + d, there_N1, NARROW)
                x_RN = tl.dot(qd, tl.trans(kd), x_RN, input_precision="ieee")
        if not WHOLE:
            x_RN = tl.where(n_N[None, :] < seen_R[:, None], _at_least_nan(x_RN), float("-inf"))
        best_RC = tl.max(tl.reshape(x_RN, (ROWS, KEYS // BLOCK, BLOCK)), 2)
    return _rank(_at_least_nan(best_RC) if WHOLE else best_RC)


@triton.jit
def _keep_step(
    rank_RC, held_R8, best_R, ranks_R, known_R, c, block, block_end,
    STEP: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """Take the ranks of a step into the best of the span, and write them, HELD blocks of a row at a time."""
    block_C = c + tl.arange(0, STEP)
    step_R = tl.max(rank_RC, 1)
    best_R = tl.maximum(best_R, step_R)
    if HELD == STEP:
        pointers = ranks_R[:, None] + block_C[None, :]
        tl.store(pointers, rank_RC, mask=known_R[:, None] & (block_C < block_end)[None, :])
    else:
        column_8 = tl.arange(0, HELD)
        last = (c - block) % HELD
        held_R8 = tl.where(column_8[None, :] == last, step_R[:, None], held_R8)
        full = (last == HELD - 1) | (c + 1 >= block_end)
        pointers = ranks_R[:, None] + (c - last + column_8)[None, :]
        tl.store(pointers, held_R8, mask=known_R[:, None] & full & (column_8 <= last)[None, :])
    return held_R8, best_R


@triton.jit(do_not_specialize=CHANGING)
def _block_ranks(
    q, k, ranks, lane_ranks, query_starts, key_lengths, pages, key_starts, visible,
    first, tokens, span, max_keys, keys, page_count,
    q_stride_t, q_stride_g, k_stride_p, k_stride_n, pages_stride, ranks_stride, lanes_stride,
    G: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KEYS_FIRST: tl.constexpr, STAGES: tl.constexpr,
    HELD: tl.constexpr, EARLY: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one sequence, of tokens first..first + tokens, against `span` blocks.

    REST: lanes that all rows see whole are done already.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    s = tl.program_id(2)
    begin = tl.maximum(tl.load(query_starts + s), first)
    end = tl.load(query_starts + s + 1)
    # Asked for before the first answer is looked at: what comes later waits once.
    start, length = sequence_keys(key_lengths, key_starts, s, max_keys, keys)
    row = begin * G + tl.program_id(0) * ROWS
    stop = tl.minimum(end, first + tokens) * G
    if row >= stop:
        return

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
    lane = tl.program_id(1)
    block = lane * span
    block_end = tl.minimum(block + span, tl.cdiv(most, BLOCK))
    if block >= block_end:
        return
    if REST and least // BLOCK >= block + span:
        return
    whole_end = block + tl.maximum(tl.minimum(least // BLOCK, block_end) - block, 0) // STEP * STEP

    q_R = q + token_R.to(tl.int64) * q_stride_t + head_R * q_stride_g
    q_RD = None if q.dtype.element_ty == tl.float32 else _rows(q_R, known_R[:, None], D)
    pages_s = None if pages is None else pages + s * pages_stride
    row_R = (r_R - first * G).to(tl.int64)
    ranks_R = ranks + row_R * ranks_stride
    held_R8 = tl.zeros((ROWS, HELD), tl.int32)
    best_R = tl.full((ROWS,), NO_RANK, tl.int32)
    for c in tl.range(block, whole_end, STEP, num_stages=STAGES):
        rank_RC = _score_step(
            q_R, q_RD, k, seen_R, known_R, pages_s, c, start, length, page_count, k_stride_p, k_stride_n,
            ROWS, D, BLOCK, KEYS, KEYS_FIRST, True,
        )  # fmt: skip
        held_R8, best_R = _keep_step(
            rank_RC, held_R8, best_R, ranks_R, known_R, c, block, block_end, STEP, HELD
        )
    for c in tl.range(whole_end, block_end, STEP, num_stages=1):
        rank_RC = _score_step(
            q_R, q_RD, k, seen_R, known_R, pages_s, c, start, length, page_count, k_stride_p, k_stride_n,
            ROWS, D, BLOCK, KEYS, KEYS_FIRST, False,
        )  # fmt: skip
        held_R8, best_R = _keep_step(
            rank_RC, held_R8, best_R, ranks_R, known_R, c, block, block_end, STEP, HELD
        )
    tl.store(lane_ranks + row_R * lanes_stride + lane, best_R, mask=known_R)


def launch_block_ranks(
    q_TGD: Tensor,
    k: Tensor,
    batch: Batch,
    ranks: Ranks,
    first: int,
    tokens: int,
    block: int,
    tiles: ScoreTiles,
) -> None:
    """Fill `ranks` for `tokens` tokens from `first` on, with lanes of `tiles.span` blocks.

    A block's score is the largest product of the row with a visible key of the block. Of blocks that a row
    sees nothing of, and of lanes of such blocks, the ranks may stay unwritten.
    """
    G, D = q_TGD.shape[1:]
    paged = batch.pages is not None
    grid = (
        ceil_div(min(batch.max_queries, tokens) * G, tiles.rows),
        ceil_div(ceil_div(batch.max_keys, block), tiles.span),
        batch.sequences,
    )
    if min(grid) == 0:
        return
    rest = tiles.overlap and not INTERPRET.value
    rest = rest and whole_ranks.takes(q_TGD, k, batch, block, tiles.rows, tiles.span)
    if rest:
        whole_ranks.launch_whole_ranks(
            q_TGD, k, batch, ranks.blocks_RC, ranks.best_RL, first, tokens, tiles.span
        )
    _block_ranks[grid](
        q_TGD, k, ranks.blocks_RC, ranks.best_RL,
        batch.query_starts, batch.key_lengths, batch.pages, batch.key_starts, batch.visible,
        first, tokens, tiles.span, batch.max_keys, 2**31 - 1 if paged else k.shape[0], k.shape[0],
        q_TGD.stride(0), q_TGD.stride(1), k.stride(0) if paged else 0, k.stride(1 if paged else 0),
        batch.pages.stride(0) if batch.pages is not None else 0,
        ranks.blocks_RC.stride(0), ranks.best_RL.stride(0),
        G=G, D=D, BLOCK=block, ROWS=tiles.rows, KEYS=tiles.keys, KEYS_FIRST=tiles.keys_first,
        STAGES=tiles.stages + paged, HELD=tiles.held if tiles.keys == block else tiles.keys // block,
        EARLY=tiles.early and not INTERPRET.value, REST=rest, num_warps=tiles.warps,
    )  # fmt: skip
