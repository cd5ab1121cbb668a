"""Which blocks of keys each token attends to, chosen on the GPU by the index branch.

Ranks of all blocks go to memory, a piece of the tokens at a time, and the best of them are kept: two
launches per piece, nothing that waits for the GPU, nothing that depends on the order of programs.

Shape legend: T new tokens, N keys, P pages, G index heads (one per KV group), D head width, C blocks of keys,
K kept blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.block_ranks import Ranks, ScoreTiles, launch_block_ranks, score_tiles
from pilotfish.kernels.card import card_of, fitting
from pilotfish.kernels.checks import MOST_ACROSS, check_card, check_output, check_selection
from pilotfish.kernels.sizes import ceil_div
from pilotfish.kernels.top_blocks import launch_top_blocks

RANK_BYTES = 1 << 29  # ranks held at a time


def select_blocks(
    qi_TGD: Tensor,
    ki: Tensor,
    batch: Batch,
    *,
    block: int,
    topk: int,
    local: int = 1,
    init: int = 0,
    out: Tensor | None = None,
    rank_bytes: int = RANK_BYTES,
    tiles: ScoreTiles | None = None,
) -> Tensor:
    """Kept block ids, int32 [T, G, K], ascending, padded with -1; K = topk.

    Takes index queries [T, G, D] and index keys [N, D], or pages of them [P, block, D], of one type:
    bfloat16, float16, float32 or float8_e4m3fn; rows contiguous, other strides free. A block's score is its
    best product with a visible key, no less than -1e30, which NaN counts as. The `local` last visible blocks
    and the `init` first are always kept; then the best, at ties the lower id. The tensor cores sum fp8
    products with about 14 bits, so near ties of fp8 may fall either way. A page number that does not exist
    stands for one that does.

    `out` receives the ids. `rank_bytes` bounds the ranks held at a time (one token's always fit). `tiles`
    replaces the table's choice. Raises ValueError for what the kernels do not take.
    """
    check_selection(qi_TGD, ki, batch, block, topk, local, init, kernels=True)
    check_card("ki", ki)
    T, G, _ = qi_TGD.shape
    out = torch.empty(T, G, topk, dtype=torch.int32, device=ki.device) if out is None else out
    check_output("out", out, (T, G, topk), torch.int32, ki)
    if not out.is_contiguous():
        raise ValueError(f"out has strides {out.stride()}: contiguous memory is accepted")
    if T == 0:
        return out
    C = max(1, ceil_div(batch.max_keys, block))
    piece = min(T, max(1, rank_bytes // (4 * G * C)))
    rows = max(1, min(batch.max_queries, piece)) * G
    tiles = tiles or score_tiles(rows, C, batch.sequences, block, ki.dtype, card_of(ki.device))
    if ceil_div(C, tiles.span) > MOST_ACROSS:
        raise ValueError(
            f"batch.max_keys is {batch.max_keys}: up to {MOST_ACROSS * tiles.span * block} are accepted"
        )
    ranks = Ranks.empty(piece * G, C, tiles.span, ki.device)
    keys = None if batch.pages is not None else ki.shape[0]
    with (
        torch.cuda.device_of(ki),
        fitting("ki", ki.device),
    ):  # kernels start on the current device, which may be another one
        for first in range(0, T, piece):
            tokens = min(piece, T - first)
            launch_block_ranks(qi_TGD, ki, batch, ranks, first, tokens, block, tiles)
            launch_top_blocks(ranks, out, batch, first, tokens, keys, block, local, init, tiles.early)
    return out
