"""A sparse layer's attention as the engine runs it: in the model's layout, by the kernels where they apply.

On a GPU with the sizes they take, the kernels of `ops.py`; for a prompt on a CPU `cpu.py`; elsewhere
`reference.py`.

Shape legend: B sequences of one length, H query heads, G KV groups (= index heads), T new tokens, N keys, D
head width, I index width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pilotfish.kernels import cpu, full, ops, reference
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.card import card_of
from pilotfish.kernels.checks import (
    BLOCKS,
    HEAD_WIDTHS,
    INDEX_WIDTHS,
    MOST_HEADS,
    MOST_KEPT,
    check_choice,
    check_scales,
    check_types,
    check_whole,
)

TILED_FROM = 3
"""On a CPU, up to so many times the kept keys, one pass over all keys under a mask is faster."""


def full_attention(q_BHTD: Tensor, k_BGND: Tensor, v_BGND: Tensor, scale: float) -> Tensor:
    """Attention [B, H, T, D] of each sequence's T newest tokens to every key that they see."""
    if full.takes(q_BHTD, k_BGND):
        return full.attend_to_long_prefix(q_BHTD, k_BGND, v_BGND, scale)
    start = k_BGND.shape[2] - q_BHTD.shape[2]
    attend = cpu.dense_attention if cpu.is_fast(q_BHTD, k_BGND, v_BGND) else reference.dense_attention
    return attend(q_BHTD, k_BGND, v_BGND, start, scale)


def selected_attention(
    q_BHTD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    qi_BGTI: Tensor,
    ki_BNI: Tensor,
    batch: Batch,
    *,
    block: int,
    topk: int,
    local: int = 1,
    init: int = 0,
    scale: float,
) -> Tensor:
    """Attention [B, H, T, D] of each sequence's T newest tokens to the blocks its index branch chooses.

    batch: `Batch.single(T, N)`, made once for all layers. Gradients reach q, k and v. Under autocast
    attention is computed in autocast's type. Raises ValueError, naming the argument, for what is not
    accepted.
    """
    check_types("q", batch, q=q_BHTD, k=k_BGND, v=v_BGND, qi=qi_BGTI, ki=ki_BNI)
    check_whole(block=block)
    check_choice(topk, local, init)
    check_scales(scale=scale)
    if not has_kernels(q_BHTD, k_BGND, qi_BGTI, block, topk):
        keys = k_BGND.shape[2]
        start = keys - q_BHTD.shape[2]
        fast = cpu.is_fast(q_BHTD, k_BGND, v_BGND, qi_BGTI, ki_BNI, local=local)
        with torch.no_grad():
            choose = cpu.choose_blocks if fast else reference.choose_blocks
            ids = choose(qi_BGTI, ki_BNI, start, block, topk, local, init)
        attend = (
            cpu.sparse_attention if fast and keys > TILED_FROM * topk * block else reference.sparse_attention
        )
        return attend(q_BHTD, k_BGND, v_BGND, ids, start, block, scale)
    tensors: tuple[Tensor, ...] = (q_BHTD, k_BGND, v_BGND, qi_BGTI, ki_BNI)
    if torch.is_autocast_enabled(q_BHTD.device.type):
        # Autocast knows torch's own functions alone, and leaves these tensors in different types.
        tensors = tuple(x.to(torch.get_autocast_dtype(q_BHTD.device.type)) for x in tensors)
    outs = []
    for q_HTD, k_GND, v_GND, qi_GTI, ki_NI in zip(*tensors, strict=True):
        qi_TGI = qi_GTI.detach().transpose(0, 1)
        ids_TGK = ops.select_blocks(
            qi_TGI, ki_NI.detach(), batch, block=block, topk=topk, local=local, init=init
        )
        q_THD, k_NGD, v_NGD = (x.transpose(0, 1) for x in (q_HTD, k_GND, v_GND))
        out_THD, _ = ops.sparse_attention(q_THD, k_NGD, v_NGD, ids_TGK, batch, block=block, scale=scale)
        outs.append(out_THD.transpose(0, 1))
    return torch.stack(outs)


def trained_attention(
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    qi_BGTI: Tensor,
    ki_BTI: Tensor,
    *,
    block: int,
    topk: int,
    local: int = 1,
    init: int = 0,
    scale: float,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """Attention [B, H, T, D] of whole sequences to the blocks their index branch chooses, and its loss.

    The loss is the mean KL of `ops.index_kl`, in nat, over all tokens where kernels apply, and over `rows` of
    them, drawn anew and the same in each sequence, elsewhere: there scores and masks of T x T are in memory.
    Gradients of the first reach q, k and v, of the second qi and ki alone.
    """
    choice = (block, topk, local, init, scale)
    if has_kernels(q_BHTD, k_BGTD, qi_BGTI, block, topk):
        return _train_packed(q_BHTD, k_BGTD, v_BGTD, qi_BGTI, ki_BTI, *choice)
    return _train_masked(q_BHTD, k_BGTD, v_BGTD, qi_BGTI, ki_BTI, *choice, rows=rows)


def _train_masked(
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    qi_BGTI: Tensor,
    ki_BTI: Tensor,
    block: int,
    topk: int,
    local: int,
    init: int,
    scale: float,
    *,
    rows: int,
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        ids = reference.choose_blocks(qi_BGTI, ki_BTI, 0, block, topk, local, init)
    tokens = q_BHTD.shape[2]
    keep_BGTT = reference.keep_mask(ids, 0, block, tokens)
    out_BHTD = reference.masked_attention(q_BHTD, k_BGTD, v_BGTD, keep_BGTT, scale)
    drawn = torch.randperm(tokens, device=q_BHTD.device)[:rows]
    loss = reference.index_kl(
        q_BHTD[:, :, drawn], k_BGTD, qi_BGTI[:, :, drawn], ki_BTI, keep_BGTT[:, :, drawn], scale
    )
    return out_BHTD, loss


def _train_packed(
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    qi_BGTI: Tensor,
    ki_BTI: Tensor,
    block: int,
    topk: int,
    local: int,
    init: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """All sequences packed into one call of each kernel; nothing of T x T is in memory."""
    B, _, T, _ = q_BHTD.shape
    starts = torch.arange(B + 1, dtype=torch.int32, device=q_BHTD.device) * T
    lengths = torch.full((B,), T, dtype=torch.int32, device=q_BHTD.device)
    batch = Batch(starts, lengths, max_queries=T, max_keys=T, key_starts=starts)
    q, k, v, qi = (x.transpose(1, 2).flatten(0, 1) for x in (q_BHTD, k_BGTD, v_BGTD, qi_BGTI))
    ki = ki_BTI.flatten(0, 1)
    ids = ops.select_blocks(qi.detach(), ki.detach(), batch, block=block, topk=topk, local=local, init=init)
    out, lse = ops.sparse_attention(q, k, v, ids, batch, block=block, scale=scale)
    index_scale = qi.shape[-1] ** -0.5
    loss = ops.index_kl(q, k, lse, qi, ki, ids, batch, block=block, scale=scale, index_scale=index_scale)
    return out.unflatten(0, (B, T)).transpose(1, 2), loss


def has_kernels(q_BHTD: Tensor, k_BGND: Tensor, qi_BGTI: Tensor, block: int, topk: int) -> bool:
    """Whether the kernels take these sizes, here."""
    group = q_BHTD.shape[1] // k_BGND.shape[1]
    return takes(q_BHTD.device, group, q_BHTD.shape[-1], qi_BGTI.shape[-1], block, topk)


def takes(device: torch.device, group: int, width: int, index_width: int, block: int, topk: int) -> bool:
    """Whether kernels run on a device with heads of this width, `group` of them per KV head."""
    return (
        device.type == "cuda"
        and width in HEAD_WIDTHS
        and index_width in INDEX_WIDTHS
        and block in BLOCKS
        and 1 <= topk <= MOST_KEPT
        and group <= MOST_HEADS
        and card_of(device).capability >= (8, 0)
    )
