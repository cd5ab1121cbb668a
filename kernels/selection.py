"""Which blocks of keys each token attends to, chosen on the GPU by the index branch.

Ranks of all blocks go to memory, a piece of the tokens at a time, and the best of them are kept: two
launches per piece, nothing that waits for the GPU, nothing that depends on the order of programs.

Shape legend: T new tokens, N keys, P pages, G index heads (one per KV group), D head width, C blocks of keys,
K kept blocks.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.block_ranks import Ranks, ScoreTiles, launch_block_ranks, score_tiles
from pilotfish.kernels.card import card_of, fitting
from pilotfish.kernels.sizes import ceil_div
from pilotfish.kernels.top_blocks import launch_top_blocks

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)
WIDTHS = (32, 64, 128)
BLOCKS = (32, 64, 128)
MAX_TOPK = 32
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
    T, G, K = _checked(qi_TGD, ki, batch, block, topk, local, init)
    if out is None:
        out = torch.empty(T, G, K, dtype=torch.int32, device=ki.device)
    elif (
        out.shape != (T, G, K)
        or out.dtype != torch.int32
        or out.device != ki.device
        or not out.is_contiguous()
    ):
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)} on {out.device} with strides {out.stride()}: contiguous"
            f" torch.int32 {[T, G, K]} on {ki.device} is accepted"
        )
    if T == 0:
        return out
    C = max(1, ceil_div(batch.max_keys, block))
    piece = min(T, max(1, rank_bytes // (4 * G * C)))
    rows = max(1, min(batch.max_queries, piece)) * G
    tiles = tiles or score_tiles(rows, C, batch.sequences, block, ki.dtype, card_of(ki.device))
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


def _checked(
    qi: Tensor, ki: Tensor, batch: Batch, block: int, topk: int, local: int, init: int
) -> tuple[int, int, int]:
    if qi.ndim != 3 or qi.shape[1] == 0:
        raise ValueError(f"qi has shape {list(qi.shape)}: [tokens, index heads, width] is accepted")
    key_shape = "[keys, width]" if batch.pages is None else "[pages, block, width]"
    if ki.ndim != (2 if batch.pages is None else 3) or ki.shape[-1] != qi.shape[-1]:
        raise ValueError(f"ki has shape {list(ki.shape)}: {key_shape} of width {qi.shape[-1]} is accepted")
    if qi.shape[-1] not in WIDTHS:
        raise ValueError(f"qi has width {qi.shape[-1]}: one of {WIDTHS} is accepted")
    if qi.dtype not in DTYPES or ki.dtype != qi.dtype:
        raise ValueError(f"qi is {qi.dtype} and ki {ki.dtype}: both of one type among {DTYPES} are accepted")
    if qi.device != ki.device:
        raise ValueError(f"qi is on {qi.device} and ki on {ki.device}: one device is accepted")
    for name, x in (("qi", qi), ("ki", ki)):
        if x.stride(-1) != 1 or max(x.stride()) >= 2**22:
            raise ValueError(
                f"{name} has strides {x.stride()}: the last of 1 and the others below {2**22} are accepted"
            )
    if block not in BLOCKS:
        raise ValueError(f"block is {block}: one of {BLOCKS} is accepted")
    if not 1 <= topk <= MAX_TOPK:
        raise ValueError(f"topk is {topk}: 1 to {MAX_TOPK} is accepted")
    if local < 0 or init < 0 or local + init > topk:
        raise ValueError(f"local is {local} and init {init}: 0 or more each, together at most topk = {topk}")
    batch.check(qi.shape[0], ki, block, "ki")
    if ki.shape[0] == 0 and batch.max_keys > 0:
        raise ValueError(f"ki is empty, but batch.max_keys is {batch.max_keys}")
    _check_device(ki.device, ki.dtype)
    return qi.shape[0], qi.shape[1], topk


def _check_device(device: torch.device, dtype: torch.dtype) -> None:
    if triton.knobs.runtime.interpret:
        return
    if device.type != "cuda":
        raise ValueError(
            f"ki is on {device}: a CUDA device is accepted (kernels.plain_selection works anywhere)"
        )
    have, need = card_of(device).capability, (8, 9) if dtype == torch.float8_e4m3fn else (8, 0)
    if have < need:
        raise ValueError(
            f"ki is {dtype} on a card of compute capability {have[0]}.{have[1]}: {need[0]}.{need[1]} or newer"
            " is accepted"
        )
