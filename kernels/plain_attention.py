"""Sparse attention in plain torch, for the CPU and to check the kernels against. It gathers the chosen
blocks, a few rows at a time; nothing grows with tokens x keys.

Shape legend: T new tokens, N keys, P pages, H query heads, G KV groups, D head width, K kept blocks, R
heads of a group, L gathered keys of a token (K x block).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.exact import exact

GATHERED_VALUES = 1 << 24
"""Key values gathered at a time, which bounds the memory."""


@exact
def plain_sparse_attention(
    q_THD: Tensor, k: Tensor, v: Tensor, ids_TGK: Tensor, batch: Batch, *, block: int, scale: float
) -> tuple[Tensor, Tensor]:
    """See `attention.sparse_attention`. Computes in fp32, in fp64 if q is fp64; gradients flow to q, k and
    v."""
    T, H, D = q_THD.shape
    G, K = ids_TGK.shape[1:]
    sequence_T, seen_T = batch.row_sequences(T), batch.row_visible(T)
    rows = max(1, GATHERED_VALUES // max(G * K * block * D, 1))
    parts = [
        _rows(
            q_THD[i : i + rows],
            k,
            v,
            ids_TGK[i : i + rows].long(),
            sequence_T[i : i + rows],
            seen_T[i : i + rows],
            batch,
            block,
            scale,
        )
        for i in range(0, T, rows)
    ]
    if not parts:
        return q_THD.clone(), q_THD.new_empty(0, H, dtype=torch.float32)
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _rows(
    q_THD: Tensor,
    k: Tensor,
    v: Tensor,
    ids_TGK: Tensor,
    sequence_T: Tensor,
    seen_T: Tensor,
    batch: Batch,
    block: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    T, H, D = q_THD.shape
    G = ids_TGK.shape[1]
    work = torch.float64 if q_THD.dtype == torch.float64 else torch.float32
    k_TGLD, v_TGLD, seen_TGL = gather_blocks(k, v, ids_TGK, sequence_T, seen_T, batch, block, work)
    q_TGRD = q_THD.reshape(T, G, H // G, D).to(work)
    scores_TGRL = torch.matmul(q_TGRD, k_TGLD.transpose(-1, -2)) * scale
    scores_TGRL = scores_TGRL.masked_fill(~seen_TGL[:, :, None], float("-inf"))
    lse_TGR = scores_TGRL.logsumexp(-1)
    blind_TGR = lse_TGR == float("-inf")
    weights_TGRL = (scores_TGRL - lse_TGR.masked_fill(blind_TGR, 0)[..., None]).exp()
    out_TGRD = torch.matmul(weights_TGRL, v_TGLD)
    return out_TGRD.reshape(T, H, D).to(q_THD.dtype), lse_TGR.reshape(T, H).float()


def gather_blocks(
    k: Tensor,
    v: Tensor,
    ids_TGK: Tensor,
    sequence_T: Tensor,
    seen_T: Tensor,
    batch: Batch,
    block: int,
    work: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values of the chosen blocks, `work` [T, G, L, D], zero where unseen; which are seen, bool
    [T, G, L]."""
    G, K = ids_TGK.shape[1:]
    device = ids_TGK.device
    if 0 in (k.shape[0], 1 if batch.pages is None else batch.pages.shape[1]):  # there are no keys at all
        none = torch.zeros(len(ids_TGK), G, K * block, k.shape[-1], dtype=work, device=device)
        return none, none, torch.zeros(none.shape[:3], dtype=torch.bool, device=device)
    earlier_KK = torch.ones(K, K, dtype=torch.bool, device=device).tril(-1)
    repeats_TGK = ((ids_TGK[..., :, None] == ids_TGK[..., None, :]) & earlier_KK).any(-1)
    live_TGK = (ids_TGK >= 0) & (ids_TGK * block < seen_T[:, None, None]) & ~repeats_TGK
    if batch.pages is not None:
        live_TGK = live_TGK & (ids_TGK < batch.pages.shape[1])
    id_TGK = ids_TGK.where(live_TGK, 0)
    sequence_T11 = sequence_T.clamp(max=batch.sequences - 1)[:, None, None]
    offset = torch.arange(block, device=device)
    place: tuple[Tensor, ...]
    seen_TGKB = live_TGK[..., None] & (id_TGK[..., None] * block + offset < seen_T[:, None, None, None])
    group_G11 = torch.arange(G, device=device)[:, None, None]
    if batch.pages is not None:
        page_TGK = batch.pages.long()[sequence_T11, id_TGK]
        seen_TGKB = seen_TGKB & ((page_TGK >= 0) & (page_TGK < k.shape[0]))[..., None]
        place = (page_TGK.clamp(0, k.shape[0] - 1)[..., None], offset, group_G11)
    else:
        row_TGKB = id_TGK[..., None] * block + offset
        if batch.key_starts is not None:
            row_TGKB = row_TGKB + batch.key_starts.long()[sequence_T11][..., None]
        seen_TGKB = seen_TGKB & (row_TGKB >= 0) & (row_TGKB < k.shape[0])
        place = (row_TGKB.clamp(0, max(k.shape[0] - 1, 0)), group_G11)
    hidden_TGL1 = ~seen_TGKB.flatten(2)[..., None]
    gathered = [x[place].flatten(2, 3).to(work).masked_fill(hidden_TGL1, 0) for x in (k, v)]
    return gathered[0], gathered[1], seen_TGKB.flatten(2)
