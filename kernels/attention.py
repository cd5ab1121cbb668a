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
import triton
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.card import card_of, fitting
from pilotfish.kernels.checks import check_apart
from pilotfish.kernels.kv_outer import KVOuterTiles, kv_outer
from pilotfish.kernels.query_outer import QueryOuterTiles, query_outer
from pilotfish.kernels.reverse_index import lists_per_group
from pilotfish.kernels.sizes import ceil_div, power_of_2

HEAD_WIDTHS, BLOCKS, MOST_HEADS, MOST_KEPT = (64, 128), (32, 64, 128), 16, 32
QUERY_TYPES = (torch.bfloat16, torch.float16, torch.float32)
FP8 = torch.float8_e4m3fn

# Where the two walks meet, measured on an H200 with 64 query heads in 4 groups, random choices.
KV_OUTER_TOKENS = 192
"""Fewer tokens never pay for turning the selection round."""
KV_OUTER_CHOICES = 3
"""Choices per block of keys from which on walking the key blocks is faster: at 2 it lost, at 8 it won."""
KV_OUTER_VALUES = 128 * 64
"""Values in a block's keys from which on it is: smaller blocks come cheap from the L2 cache each time."""

ROOMY = 140 << 10
"""Bytes of shared memory that three steps of 128 keys take, and a bit."""
MOST_STRIDE = 1 << 24
"""Strides between keys from which on offsets within a block would not fit 32 bits."""


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
    token sees (-1, say) are left out, repeated ones count once. scale: factor on the scores, positive. out,
    lse: where the results go. tiles: which kernel runs and how it is cut up; default: `choose_tiles`.

    Returns the attention [T, H, D] in q's type and the natural logarithm of the sum of exponentials, fp32
    [T, H]. Tokens without a key get zeros and -inf. Two runs give the same bits. Waits for nothing and can
    be captured in a CUDA graph. Raises ValueError, naming the argument, for what is not accepted.
    """
    _check(q_THD, k, v, ids_TGK, batch, block, scale)
    T, H, _ = q_THD.shape
    out = torch.empty_like(q_THD, memory_format=torch.contiguous_format) if out is None else out
    lse = torch.empty(T, H, dtype=torch.float32, device=q_THD.device) if lse is None else lse
    _check_outputs(q_THD, out, lse)
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


def _check(
    q_THD: Tensor, k: Tensor, v: Tensor, ids_TGK: Tensor, batch: Batch, block: int, scale: float
) -> None:
    """Refuse in one sentence what the kernels do not take."""
    if q_THD.ndim != 3 or q_THD.dtype not in QUERY_TYPES:
        raise ValueError(f"q is {_is(q_THD)}: bf16, fp16 or fp32 [T, H, D] is accepted")
    T, H, D = q_THD.shape
    if block not in BLOCKS:
        raise ValueError(f"block is {block}: {_one_of(BLOCKS)} is accepted")
    if not (isinstance(scale, int | float) and 0 < scale < math.inf):
        raise ValueError(f"scale is {scale}: a positive finite number is accepted")
    if D not in HEAD_WIDTHS:
        raise ValueError(f"q has heads of width {D}: {_one_of(HEAD_WIDTHS)} is accepted")
    shape = "pages [P, block, G, D]" if batch.pages is not None else "keys [N, G, D]"
    for name, x in (("k", k), ("v", v)):
        if (
            x.ndim != (3 if batch.pages is None else 4)
            or x.shape[-1] != D
            or x.dtype not in (q_THD.dtype, FP8)
        ):
            raise ValueError(
                f"{name} is {_is(x)}: {shape} with D = {D} in {q_THD.dtype}, as q, or {FP8} is accepted"
            )
    if v.shape != k.shape or v.dtype != k.dtype:
        raise ValueError(f"v is {_is(v)}: the shape and type of k, {_is(k)}, are accepted")
    G = k.shape[-2]
    if G == 0 or H % G or not 1 <= H // G <= MOST_HEADS:
        raise ValueError(f"q has {H} heads for {G} KV groups: 1 to {MOST_HEADS} heads per group are accepted")
    if ids_TGK.dtype != torch.int32 or ids_TGK.ndim != 3 or ids_TGK.shape[:2] != (T, G):
        raise ValueError(f"ids is {_is(ids_TGK)}: torch.int32 [T, G, K] with T = {T} and G = {G} is accepted")
    if ids_TGK.shape[2] > MOST_KEPT:
        raise ValueError(f"ids keeps {ids_TGK.shape[2]} blocks: up to {MOST_KEPT} are accepted")
    for name, x in (("q", q_THD), ("k", k), ("v", v), ("ids", ids_TGK)):
        if x.device != q_THD.device:
            raise ValueError(f"{name} is on {x.device} and q on {q_THD.device}: one device is accepted")
        if x.stride(-1) != 1 and x.numel() > 0:
            raise ValueError(f"{name} has strides {x.stride()}: a contiguous last dimension is accepted")
        if name in ("k", "v") and x.stride(-3) >= MOST_STRIDE and x.numel() > 0:
            raise ValueError(
                f"{name} has strides {x.stride()}: below {MOST_STRIDE} from key to key is accepted"
            )
    _check_device(q_THD.device, k.dtype)
    batch.check(T, k, block, "k")


def _check_outputs(q_THD: Tensor, out: Tensor, lse: Tensor) -> None:
    for name, x, shape, dtype in (
        ("out", out, q_THD.shape, q_THD.dtype),
        ("lse", lse, q_THD.shape[:2], torch.float32),
    ):
        if x.shape != shape or x.dtype != dtype or x.device != q_THD.device:
            raise ValueError(
                f"{name} is {_is(x)} on {x.device}: {dtype} {list(shape)} on {q_THD.device} is accepted"
            )
    if out.stride(-1) != 1 and out.numel() > 0:
        raise ValueError(f"out has strides {out.stride()}: a contiguous last dimension is accepted")


def _check_device(device: torch.device, key_type: torch.dtype) -> None:
    if device.type == "cpu" and triton.knobs.runtime.interpret:
        return
    if device.type != "cuda":
        raise ValueError(f"q is on {device}: a CUDA device is accepted")
    major, minor = card_of(device).capability
    if key_type == FP8 and (major, minor) < (8, 9):
        raise ValueError(
            f"k is {FP8} on {torch.cuda.get_device_name(device)}, of compute capability {major}.{minor}:"
            f" bf16, fp16 and fp32 are accepted, and fp8 from 8.9 on"
        )
    if major < 8:
        raise ValueError(
            f"q is on {torch.cuda.get_device_name(device)}, of compute capability {major}.{minor}:"
            " 8.0 and later are accepted"
        )


def _is(x: Tensor) -> str:
    return f"{x.dtype} {list(x.shape)}"


def _one_of(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values[:-1])) + f" or {values[-1]}"
