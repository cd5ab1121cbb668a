"""Selection in plain torch, to be read and checked: the twin of the kernels in `selection.py`.

An index head per KV group scores every key a token sees; a block's score is the best of its keys; each token
and group keeps the `topk` best blocks, its own always among them (arXiv 2606.13392, section 2).

Shape legend: T new tokens, S sequences, N keys, P pages, G index heads, D head width, C blocks of keys,
K kept blocks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.exact import exact

NAN_SCORE = -1e30  # the official rule: NaN ranks below every number; here nothing visible ranks lower
MAX_SCORE = torch.finfo(torch.float32).max  # and nothing but a forced block ranks higher than this
PIECE = 1 << 25  # products held at a time


@exact
def select_blocks(
    qi_TGD: Tensor, ki: Tensor, batch: Batch, *, block: int, topk: int, local: int = 1, init: int = 0
) -> Tensor:
    """Kept block ids, int32 [T, G, K], ascending, padded with -1; K = topk.

    Takes index keys [N, D] or pages of them [P, block, D], any float type, on any device, and reads the batch
    back to the host. float64 is scored in float64, all else in float32.
    """
    T, G, _ = qi_TGD.shape
    visible_T = batch.row_visible(T)
    ids_TGK = torch.full((T, G, topk), -1, dtype=torch.int32, device=ki.device)
    starts = batch.query_starts.tolist()
    for s, length in enumerate(batch.key_lengths.tolist()):
        ki_ND = sequence_keys(ki, batch, s, length)
        if len(ki_ND) == 0:
            continue
        step = max(1, PIECE // max(1, G * length))
        for first in range(starts[s], starts[s + 1], step):
            rows = slice(first, min(first + step, starts[s + 1]))
            scores_TGC = block_scores(qi_TGD[rows], ki_ND, visible_T[rows], block)
            ids_TGK[rows] = top_blocks(scores_TGC, visible_T[rows], block, topk, local, init)
    return ids_TGK


def sequence_keys(keys: Tensor, batch: Batch, s: int, length: int) -> Tensor:
    """The keys [N, ...] of sequence s, gathered where they lie in pages [P, block, ...]."""
    if batch.pages is not None:
        used = batch.pages[s, : -(-length // keys.shape[1])].long().clamp(0, max(len(keys) - 1, 0))
        if len(keys) == 0:
            return keys.flatten(0, 1)
        return keys[used].flatten(0, 1)[:length]
    start = 0 if batch.key_starts is None else int(batch.key_starts[s])
    return keys[start : start + length]


def block_scores(qi_TGD: Tensor, ki_ND: Tensor, visible_T: Tensor, block: int) -> Tensor:
    """The best product of each block [T, G, C]; -inf where no key of the block is visible, NaN as -1e30."""
    wide = torch.float64 if qi_TGD.dtype == torch.float64 else torch.float32
    N = ki_ND.shape[0]
    scores_TGN = qi_TGD.to(wide) @ ki_ND.to(wide).T
    scores_TGN = scores_TGN.nan_to_num(nan=NAN_SCORE)
    hidden_TN = torch.arange(N, device=ki_ND.device) >= visible_T[:, None]
    scores_TGN = scores_TGN.masked_fill(hidden_TN[:, None], float("-inf"))
    return F.pad(scores_TGN, (0, -N % block), value=float("-inf")).unflatten(-1, (-1, block)).amax(-1)


def top_blocks(
    scores_TGC: Tensor, visible_T: Tensor, block: int, topk: int, local: int = 1, init: int = 0
) -> Tensor:
    """Kept ids, int32 [T, G, K], ascending, padded with -1: higher score first, then lower block id.

    Scores count as -1e30 to the greatest number of float32, NaN as the least; what a token sees nothing of is
    never kept.
    """
    C = scores_TGC.shape[-1]
    block_C = torch.arange(C, device=scores_TGC.device)
    own_T1 = (visible_T[:, None] - 1) // block
    forced_TC = (block_C <= own_T1) & ((block_C > own_T1 - local) | (block_C < init))
    scores_TGC = scores_TGC.nan_to_num(nan=NAN_SCORE).clamp(NAN_SCORE, MAX_SCORE)
    scores_TGC = scores_TGC.masked_fill(forced_TC[:, None], float("inf"))
    scores_TGC = scores_TGC.masked_fill((block_C > own_T1)[:, None], float("-inf"))
    scores_TGC = F.pad(scores_TGC, (0, max(0, topk - C)), value=float("-inf"))
    ranked, order = scores_TGC.sort(dim=-1, descending=True, stable=True)
    none = 2**31 - 1
    ids_TGK = order[..., :topk].masked_fill(ranked[..., :topk] == float("-inf"), none).sort(dim=-1).values
    return ids_TGK.masked_fill(ids_TGK == none, -1).int()
