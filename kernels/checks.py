"""What the public functions refuse, each in one sentence that names the argument, its value and what is
accepted.

The kernels of selection and attention check for themselves; what stands here for these two is for their
twins, which take any width, and fp64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.card import card_of

BLOCKS, MOST_KEPT, MOST_HEADS = (32, 64, 128), 32, 16


def check_selection(
    qi: Tensor, ki: Tensor, batch: Batch, block: int, topk: int, local: int, init: int
) -> None:
    """Refuse what choosing blocks does not take."""
    if qi.ndim != 3 or qi.shape[1] == 0 or not qi.dtype.is_floating_point:
        raise ValueError(f"qi is {_is(qi)}: a float type and [T, G, I] with G of 1 or more are accepted")
    shape = "[N, I]" if batch.pages is None else "[P, block, I]"
    if ki.ndim != shape.count(",") + 1 or ki.shape[-1] != qi.shape[2] or ki.dtype != qi.dtype:
        raise ValueError(f"ki is {_is(ki)}: {qi.dtype} {shape} with I = {qi.shape[2]}, as qi, is accepted")
    _check_block(block)
    if not 1 <= topk <= MOST_KEPT:
        raise ValueError(f"topk is {topk}: 1 to {MOST_KEPT} is accepted")
    if local < 0 or init < 0 or local + init > topk:
        raise ValueError(f"local is {local} and init {init}: 0 or more each, together at most topk = {topk}")
    _check_place("qi", qi=qi, ki=ki)
    batch.check(qi.shape[0], ki, block, "ki")


def check_attention(
    q: Tensor, k: Tensor, v: Tensor, ids: Tensor, batch: Batch, block: int, scale: float
) -> None:
    """Refuse what attending to chosen blocks does not take."""
    if q.ndim != 3 or not q.dtype.is_floating_point:
        raise ValueError(f"q is {_is(q)}: a float type and [T, H, D] are accepted")
    shape = "[N, G, D]" if batch.pages is None else "[P, block, G, D]"
    if k.ndim != shape.count(",") + 1 or k.shape[-1] != q.shape[2]:
        raise ValueError(f"k is {_is(k)}: {shape} with D = {q.shape[2]}, as q, is accepted")
    if v.shape != k.shape or v.dtype != k.dtype:
        raise ValueError(f"v is {_is(v)}: the shape and type of k, {_is(k)}, are accepted")
    H, G = q.shape[1], k.shape[-2]
    if G == 0 or H % G or not 1 <= H // G <= MOST_HEADS:
        raise ValueError(f"q has {H} heads for {G} KV groups: 1 to {MOST_HEADS} heads per group are accepted")
    if ids.dtype != torch.int32 or ids.ndim != 3 or ids.shape[:2] != (q.shape[0], G):
        raise ValueError(f"ids is {_is(ids)}: torch.int32 [{q.shape[0]}, {G}, K] is accepted")
    if ids.shape[2] > MOST_KEPT:
        raise ValueError(f"ids keeps {ids.shape[2]} blocks: up to {MOST_KEPT} are accepted")
    _check_block(block)
    _check_factors(scale=scale)
    _check_place("q", q=q, k=k, v=v, ids=ids)
    batch.check(q.shape[0], k, block, "k")


def check_loss(
    q: Tensor,
    k: Tensor,
    lse: Tensor | None,
    qi: Tensor,
    ki: Tensor,
    batch: Batch,
    scale: float,
    index_scale: float,
    *,
    kernels: bool,
) -> None:
    """Refuse what the losses do not take; `kernels` take less than their twins."""
    if batch.pages is not None:
        raise ValueError("batch.pages is given: the loss takes keys packed as [N, G, D]")
    types = (torch.bfloat16, torch.float16, torch.float32, *(() if kernels else (torch.float64,)))
    if q.ndim != 3 or q.dtype not in types:
        raise ValueError(f"q is {_is(q)}: [T, H, D] of one type among {types} is accepted")
    T, H, D = q.shape
    if k.ndim != 3 or k.shape[2] != D or k.dtype != q.dtype:
        raise ValueError(f"k is {_is(k)}: {q.dtype} [N, G, {D}], as q, is accepted")
    N, G = k.shape[:2]
    if G == 0 or H % G or not 1 <= H // G <= MOST_HEADS:
        raise ValueError(f"q has {H} heads for {G} KV groups: 1 to {MOST_HEADS} heads per group are accepted")
    if qi.ndim != 3 or qi.shape[:2] != (T, G) or qi.dtype != q.dtype:
        raise ValueError(f"qi is {_is(qi)}: {q.dtype} [{T}, {G}, I], as q and k, is accepted")
    if ki.shape != (N, qi.shape[2]) or ki.dtype != q.dtype:
        raise ValueError(f"ki is {_is(ki)}: {q.dtype} [{N}, {qi.shape[2]}], as k and qi, is accepted")
    exact = (torch.float32, *(() if kernels else (torch.float64,)))
    if lse is not None and (lse.shape != (T, H) or lse.dtype not in exact):
        raise ValueError(f"lse is {_is(lse)}: torch.float32 [{T}, {H}] is accepted")
    if kernels and (D not in (64, 128) or qi.shape[2] not in (64, 128)):
        raise ValueError(f"q is {D} and qi {qi.shape[2]} wide: 64 or 128 is accepted")
    _check_place("q", q=q, k=k, qi=qi, ki=ki, **({} if lse is None else {"lse": lse}))
    _check_factors(scale=scale, index_scale=index_scale)
    if q.is_cuda and card_of(q.device).capability < (8, 0):
        major, minor = card_of(q.device).capability
        raise ValueError(f"q is on a card of compute capability {major}.{minor}: 8.0 and later are accepted")
    batch.check(T, k, 1, "k")


def check_same_device(first: str, **tensors: Tensor) -> None:
    """Refuse tensors of several devices, before torch chooses an implementation by one of them."""
    device = tensors[first].device
    for name, x in tensors.items():
        if x.device != device:
            raise ValueError(f"{name} is on {x.device} and {first} on {device}: one device is accepted")


def check_apart(*outputs: tuple[str, Tensor], **inputs: Tensor) -> None:
    """Refuse outputs that overlap themselves, each other, or what is read while they are written."""
    for index, (name, out) in enumerate(outputs):
        if any(stride == 0 and size > 1 for stride, size in zip(out.stride(), out.shape, strict=True)):
            raise ValueError(
                f"{name} has strides {out.stride()}: memory of its own for each number is accepted"
            )
        for other, x in (*inputs.items(), *outputs[index + 1 :]):
            if out.numel() and x.numel() and _span(out)[0] < _span(x)[1] and _span(x)[0] < _span(out)[1]:
                raise ValueError(f"{name} lies where {other} lies: memory of its own is accepted")


def check_output(name: str, out: Tensor, like: Tensor) -> None:
    """Refuse a place for a result that is not like it."""
    if out.shape != like.shape or out.dtype != like.dtype or out.device != like.device:
        raise ValueError(
            f"{name} is {_is(out)} on {out.device}:"
            f" {like.dtype} {list(like.shape)} on {like.device} is accepted"
        )


def _span(x: Tensor) -> tuple[int, int]:
    """The addresses that a tensor reaches over."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def check_ids(ids: Tensor, qi: Tensor, block: int) -> None:
    """Refuse a selection that is not one of these index queries'."""
    if ids.dtype != torch.int32 or ids.ndim != 3 or ids.shape[:2] != qi.shape[:2] or ids.device != qi.device:
        raise ValueError(
            f"ids is {_is(ids)} on {ids.device}: torch.int32 [T, G, K] as qi on {qi.device} is accepted"
        )
    if ids.shape[2] > MOST_KEPT:
        raise ValueError(f"ids keeps {ids.shape[2]} blocks: up to {MOST_KEPT} are accepted")
    if ids.numel() and ids.stride(-1) != 1:
        raise ValueError(f"ids has strides {ids.stride()}: a contiguous last dimension is accepted")
    _check_block(block)


def _check_block(block: int) -> None:
    if block not in BLOCKS:
        raise ValueError(f"block is {block}: 32, 64 or 128 is accepted")


def _check_factors(**factors: float) -> None:
    for name, factor in factors.items():
        if not 0 < factor < math.inf:
            raise ValueError(f"{name} is {factor}: a positive finite number is accepted")


def _check_place(first: str, **tensors: Tensor) -> None:
    """All on the device of the first, with contiguous rows."""
    device = tensors[first].device
    for name, x in tensors.items():
        if x.device != device:
            raise ValueError(f"{name} is on {x.device} and {first} on {device}: one device is accepted")
        if x.numel() and x.stride(-1) != 1:
            raise ValueError(f"{name} has strides {x.stride()}: a contiguous last dimension is accepted")


def _is(x: Tensor) -> str:
    return f"{x.dtype} {list(x.shape)}"
