"""Gradients of sparse attention and the index branch's loss in plain torch, to be read and checked: the
twins of `backward.py`, `training.py` and `warmup.py`.

The loss, per token and group: KL(p || s), p the mean over the group's heads of the main branch's attention,
detached, and s the softmax of the scaled index scores, both over the same keys. Its gradient by a score is
s - p. Rows are taken a few at a time, so nothing of size T x N is ever held. All compute in fp32, in fp64
if q is fp64.

Shape legend: T new tokens, N keys, H query heads, G KV groups (= index heads), R heads of a group, D head
width, I index width, K kept blocks, L keys of a row: gathered (K x block) or all of its sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.exact import exact
from pilotfish.kernels.plain_attention import gather_blocks
from pilotfish.kernels.plain_selection import sequence_keys

VALUES = 1 << 24
"""Gathered values held at a time."""

Result = tuple[Tensor, Tensor, Tensor]


@exact
def plain_sparse_attention_backward(
    dout_THD: Tensor,
    dlse_TH: Tensor,
    q_THD: Tensor,
    k_NGD: Tensor,
    v_NGD: Tensor,
    ids_TGK: Tensor,
    out_THD: Tensor,
    lse_TH: Tensor,
    batch: Batch,
    *,
    block: int,
    scale: float,
) -> Result:
    """Gradients (dq, dk, dv); see `backward.sparse_attention_backward`."""
    T, H, D = q_THD.shape
    N, G, K = k_NGD.shape[0], ids_TGK.shape[1], ids_TGK.shape[2]
    wide = _wide(q_THD)
    dq_THD = torch.empty(T, H, D, dtype=q_THD.dtype, device=q_THD.device)
    dk_NGD, dv_NGD = (torch.zeros(N, G, D, dtype=wide, device=q_THD.device) for _ in "kv")
    for part in _parts(T, G * K * block * D):
        k_TGLD, v_TGLD, seen_TGL = _gathered(k_NGD, v_NGD, ids_TGK, batch, part, block, wide)
        q_TGRD, out_TGRD, dout_TGRD = (_grouped(x[part], G).to(wide) for x in (q_THD, out_THD, dout_THD))
        p_TGRL = _probabilities(q_TGRD, k_TGLD, lse_TH[part], seen_TGL, scale)
        delta_TGR1 = (out_TGRD * dout_TGRD).sum(-1, keepdim=True) - _grouped(dlse_TH[part, :, None], G)
        ds_TGRL = p_TGRL * (dout_TGRD @ v_TGLD.transpose(-1, -2) - delta_TGR1) * scale
        dq_THD[part] = (ds_TGRL @ k_TGLD).flatten(1, 2).to(q_THD.dtype)
        rows_TGL = _key_rows(ids_TGK, batch, part, block, N)
        # What is not seen weighs 0, which does not help where a row is NaN: it must not reach other keys.
        hidden_TGL1 = ~seen_TGL[..., None]
        for sums_NGD, of_rows in ((dk_NGD, (ds_TGRL, q_TGRD)), (dv_NGD, (p_TGRL, dout_TGRD))):
            values_TGLD = of_rows[0].transpose(-1, -2) @ of_rows[1]
            _scatter(sums_NGD, rows_TGL, values_TGLD.masked_fill(hidden_TGL1, 0))
    return dq_THD, dk_NGD.to(k_NGD.dtype), dv_NGD.to(v_NGD.dtype)


@exact
def plain_index_kl(
    q_THD: Tensor,
    k_NGD: Tensor,
    lse_TH: Tensor,
    qi_TGI: Tensor,
    ki_NI: Tensor,
    ids_TGK: Tensor,
    batch: Batch,
    *,
    block: int,
    scale: float,
    index_scale: float,
    with_gradient: bool = True,
) -> Result:
    """The sum of the loss over the chosen keys, dqi and dki; see `training.index_kl`."""
    T, _, D = q_THD.shape
    G, K = ids_TGK.shape[1:]
    N, width, wide = len(ki_NI), ki_NI.shape[1], _wide(q_THD)
    total, dqi_TGI, dki_NI = _empty_result(qi_TGI, ki_NI, with_gradient)
    for part in _parts(T, G * K * block * D):
        k_TGLD, _, seen_TGL = _gathered(k_NGD, k_NGD, ids_TGK, batch, part, block, wide)
        ki_NGI = ki_NI[:, None].expand(-1, G, -1)
        ki_TGLI, _, _ = _gathered(ki_NGI, ki_NGI, ids_TGK, batch, part, block, wide)
        p_TGRL = _probabilities(_grouped(q_THD[part], G).to(wide), k_TGLD, lse_TH[part], seen_TGL, scale)
        qi = qi_TGI[part].to(wide)
        loss, ds_TGL = _kl(p_TGRL.mean(2), qi, ki_TGLI, seen_TGL, index_scale)
        total += loss
        if with_gradient:
            dqi_TGI[part] = torch.einsum("tgl,tgli->tgi", ds_TGL, ki_TGLI).to(dqi_TGI.dtype)
            if N == 0:
                continue
            rows_TGL = _key_rows(ids_TGK, batch, part, block, N)
            dki_TGLI = (ds_TGL[..., None] * qi[:, :, None]).masked_fill(~seen_TGL[..., None], 0)
            dki_NI.index_add_(0, rows_TGL.flatten(), dki_TGLI.reshape(-1, width))
    return total, dqi_TGI, dki_NI


@exact
def plain_index_kl_dense(
    q_THD: Tensor,
    k_NGD: Tensor,
    lse_TH: Tensor | None,
    qi_TGI: Tensor,
    ki_NI: Tensor,
    batch: Batch,
    *,
    scale: float,
    index_scale: float,
    with_gradient: bool = True,
) -> Result:
    """The same over all visible keys; see `warmup.index_kl_dense`. Reads the batch back to the host."""
    H, G, wide = q_THD.shape[1], qi_TGI.shape[1], _wide(q_THD)
    seen_T = batch.row_visible(len(q_THD))
    starts = batch.query_starts.tolist()
    total, dqi_TGI, dki_NI = _empty_result(qi_TGI, ki_NI, with_gradient)
    for s, length in enumerate(batch.key_lengths.tolist()):
        if length <= 0:
            continue
        k_GLD = sequence_keys(k_NGD, batch, s, length).transpose(0, 1).to(wide)
        ki_LI = sequence_keys(ki_NI, batch, s, length).to(wide)
        dki_LI = sequence_keys(dki_NI, batch, s, length)
        for part in _parts(starts[s + 1] - starts[s], H * length, starts[s]):
            seen_TGL = (torch.arange(length, device=seen_T.device) < seen_T[part, None])[:, None].expand(
                -1, G, -1
            )
            q_TGRD, qi = _grouped(q_THD[part], G).to(wide), qi_TGI[part].to(wide)
            lse = None if lse_TH is None else lse_TH[part]
            p_TGRL = _probabilities(q_TGRD, k_GLD, lse, seen_TGL, scale)
            loss, ds_TGL = _kl(p_TGRL.mean(2), qi, ki_LI, seen_TGL, index_scale)
            total += loss
            if with_gradient:
                dqi_TGI[part] = (ds_TGL @ ki_LI).to(dqi_TGI.dtype)
                dki_LI += torch.einsum("tgl,tgi->li", ds_TGL, qi)
    return total, dqi_TGI, dki_NI


def _kl(
    p_TGL: Tensor, qi_TGI: Tensor, ki: Tensor, seen_TGL: Tensor, index_scale: float
) -> tuple[Tensor, Tensor]:
    """The sum of KL(p || s), and its gradient by the index products."""
    scores_TGL = (qi_TGI[:, :, None] @ ki.transpose(-1, -2))[:, :, 0] * index_scale
    # Finite where hidden: a row that sees nothing must not turn into NaN.
    log_s_TGL = scores_TGL.masked_fill(~seen_TGL, -1e30).log_softmax(-1)
    terms_TGL = torch.xlogy(p_TGL, p_TGL) - p_TGL * log_s_TGL
    ds_TGL = (log_s_TGL.exp() - p_TGL) * index_scale
    return terms_TGL.masked_fill(~seen_TGL, 0).sum(), ds_TGL.masked_fill(~seen_TGL, 0)


def _probabilities(
    q_TGRD: Tensor, k: Tensor, lse_TH: Tensor | None, seen_TGL: Tensor, scale: float
) -> Tensor:
    """Attention of each head to the keys, [T, G, R, L]; k is [..., L, D], with whatever leads it."""
    T, G, R, _ = q_TGRD.shape
    logits_TGRL = (q_TGRD @ k.transpose(-1, -2)) * scale
    logits_TGRL = logits_TGRL.masked_fill(~seen_TGL[:, :, None], float("-inf"))
    if lse_TH is None:
        lse_TGR1 = logits_TGRL.logsumexp(-1, keepdim=True)
    else:
        lse_TGR1 = lse_TH.reshape(T, G, R, 1).to(q_TGRD.dtype)
    return (logits_TGRL - lse_TGR1.masked_fill(lse_TGR1 == float("-inf"), 0)).exp()


def _gathered(
    k_NGD: Tensor, v_NGD: Tensor, ids_TGK: Tensor, batch: Batch, part: slice, block: int, wide: torch.dtype
) -> Result:
    T = len(ids_TGK)
    of_rows = (ids_TGK[part].long(), batch.row_sequences(T)[part], batch.row_visible(T)[part])
    return gather_blocks(k_NGD, v_NGD, *of_rows, batch, block, wide)


def _key_rows(ids_TGK: Tensor, batch: Batch, part: slice, block: int, keys: int) -> Tensor:
    """The rows of the gathered keys among the packed keys, int64 [T, G, L]; any row where a key is not
    there."""
    rows_TGL = (ids_TGK[part].long()[..., None] * block + torch.arange(block, device=ids_TGK.device)).flatten(
        2
    )
    if batch.key_starts is not None:
        sequence_T = batch.row_sequences(len(ids_TGK))[part].clamp(max=batch.sequences - 1)
        rows_TGL = rows_TGL + batch.key_starts.long()[sequence_T][:, None, None]
    return rows_TGL.clamp(0, max(keys - 1, 0))


def _scatter(sums_NGD: Tensor, rows_TGL: Tensor, values_TGLD: Tensor) -> None:
    """Add each gathered key's value to its key."""
    G, D = sums_NGD.shape[1:]
    flat_TGL = rows_TGL * G + torch.arange(G, device=rows_TGL.device)[:, None]
    sums_NGD.view(-1, D).index_add_(0, flat_TGL.flatten(), values_TGLD.reshape(-1, D))


def _grouped(x_THD: Tensor, groups: int) -> Tensor:
    return x_THD.unflatten(1, (groups, -1))


def _empty_result(qi_TGI: Tensor, ki_NI: Tensor, with_gradient: bool) -> Result:
    wide, device = _wide(qi_TGI), qi_TGI.device
    T, N = (len(qi_TGI), len(ki_NI)) if with_gradient else (0, 0)
    dqi_TGI = torch.zeros(T, *qi_TGI.shape[1:], dtype=qi_TGI.dtype, device=device)
    dki_NI = torch.zeros(N, ki_NI.shape[1], dtype=wide, device=device)
    return torch.zeros((), dtype=wide, device=device), dqi_TGI, dki_NI


def _parts(rows: int, values_per_row: int, first: int = 0) -> list[slice]:
    step = max(1, VALUES // max(values_per_row, 1))
    return [slice(first + i, first + min(i + step, rows)) for i in range(0, rows, step)]


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
