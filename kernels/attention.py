"""The main branch of MSA on the GPU: attention of each token to the blocks of keys its group kept.

Two kernels share the work. Where many tokens meet few blocks, the pass walks the key blocks (`kv_outer`);
where a block is chosen once or twice, as in decoding, it walks the tokens (`query_outer`). Which one, and
how it is cut up, is decided here from what the host knows, so nothing waits for the GPU.

Source: arXiv 2606.13392, sections 2 and 4.

Shape legend: T new tokens (all sequences packed), S sequences, N keys, P pages, H query heads, G KV groups,
D head width, K kept blocks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.card import card_of, fitting
from pilotfish.kernels.checks import check_apart, check_attention, check_card, check_output
from pilotfish.kernels.kv_outer import KVOuterTiles, kv_outer
from pilotfish.kernels.query_outer import QueryOuterTiles, query_outer
from pilotfish.kernels.reverse_index import lists_per_group
from pilotfish.kernels.sizes import ceil_div, power_of_2

# Where the two walks meet, measured on an H200 with 64 query heads in 4 groups, random choices.
KV_OUTER_TOKENS = 192
"""Fewer tokens never pay for turning the selection round."""
KV_OUTER_CHOICES = 3
"""Choices per block of keys from which on walking the key blocks is faster: at 2 it lost, at 8 it won."""
KV_OUTER_VALUES = 128 * 64
"""Values in a block's keys from which on it is: smaller blocks come cheap from the L2 cache each time."""

ROOMY = 140 << 10
"""Bytes of shared memory that three steps of 128 keys take, and a bit."""


def sparse_attention(
    q_THD: Tensor,
    k: Tensor,
    v: Tensor,
    ids_TGK: Tensor,
    batch: Batch,
    *,
    block: int,
    scale: float,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    tiles: KVOuterTiles | QueryOuterTiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention of each token to the visible keys of the blocks its group kept.

    q: [T, H, D] in bf16, fp16 or fp32. k, v: packed keys [N, G, D] or pages [P, block, G, D], in q's type
    or in fp8 e4m3. The last dimension of each is contiguous, other strides are free. H / G is 1 to 16, D 64
    or 128, block 32, 64 or 128. ids: int32 [T, G, K], K up to 32, in any order; ids that name no block the
    token sees (-1, say) are left out, repeated ones count once. scale: factor on the scores, 1e-30 to 1e30.
    out, lse: where the results go. tiles: which kernel runs and how it is cut up; default: `choose_tiles`.

    Returns the attention [T, H, D] in q's type and the natural logarithm of the sum of exponentials, fp32
    [T, H]. Tokens without a key get zeros and -inf. Two runs give the same bits. Waits for nothing and can
    be captured in a CUDA graph. Raises ValueError, naming the argument, for what is not accepted.
    """
    check_attention(q_THD, k, v, ids_TGK, batch, block, scale, kernels=True)
    check_card("q", q_THD)
    check_card("k", k)
    T, H, _ = q_THD.shape
    out = torch.empty_like(q_THD, memory_format=torch.contiguous_format) if out is None else out
    lse = torch.empty(T, H, dtype=torch.float32, device=q_THD.device) if lse is None else lse
    check_output("out", out, q_THD.shape, q_THD.dtype, q_THD)
    check_output("lse", lse, (T, H), torch.float32, q_THD)
    if out.stride(-1) != 1 and out.numel() > 0:
        raise ValueError(f"out has strides {out.stride()}: a contiguous last dimension is accepted")
    check_apart(("out", out), ("lse", lse), k=k, v=v, ids=ids_TGK)
    if T == 0:
        return out, lse
    if k.shape[0] == 0 or ids_TGK.shape[2] == 0 or batch.max_keys == 0:
        return out.zero_(), lse.fill_(-math.inf)
    tiles = tiles or choose_tiles(q_THD, k, ids_TGK, batch, block)
    with (
        torch.cuda.device_of(q_THD),
        fitting("q", q_THD.device),
    ):  # kernels start on the current device, which may be another one
        if isinstance(tiles, KVOuterTiles):
            kv_outer(q_THD, k, v, ids_TGK, batch, out, lse, block=block, scale=scale, tiles=tiles)
        else:
            query_outer(q_THD, k, v, ids_TGK, batch, out, lse, block=block, scale=scale, tiles=tiles)
    return out, lse


def choose_tiles(
    q_THD: Tensor, k: Tensor, ids_TGK: Tensor, batch: Batch, block: int
) -> KVOuterTiles | QueryOuterTiles:
    """The faster kernel for a shape and its cut."""
    T, _, D = q_THD.shape
    G, K = ids_TGK.shape[1:]
    card = card_of(q_THD.device)
    cores, overlap = card.cores, card.capability >= (9, 0)
    programs = T * G
    if q_THD.dtype == torch.float32:
        # No matrix unit keeps fp32's precision; small tiles keep the plain multiplications in registers.
        return QueryOuterTiles(keys=32, splits=_splits(programs, K, cores), stages=2, overlap=overlap)
    choices = T * min(K, ceil_div(batch.max_keys, block))
    many = choices >= KV_OUTER_CHOICES * lists_per_group(k, batch, block)
    if many and T >= KV_OUTER_TOKENS and block * D >= KV_OUTER_VALUES:
        # Some blocks, the newest above all, are chosen by everyone: their pieces must not outlast the rest.
        piece = power_of_2(ceil_div(programs * K, 8 * cores))
        return KVOuterTiles(piece=min(max(piece, 16), 256))
    splits = _splits(programs, K, cores)
    if splits == K:  # one step each: nothing to fetch ahead
        if 2 * splits * programs <= cores:
            return QueryOuterTiles(keys=64, splits=2 * splits, stages=1, overlap=overlap)
        return QueryOuterTiles(keys=128, splits=splits, stages=1, overlap=overlap)
    if programs <= cores and card.shared >= ROOMY:
        return QueryOuterTiles(keys=128, splits=splits, stages=2 if 2 * splits == K else 3, overlap=overlap)
    if programs <= 4 * cores and batch.max_queries > 1:  # queries that share their keys
        return QueryOuterTiles(keys=128, warps=8, stages=2)
    return QueryOuterTiles(keys=64, splits=splits, overlap=overlap)


def _splits(programs: int, kept: int, cores: int) -> int:
    """Into how many to split each program, a power of two: one for each multiprocessor, or two while there
    are so few that merging costs little.
    """
    each = 2 if 4 * programs <= cores else 1
    share = max(1, each * cores // programs)
    return min(1 << (share.bit_length() - 1), power_of_2(kept))
