"""Full attention of one token of each of several sequences whose keys lie in pages: a dense layer's decoding.

The blocks of a sequence are dealt to parts of as many as the sparse kernel takes, the kernel attends to each
part as if its blocks had been chosen, and the parts are merged by their sums of exponentials. Shapes depend
on the widest batch alone, so a CUDA graph may capture it.

Shape legend: S sequences of one new token each, P pages, H query heads, G KV groups, D head width, C pages
of a sequence at most, X parts of a sequence.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pilotfish.kernels import ops
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.checks import MOST_KEPT
from pilotfish.kernels.sizes import ceil_div


def whole_attention(q_SHD: Tensor, k: Tensor, v: Tensor, batch: Batch, *, block: int, scale: float) -> Tensor:
    """Attention [S, H, D] of each sequence's new token to all its keys; zeros for a sequence without keys.

    k, v: pages [P, block, G, D]. batch: paged, one new token in each sequence. Types and sizes are those of
    `ops.sparse_attention`. Raises ValueError, naming the argument, for what is not accepted.
    """
    if batch.pages is None or batch.max_queries != 1 or batch.sequences != q_SHD.shape[0]:
        raise ValueError(
            f"batch has {batch.sequences} sequences of up to {batch.max_queries} new tokens"
            f"{'' if batch.pages is None else ' in pages'}: pages, and one new token for each of the"
            f" {q_SHD.shape[0]} rows of q, are accepted"
        )
    S, G = batch.sequences, k.shape[-2]
    parts = max(1, ceil_div(batch.pages.shape[1], MOST_KEPT))
    ids_XK = torch.arange(parts * MOST_KEPT, dtype=torch.int32, device=k.device).view(parts, MOST_KEPT)
    ids_TGK = ids_XK[None, :, None].expand(S, -1, G, -1).flatten(0, 1)
    dealt = replace(
        batch,
        query_starts=torch.arange(S + 1, dtype=torch.int32, device=k.device) * parts,
        max_queries=parts,
        visible=batch.key_lengths.repeat_interleave(parts),
    )
    out_THD, lse_TH = ops.sparse_attention(
        q_SHD.repeat_interleave(parts, dim=0), k, v, ids_TGK.contiguous(), dealt, block=block, scale=scale
    )
    # A part without keys weighs nothing; of a sequence without any, every part is zeros.
    lse_SXH = lse_TH.unflatten(0, (S, parts))
    most_S1H = lse_SXH.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights_SXH = (lse_SXH - most_S1H).exp()
    weights_SXH = weights_SXH / weights_SXH.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    out_SXHD = out_THD.float().unflatten(0, (S, parts))
    return (out_SXHD * weights_SXH[..., None]).sum(1).to(q_SHD.dtype)
