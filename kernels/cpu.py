"""Attention of a prompt's chunk on a CPU, as fast as torch's own functions allow; no gradients.

What decides the time on a CPU is elementwise work and memory that is touched for the first time, not the
products. So nothing here is as large as new tokens x keys:

- scores are products of single precision that may run in bf16 where their factors are bf16, which changes no
  bit of a factor: each product is exact, sums are fp32. They lie keys first, where a maximum over the keys of
  a block adds whole rows, and a piece of them stays in the cache;
- attention walks the blocks of keys: each is multiplied with the queries that chose it, some to a tile, and
  what a query gets from its blocks is merged by log-sum-exp. A query's own block, the only one of which it
  does not see all, is a causal square apart;
- full attention is one pass without a mask over the keys before the chunk, and a causal square.

The twin of each function is the one of the same name in `reference.py`.

Shape legend: H query heads, G KV groups (= index heads), R heads of a group, T new tokens, N keys, D head
width, C blocks of keys, K kept blocks, P pairs of a token and one of its blocks, M queries of a tile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pilotfish.kernels import reference
from pilotfish.kernels.plain_selection import MAX_SCORE, NAN_SCORE

PIECE = 1 << 20
"""Scores held at a time: 4 MB, about what a core's cache takes."""
SMALLEST_TILE, LARGEST_TILE = 8, 64

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def is_fast(q_BHTD: Tensor, *others: Tensor, local: int = 1) -> bool:
    """Whether this file takes these: one sequence on a CPU, several tokens, no gradients."""
    return (
        q_BHTD.device.type == "cpu"
        and q_BHTD.shape[0] == 1
        and q_BHTD.shape[2] > 1
        and local >= 1
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and all(x.dtype == q_BHTD.dtype and x.device == q_BHTD.device for x in others)
        and q_BHTD.dtype in (torch.bfloat16, torch.float32)
    )


def dense_attention(q_BHTD: Tensor, k_BGND: Tensor, v_BGND: Tensor, start: int, scale: float) -> Tensor:
    """Full causal attention of the newest tokens; returns [1, H, T, D]."""
    _, H, T, _ = q_BHTD.shape
    G = k_BGND.shape[1]
    new = [x[:, :, start:].repeat_interleave(H // G, dim=1) for x in (k_BGND, v_BGND)]
    own, own_lse = _flash(q_BHTD, *new, is_causal=True, scale=scale)
    if start == 0:
        return own
    # The heads of a group are more rows of the same product.
    rows_BGRD = q_BHTD.reshape(1, G, H // G * T, -1)
    old, old_lse = _flash(rows_BGRD, k_BGND[:, :, :start], v_BGND[:, :, :start], scale=scale)
    old, old_lse = old.reshape(q_BHTD.shape), old_lse.reshape(1, H, T)
    share = torch.sigmoid(old_lse - own_lse.reshape(1, H, T))[..., None]
    return torch.lerp(own.float(), old.float(), share).to(q_BHTD.dtype)


def choose_blocks(
    q_BGTD: Tensor, k_BND: Tensor, start: int, block: int, topk: int, local: int = 1, init: int = 0
) -> Tensor:
    """The blocks that each query of each group keeps, int64 [1, G, T, K], ascending, padded with -1."""
    T = q_BGTD.shape[2]
    scores_CGT = block_scores(q_BGTD, k_BND, start, block).clamp_(NAN_SCORE, MAX_SCORE)
    C = scores_CGT.shape[0]
    own_T = torch.arange(start, start + T) // block
    for first, end in ((0, min(init, C)), (max(0, start // block - local + 1), C)):
        block_C1 = torch.arange(first, end)[:, None]
        forced_CT = (block_C1 > own_T - local) | (block_C1 < init)
        scores_CGT[first:end].masked_fill_(forced_CT[:, None], float("inf"))
    new = start // block  # no block before it is hidden from anyone
    hidden_CT = torch.arange(new, C)[:, None] > own_T
    scores_CGT[new:].masked_fill_(hidden_CT[:, None], float("-inf"))
    scores_GTC = scores_CGT.permute(1, 2, 0).contiguous()
    if start >= topk * block:  # each query sees blocks enough; unless scores are equal, the K-th says which
        scores = scores_GTC.numpy()
        kept = np.flatnonzero(scores >= np.partition(scores, C - topk)[..., C - topk, None]) % C
        if len(kept) == scores[..., 0].size * topk:
            return torch.from_numpy(kept).view(1, *scores.shape[:2], topk)
    best_GTK, ids_GTK = scores_GTC.topk(min(topk, C), dim=-1)
    ids_GTK = ids_GTK.masked_fill(best_GTK == float("-inf"), C).sort(dim=-1).values
    last_GT1 = best_GTK[..., -1:]
    tied_GT = ((scores_GTC >= last_GT1).sum(-1) > best_GTK.shape[-1]) & (last_GT1[..., 0] > float("-inf"))
    if tied_GT.any():  # which of equal scores are kept is not topk's choice but the lower ids
        order_XK = scores_GTC[tied_GT].sort(dim=-1, descending=True, stable=True).indices
        ids_GTK[tied_GT] = order_XK[:, : ids_GTK.shape[-1]].sort(dim=-1).values
    return ids_GTK.masked_fill(ids_GTK == C, -1)[None]


def block_scores(q_BGTD: Tensor, k_BND: Tensor, start: int, block: int) -> Tensor:
    """The best score of each block, fp32 [C, G, T]; -inf where no key of it is visible, NaN as -1e30."""
    _, G, T, D = q_BGTD.shape
    N = k_BND.shape[1]
    narrow = q_BGTD.dtype == k_BND.dtype == torch.bfloat16
    q_DX = q_BGTD.reshape(G * T, D).float().T
    best_CX = torch.empty(-(-N // block), G * T)
    step = max(1, PIECE // (G * T * block)) * block
    # Memory that is new is dear; rows that begin whole pages apart would share a few lines of the cache.
    held_NX = torch.empty(min(step, N), G * T + 16)[:, : G * T]
    new = start // block * block  # every query sees the keys before it
    hidden_NT = torch.full((N - new, T), float("-inf")).tril_(new - start - 1)
    pieces = [(i, min(i + step, new)) for i in range(0, new, step)]
    pieces += [(i, min(i + step, N)) for i in range(new, N, step)]
    with _bf16_products() if narrow else contextlib.nullcontext():
        for i, end in pieces:
            scores_NX = torch.mm(k_BND[0, i:end].float(), q_DX, out=held_NX[: end - i])
            if i >= new:
                scores_NX.unflatten(1, (G, T)).add_(hidden_NT[i - new : end - new, None])
                if (end - i) % block:
                    scores_NX = F.pad(scores_NX, (0, 0, 0, -len(scores_NX) % block), value=float("-inf"))
            torch.amax(scores_NX.unflatten(0, (-1, block)), 1, out=best_CX[i // block : -(-end // block)])
    if best_CX.max().isnan():
        return reference.block_scores(q_BGTD, k_BND, start, block)[0].permute(2, 0, 1)
    return best_CX.unflatten(1, (G, T))


_NARROWING = threading.Lock()


@contextlib.contextmanager
def _bf16_products() -> Iterator[None]:
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # set by the module itself
    with _NARROWING:  # the switch is the whole process's: two threads at once would leave it on
        before = products.fp32_precision
        products.fp32_precision = "bf16"
        try:
            yield
        finally:
            products.fp32_precision = before


def sparse_attention(
    q_BHTD: Tensor, k_BGND: Tensor, v_BGND: Tensor, ids_BGTK: Tensor, start: int, block: int, scale: float
) -> Tensor:
    """Attention of each query to its own block and the others that its group kept; [1, H, T, D]."""
    _, H, T, D = q_BHTD.shape
    G, K = ids_BGTK.shape[1], ids_BGTK.shape[3]
    R = H // G
    own_T1 = (torch.arange(start, start + T) // block)[:, None]
    own_GTRD, own_GTR = _own_blocks(q_BHTD, k_BGND, v_BGND, start, block, scale)
    q_GTRD = q_BHTD[0].unflatten(0, (G, R)).transpose(1, 2).reshape(G, T, R * D)
    wanted_GTK = (ids_BGTK[0] >= 0) & (ids_BGTK[0] < own_T1)
    whole = int(own_T1[-1])
    # Pairs of a query and a block, sorted by block; then tiles of M queries that share one.
    pair_P = wanted_GTK.flatten().nonzero()[:, 0]
    if len(pair_P) == 0:
        return own_GTRD.transpose(1, 2).reshape(q_BHTD.shape)
    block_P = (ids_BGTK[0] + torch.arange(G)[:, None, None] * whole).flatten()[pair_P]
    block_P, order_P = block_P.sort(stable=True)
    pair_P = pair_P[order_P]
    begin_C = torch.searchsorted(block_P, torch.arange(G * whole + 1))
    count_C = begin_C.diff()
    M = _tile(len(block_P) / max(1, int((count_C > 0).sum())))
    tiles_C = (count_C + M - 1) // M
    tiles_G = tiles_C.view(G, whole).sum(1).tolist()
    tiles = sum(tiles_G)
    place_P = torch.arange(len(block_P)) + ((tiles_C.cumsum(0) - tiles_C) * M - begin_C[:-1])[block_P]
    query_X = torch.zeros(tiles * M, dtype=torch.long)
    query_X[place_P] = pair_P // K
    block_XG = torch.arange(whole).repeat(G).repeat_interleave(tiles_C).split(tiles_G)
    q_X = q_GTRD.flatten(0, 1).index_select(0, query_X).view(tiles, 1, M * R, D)
    k_X, v_X = (torch.empty(tiles, 1, block, D, dtype=q_BHTD.dtype) for _ in "kv")
    for x_BGND, x_X in ((k_BGND, k_X), (v_BGND, v_X)):
        for g, part in enumerate(x_X.view(tiles, block * D).split(tiles_G)):
            blocks_CX = x_BGND[0, g, : whole * block].reshape(whole, block * D)
            torch.index_select(blocks_CX, 0, block_XG[g], out=part)
    out_X, lse_X = _flash(q_X, k_X, v_X, scale=scale)
    # Back to queries: each adds up what it gets of its pairs and its own block.
    back_Q = torch.full((G * T * K,), tiles * M, dtype=torch.long)
    back_Q[pair_P] = place_P
    nothing = torch.full((1, R), float("-inf"))
    lse_QR = torch.cat((lse_X.reshape(-1, R), nothing)).index_select(0, back_Q)
    lse_KX = lse_QR.view(G * T, K, R).transpose(0, 1).flatten(1)
    shares_LX = torch.cat((lse_KX, own_GTR.reshape(1, -1))).softmax(0)
    parts = torch.cat((out_X.view(-1, D), own_GTRD.reshape(-1, D)))
    own_row_GTR1 = torch.arange(G * T * R).view(G, T, R, 1) + tiles * M * R
    back_GT1K = back_Q.view(G, T, 1, K)
    # What weighs 0 is its own: another's that is NaN would not stay with the other.
    row_GTRK = torch.where(back_GT1K < tiles * M, back_GT1K * R + torch.arange(R)[:, None], own_row_GTR1)
    rows_XL = torch.cat((row_GTRK, own_row_GTR1), dim=-1).flatten(0, 2)
    shares_XL = shares_LX.T.to(parts.dtype, memory_format=torch.contiguous_format)
    out_XD = F.embedding_bag(rows_XL, parts, mode="sum", per_sample_weights=shares_XL)
    return out_XD.view(G, T, R, D).transpose(1, 2).reshape(1, H, T, D)


def _tile(mean: float) -> int:
    """Queries of a tile, by how many chose a block on average."""
    size = SMALLEST_TILE
    while size < min(mean, LARGEST_TILE):
        size *= 2
    return size


def _own_blocks(
    q_BHTD: Tensor, k_BGND: Tensor, v_BGND: Tensor, start: int, block: int, scale: float
) -> tuple[Tensor, Tensor]:
    """What each query gets of its own block, up to itself, [G, T, R, D]; its log-sum-exp [G, T, R]."""
    H, T = q_BHTD.shape[1:3]
    G = k_BGND.shape[1]
    first = start // block * block
    lead, tail = start - first, -(start + T) % block

    def blocks(x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, block)).transpose(1, 2)[0].repeat_interleave(H // x.shape[1], dim=1)

    q = F.pad(q_BHTD, (0, 0, lead, tail))
    k, v = (F.pad(x[:, :, first:], (0, 0, 0, tail)) for x in (k_BGND, v_BGND))
    out, lse = _flash(blocks(q), blocks(k), blocks(v), is_causal=True, scale=scale)
    out_HTD = out.transpose(0, 1).flatten(1, 2)[:, lead : lead + T]
    lse_HT = lse.transpose(0, 1).flatten(1, 2)[:, lead : lead + T]
    return (
        out_HTD.unflatten(0, (G, H // G)).transpose(1, 2),
        lse_HT.unflatten(0, (G, H // G)).transpose(1, 2),
    )
