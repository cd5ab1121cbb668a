"""MiniMax Sparse Attention in plain torch, written to be read and checked against the paper.

Selection (arXiv 2606.13392, section 2): an index head per KV group scores every visible key; a block's
score is the maximum over its visible keys; each query of each group keeps `topk` blocks, its own block
always among them. The main branch attends to the kept blocks alone.

Shape legend: B batch, H query heads, G KV groups (= index heads), T queries, N keys, D head width, C blocks
of keys, K kept blocks. Query i of the T stands at position `start + i`; keys stand at 0..N-1 with N = start
+ T.
"""

from __future__ import annotations

import reprlib

import torch
import torch.nn.functional as F
from torch import Tensor

from pilotfish.kernels.checks import check_choice, check_whole
from pilotfish.kernels.exact import exact
from pilotfish.kernels.plain_selection import NAN_SCORE, top_blocks

MASKED_PATH_LIMIT = 1 << 23  # query x key pairs per group up to which one masked pass beats gathering
GATHER_ROWS = 128
CHOOSE_ROWS = 512  # queries whose blocks are chosen at a time
SCORES_AT_ONCE = 1 << 22  # products of queries and keys held at a time


@exact
def choose_blocks(
    q_BGTD: Tensor, k_BND: Tensor, start: int, block: int, topk: int, local: int = 1, init: int = 0
) -> Tensor:
    """The blocks each query of each group keeps: `select_blocks` of `block_scores`, some queries at a time.

    Memory grows with T and N, never with T x N. Raises ValueError, naming the argument, for what is not
    accepted.
    """
    for name, x in (("q", q_BGTD), ("k", k_BND)):
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim != (4 if name == "q" else 3):
            what = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else reprlib.repr(x)
            shape = "[B, G, T, D]" if name == "q" else "[B, N, D]"
            raise ValueError(f"{name} is {what}: a float tensor {shape} is accepted")
    T, N = q_BGTD.shape[2], k_BND.shape[1]
    _check_blocks(block, topk, local, init)
    check_whole(start=start)
    if start < 0 or start + T != N:
        raise ValueError(f"start is {start}: {N - T}, where the {T} newest of {N} keys begin, is accepted")
    kept = min(topk, -(-N // block))
    parts = []
    for i in range(0, max(T, 1), CHOOSE_ROWS):
        rows = q_BGTD[:, :, i : i + CHOOSE_ROWS]
        scores = block_scores(rows, k_BND[:, : start + i + rows.shape[2]], start + i, block)
        ids = select_blocks(scores, start + i, block, topk, local, init)
        parts.append(F.pad(ids, (0, kept - ids.shape[-1]), value=-1))
    return torch.cat(parts, dim=2)


@exact
def block_scores(q_BGTD: Tensor, k_BND: Tensor, start: int, block: int) -> Tensor:
    """Scores of every block of keys, fp32 [B, G, T, C]; -inf where no key of the block is visible."""
    B, G, T, _ = q_BGTD.shape
    at_once = SCORES_AT_ONCE << (5 if q_BGTD.is_cuda else 0)  # a GPU waits for launches, not for memory
    step = max(1, at_once // max(B * G * T * block, 1)) * block
    starts = range(0, max(k_BND.shape[1], 1), step)
    parts = [_scores_of(q_BGTD.float(), k_BND[:, i : i + step], start - i, block) for i in starts]
    return torch.cat(parts, dim=-1)


def _scores_of(q_BGTD: Tensor, k_BND: Tensor, start: int, block: int) -> Tensor:
    T, N = q_BGTD.shape[2], k_BND.shape[1]
    scores_BGTN = torch.matmul(q_BGTD, k_BND.float().transpose(-1, -2)[:, None])
    scores_BGTN.nan_to_num_(nan=NAN_SCORE, posinf=float("inf"), neginf=float("-inf"))
    if start + 1 < N:  # else every query sees all of these keys
        positions_T = torch.arange(start, start + T, device=k_BND.device)
        hidden_TN = torch.arange(N, device=k_BND.device)[None] > positions_T[:, None]
        scores_BGTN.masked_fill_(hidden_TN, float("-inf"))
    scores_BGTN = F.pad(scores_BGTN, (0, -N % block), value=float("-inf"))
    return scores_BGTN.unflatten(-1, (-1, block)).amax(-1)


def select_blocks(
    scores_BGTC: Tensor, start: int, block: int, topk: int, local: int = 1, init: int = 0
) -> Tensor:
    """Kept block ids, int64 [B, G, T, K], ascending, padded with -1; K = min(topk, C).

    The rule is that of `plain_selection.top_blocks`: forced blocks, then higher score, then the lower id.
    """
    _check_blocks(block, topk, local, init)
    B, G, T, C = scores_BGTC.shape
    visible_T = torch.arange(start + 1, start + T + 1, device=scores_BGTC.device)
    scores_TGC = scores_BGTC.permute(2, 0, 1, 3).flatten(1, 2)
    ids_TGK = top_blocks(scores_TGC, visible_T, block, min(topk, C), local, init)
    return ids_TGK.long().unflatten(1, (B, G)).permute(1, 2, 0, 3)


def _check_blocks(block: int, topk: int, local: int, init: int) -> None:
    check_whole(block=block)
    if block < 1:
        raise ValueError(f"block is {block}: 1 or more is accepted")
    check_choice(topk, local, init)


def keep_mask(ids_BGTK: Tensor, start: int, block: int, keys: int) -> Tensor:
    """Which (query, key) pairs the main branch sees: bool [B, G, T, N], causal inside the last block."""
    blocks = -(-keys // block)
    kept_BGTC = torch.zeros(*ids_BGTK.shape[:-1], blocks + 1, dtype=torch.bool, device=ids_BGTK.device)
    kept_BGTC.scatter_(-1, ids_BGTK.masked_fill(ids_BGTK < 0, blocks), True)
    keep_BGTN = kept_BGTC[..., :blocks].repeat_interleave(block, dim=-1)[..., :keys]
    positions_T = torch.arange(start, start + ids_BGTK.shape[2], device=ids_BGTK.device)
    return keep_BGTN & (torch.arange(keys, device=ids_BGTK.device)[None] <= positions_T[:, None])


def dense_attention(q_BHTD: Tensor, k_BGND: Tensor, v_BGND: Tensor, start: int, scale: float) -> Tensor:
    """Full causal attention with grouped KV heads; returns [B, H, T, D]."""
    B, H, T, D = q_BHTD.shape
    G, N = k_BGND.shape[1:3]
    if T == 1:
        # The heads of a group as rows of one product: the grouped call is several times slower in bf16.
        rows_BGRD = q_BHTD.reshape(B, G, H // G, D)
        return F.scaled_dot_product_attention(rows_BGRD, k_BGND, v_BGND, scale=scale).reshape(B, H, 1, D)
    mask_TN: Tensor | None = None
    if start > 0 and q_BHTD.is_cuda and q_BHTD.dtype != torch.float32:
        from torch.nn.attention.bias import causal_lower_right  # takes a second to import

        mask_TN = causal_lower_right(T, N)  # flash attention, without a mask in memory
    elif start > 0:
        positions_T = torch.arange(start, start + T, device=q_BHTD.device)
        mask_TN = torch.arange(N, device=q_BHTD.device)[None] <= positions_T[:, None]
    return F.scaled_dot_product_attention(
        q_BHTD, k_BGND, v_BGND, attn_mask=mask_TN, is_causal=start == 0, scale=scale, enable_gqa=H != G
    )


def sparse_attention(
    q_BHTD: Tensor, k_BGND: Tensor, v_BGND: Tensor, ids_BGTK: Tensor, start: int, block: int, scale: float
) -> Tensor:
    """Attention of each query to the blocks its group kept; returns [B, H, T, D].

    Small problems take one masked pass; larger ones gather the kept blocks of `GATHER_ROWS` queries at a
    time, so memory never grows with T x N.
    """
    T, N = q_BHTD.shape[2], k_BGND.shape[2]
    if T * N <= MASKED_PATH_LIMIT and T > 1:
        return masked_attention(q_BHTD, k_BGND, v_BGND, keep_mask(ids_BGTK, start, block, N), scale)
    parts = [
        _gathered_rows(
            q_BHTD[:, :, i : i + GATHER_ROWS],
            k_BGND,
            v_BGND,
            ids_BGTK[:, :, i : i + GATHER_ROWS],
            start + i,
            block,
            scale,
        )
        for i in range(0, T, GATHER_ROWS)
    ]
    return torch.cat(parts, dim=2)


def masked_attention(
    q_BHTD: Tensor, k_BGND: Tensor, v_BGND: Tensor, keep_BGTN: Tensor, scale: float
) -> Tensor:
    """Attention under a per-group mask of (query, key) pairs; returns [B, H, T, D]."""
    B, H, T, D = q_BHTD.shape
    G, N = k_BGND.shape[1:3]
    q = q_BHTD.reshape(B * G, H // G, T, D)
    k, v = (x.reshape(B * G, 1, N, D).expand(-1, H // G, -1, -1) for x in (k_BGND, v_BGND))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep_BGTN.reshape(B * G, 1, T, N), scale=scale)
    return out.reshape(B, H, T, D)


def _gathered_rows(
    q_BHTD: Tensor, k_BGND: Tensor, v_BGND: Tensor, ids_BGTK: Tensor, start: int, block: int, scale: float
) -> Tensor:
    B, H, T, D = q_BHTD.shape
    G, N = k_BGND.shape[1:3]
    keys_BGTL = (ids_BGTK[..., None] * block + torch.arange(block, device=ids_BGTK.device)).flatten(-2)
    positions_T1 = torch.arange(start, start + T, device=ids_BGTK.device)[:, None]
    seen_BGTL = (ids_BGTK >= 0).repeat_interleave(block, dim=-1) & (keys_BGTL <= positions_T1)
    rows_BGLs = keys_BGTL.clamp(0, N - 1).flatten(2)
    index = rows_BGLs[..., None].expand(-1, -1, -1, D)
    k_BGTLD = k_BGND.gather(2, index).unflatten(2, (T, -1))
    v_BGTLD = v_BGND.gather(2, index).unflatten(2, (T, -1))
    q_BGTRD = q_BHTD.reshape(B, G, H // G, T, D).transpose(2, 3)
    out = F.scaled_dot_product_attention(
        q_BGTRD, k_BGTLD, v_BGTLD, attn_mask=seen_BGTL[..., None, :], scale=scale
    )
    return out.transpose(2, 3).reshape(B, H, T, D)


@exact
def index_kl(
    q_BHTD: Tensor, k_BGND: Tensor, qi_BGTD: Tensor, ki_BND: Tensor, keep_BGTN: Tensor, scale: float
) -> Tensor:
    """Mean KL(teacher || index branch) over queries and groups: the loss that trains the index branch.

    The teacher is the mean over a group's heads of the main branch's attention over the kept keys,
    detached; the student is the softmax of the index scores over the same keys, scaled by 1/sqrt(index
    width).
    """
    B, H, T, D = q_BHTD.shape
    G = k_BGND.shape[1]
    hidden_BG1TN = ~keep_BGTN[:, :, None]
    with torch.no_grad():
        logits = torch.matmul(
            q_BHTD.reshape(B, G, H // G, T, D).float(), k_BGND[:, :, None].float().transpose(-1, -2)
        )
        teacher_BGTN = (logits * scale).masked_fill(hidden_BG1TN, float("-inf")).softmax(-1).mean(2)
    student = (
        torch.matmul(qi_BGTD.float(), ki_BND.float().transpose(-1, -2)[:, None]) * qi_BGTD.shape[-1] ** -0.5
    )
    log_student = student.masked_fill(~keep_BGTN, float("-inf")).log_softmax(-1)
    log_student = log_student.masked_fill(~keep_BGTN, 0.0)
    return (torch.xlogy(teacher_BGTN, teacher_BGTN) - teacher_BGTN * log_student).sum(-1).mean()
