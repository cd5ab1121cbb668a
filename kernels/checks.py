"""What the public functions refuse, each in one sentence that names the argument, its value and what is
accepted. The twins take more than the kernels: any width, and fp64.
"""

from __future__ import annotations

import reprlib

import torch
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.card import card_of

BLOCKS, MOST_KEPT, MOST_HEADS = (32, 64, 128), 32, 16
HEAD_WIDTHS, INDEX_WIDTHS = (64, 128), (32, 64, 128)
FLOATS, FP8 = (torch.bfloat16, torch.float16, torch.float32), torch.float8_e4m3fn
LEAST_SCALE, MOST_SCALE = 1e-30, 1e30
MOST_ACROSS = 65_535
"""Programs of a grid's second and third dimension that CUDA takes."""
MOST_STRIDE = 1 << 24
"""Strides between keys from which on offsets within a block would not fit 32 bits."""
MOST_OFFSET = 1 << 31
"""Offsets of heads, and numbers of (token, group) pairs, from which on they would not."""


def check_types(first: str, batch: Batch, **tensors: Tensor) -> None:
    """Refuse what is no tensor or no batch, and tensors of several devices."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} is {reprlib.repr(x)}: a torch.Tensor is accepted")
        if x.device != tensors[first].device:
            raise ValueError(
                f"{name} is on {x.device} and {first} on {tensors[first].device}: one device is accepted"
            )
    if not isinstance(batch, Batch):
        raise ValueError(f"batch is {reprlib.repr(batch)}: a kernels.batch.Batch is accepted")


def check_whole(**numbers: int) -> None:
    """Refuse what is no whole number."""
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{name} is {reprlib.repr(number)}: a whole number is accepted")


def check_scales(**scales: float) -> None:
    """Refuse what is no factor on scores that fp32 can bear."""
    for name, scale in scales.items():
        is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
        if not is_number or not LEAST_SCALE <= scale <= MOST_SCALE:
            raise ValueError(
                f"{name} is {reprlib.repr(scale)}: a number from {LEAST_SCALE} to {MOST_SCALE} is accepted"
            )


def check_choice(topk: int, local: int, init: int) -> None:
    """Refuse numbers of blocks to keep that contradict each other."""
    check_whole(topk=topk, local=local, init=init)
    if topk < 1:
        raise ValueError(f"topk is {topk}: 1 or more is accepted")
    if local < 0 or init < 0 or local + init > topk:
        raise ValueError(f"local is {local} and init {init}: 0 or more each, together at most topk = {topk}")


def check_selection(
    qi: Tensor, ki: Tensor, batch: Batch, block: int, topk: int, local: int, init: int, *, kernels: bool
) -> None:
    """Refuse what choosing blocks does not take."""
    check_types("qi", batch, qi=qi, ki=ki)
    types = (*FLOATS, FP8, *(() if kernels else (torch.float64,)))
    if qi.ndim != 3 or qi.shape[1] == 0 or qi.dtype not in types:
        raise ValueError(f"qi is {_is(qi)}: [T, G, I] with G of 1 or more, in {_types(types)}, is accepted")
    if kernels and qi.shape[2] not in INDEX_WIDTHS:
        raise ValueError(f"qi has width {qi.shape[2]}: {_one_of(INDEX_WIDTHS)} is accepted")
    shape = "[N, I]" if batch.pages is None else "[P, block, I]"
    if ki.ndim != shape.count(",") + 1 or ki.shape[-1] != qi.shape[2] or ki.dtype != qi.dtype:
        raise ValueError(f"ki is {_is(ki)}: {qi.dtype} {shape} with I = {qi.shape[2]}, as qi, is accepted")
    _check_block(block)
    check_choice(topk, local, init)
    if topk > MOST_KEPT:
        raise ValueError(f"topk is {topk}: 1 to {MOST_KEPT} is accepted")
    _check_rows(qi=qi, ki=ki)
    if kernels:
        _check_offsets(qi=qi)
        _check_key_strides(ki.ndim - 2, ki=ki)
        if batch.sequences > MOST_ACROSS:
            raise ValueError(f"batch has {batch.sequences} sequences: up to {MOST_ACROSS} are accepted")
    batch.check(qi.shape[0], ki, block, "ki")
    if ki.shape[0] == 0 and batch.max_keys > 0:
        raise ValueError(f"ki is empty, but batch.max_keys is {batch.max_keys}: 0 is accepted")


def check_attention(
    q: Tensor, k: Tensor, v: Tensor, ids: Tensor, batch: Batch, block: int, scale: float, *, kernels: bool
) -> None:
    """Refuse what attending to chosen blocks does not take."""
    check_types("q", batch, q=q, k=k, v=v, ids=ids)
    types = (*FLOATS, *(() if kernels else (torch.float64,)))
    if q.ndim != 3 or q.dtype not in types:
        raise ValueError(f"q is {_is(q)}: [T, H, D] in {_types(types)} is accepted")
    T, H, D = q.shape
    _check_block(block)
    check_scales(scale=scale)
    if kernels and D not in HEAD_WIDTHS:
        raise ValueError(f"q has heads of width {D}: {_one_of(HEAD_WIDTHS)} is accepted")
    shape = "[N, G, D]" if batch.pages is None else "[P, block, G, D]"
    if k.ndim != shape.count(",") + 1 or k.shape[-1] != D or k.dtype not in (q.dtype, FP8):
        raise ValueError(f"k is {_is(k)}: {shape} with D = {D} in {q.dtype}, as q, or in {FP8} is accepted")
    if v.shape != k.shape or v.dtype != k.dtype:
        raise ValueError(f"v is {_is(v)}: the shape and type of k, {_is(k)}, are accepted")
    G = k.shape[-2]
    _check_groups(H, G)
    _check_ids(ids, T, G)
    _check_rows(q=q, k=k, v=v, ids=ids)
    if kernels:
        _check_offsets(ids=ids)
        _check_key_strides(k.ndim - 3, k=k, v=v)
    batch.check(T, k, block, "k")


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
    """Refuse what the losses do not take."""
    check_types("q", batch, q=q, k=k, qi=qi, ki=ki, **({} if lse is None else {"lse": lse}))
    if batch.pages is not None:
        raise ValueError("batch.pages is given: the loss takes keys packed as [N, G, D]")
    types = (*FLOATS, *(() if kernels else (torch.float64,)))
    if q.ndim != 3 or q.dtype not in types:
        raise ValueError(f"q is {_is(q)}: [T, H, D] in {_types(types)} is accepted")
    T, H, D = q.shape
    if k.ndim != 3 or k.shape[2] != D or k.dtype != q.dtype:
        raise ValueError(f"k is {_is(k)}: {q.dtype} [N, G, {D}], as q, is accepted")
    N, G = k.shape[:2]
    _check_groups(H, G)
    if qi.ndim != 3 or qi.shape[:2] != (T, G) or qi.dtype != q.dtype:
        raise ValueError(f"qi is {_is(qi)}: {q.dtype} [{T}, {G}, I], as q and k, is accepted")
    if ki.shape != (N, qi.shape[2]) or ki.dtype != q.dtype:
        raise ValueError(f"ki is {_is(ki)}: {q.dtype} [{N}, {qi.shape[2]}], as k and qi, is accepted")
    exact = (torch.float32, *(() if kernels else (torch.float64,)))
    if lse is not None and (lse.shape != (T, H) or lse.dtype not in exact):
        raise ValueError(f"lse is {_is(lse)}: torch.float32 [{T}, {H}] is accepted")
    if kernels and (D not in HEAD_WIDTHS or qi.shape[2] not in HEAD_WIDTHS):
        raise ValueError(f"q is {D} and qi {qi.shape[2]} wide: {_one_of(HEAD_WIDTHS)} is accepted")
    _check_rows(q=q, k=k, qi=qi, ki=ki, **({} if lse is None else {"lse": lse}))
    check_scales(scale=scale, index_scale=index_scale)
    if kernels:
        _check_offsets(qi=qi)
        check_card("q", q)
    batch.check(T, k, 1, "k")


def check_chosen(ids: Tensor, qi: Tensor, batch: Batch, block: int) -> None:
    """Refuse a selection that is not one of these index queries'."""
    check_types("qi", batch, qi=qi, ids=ids)
    _check_ids(ids, *qi.shape[:2])
    _check_rows(ids=ids)
    _check_offsets(ids=ids)
    _check_block(block)


def check_card(name: str, x: Tensor) -> None:
    """Refuse a GPU that is too old for the kernels."""
    need = (8, 9) if x.dtype == FP8 else (8, 0)
    if x.is_cuda and (have := card_of(x.device).capability) < need:
        raise ValueError(
            f"{name} is {x.dtype} on a card of compute capability {have[0]}.{have[1]}:"
            f" {need[0]}.{need[1]} and later are accepted"
        )


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


def check_output(name: str, out: Tensor, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> None:
    """Refuse a place for a result of this shape and type on the device of `like`."""
    if not isinstance(out, Tensor):
        raise ValueError(f"{name} is {reprlib.repr(out)}: a torch.Tensor is accepted")
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype or out.device != like.device:
        raise ValueError(
            f"{name} is {_is(out)} on {out.device}: {dtype} {list(shape)} on {like.device} is accepted"
        )


def _span(x: Tensor) -> tuple[int, int]:
    """The addresses that a tensor reaches over."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _check_block(block: int) -> None:
    check_whole(block=block)
    if block not in BLOCKS:
        raise ValueError(f"block is {block}: {_one_of(BLOCKS)} is accepted")


def _check_groups(heads: int, groups: int) -> None:
    if groups == 0 or heads % groups or not 1 <= heads // groups <= MOST_HEADS:
        raise ValueError(
            f"q has {heads} heads for {groups} KV groups: 1 to {MOST_HEADS} heads per group are accepted"
        )
    if heads > MOST_ACROSS:
        raise ValueError(f"q has {heads} heads: up to {MOST_ACROSS} are accepted")


def _check_ids(ids: Tensor, tokens: int, groups: int) -> None:
    if ids.dtype != torch.int32 or ids.ndim != 3 or ids.shape[:2] != (tokens, groups):
        raise ValueError(
            f"ids is {_is(ids)}: torch.int32 [T, G, K] with T = {tokens} and G = {groups} is accepted"
        )
    if ids.shape[2] > MOST_KEPT:
        raise ValueError(f"ids keeps {ids.shape[2]} blocks: up to {MOST_KEPT} are accepted")


def _check_rows(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x.numel() and x.stride(-1) != 1:
            raise ValueError(
                f"{name} has strides {x.stride()}: a contiguous last dimension is accepted,"
                f" as {name}.contiguous() has it"
            )


def _check_offsets(**tensors: Tensor) -> None:
    """Tensors [T, G, ...] whose (token, group) pairs are numbered and whose groups are reached in 32 bits."""
    for name, x in tensors.items():
        T, G = x.shape[:2]
        if T * G >= MOST_OFFSET:
            raise ValueError(f"{name} has {T} tokens of {G} groups: less than 2^31 pairs are accepted")
        if x.numel() and (G - 1) * x.stride(1) + x.shape[2] > MOST_OFFSET:
            raise ValueError(
                f"{name} has strides {x.stride()}: groups that lie within 2^31 numbers are accepted,"
                f" as {name}.contiguous() has them"
            )


def _check_key_strides(dimension: int, **tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x.numel() and x.stride(dimension) >= MOST_STRIDE:
            raise ValueError(
                f"{name} has strides {x.stride()}: below {MOST_STRIDE} from key to key is accepted,"
                f" as {name}.contiguous() has it"
            )


def _is(x: Tensor) -> str:
    return f"{x.dtype} {list(x.shape)}"


def _types(types: tuple[torch.dtype, ...]) -> str:
    return " or ".join(map(str, types))


def _one_of(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values[:-1])) + f" or {values[-1]}"
