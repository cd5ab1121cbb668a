"""The kernels as torch operators: one function per job.

Each picks the kernel by shape and device, or its plain twin where no GPU is; each is a `torch.library`
operator with a fake kernel, so `torch.compile` sees through it, and with a gradient where there is one.
None waits for the GPU: a CUDA graph may capture them. None asks `torch.autocast`: they compute in the types
they are given. None has a second derivative, and says so in a RuntimeError where one is wanted.

What is not accepted raises a ValueError that names the argument. Inputs that are not finite leave open the
results of the rows that read the same block of the same group, and no others: docs/kernels.md, "Bad input".

| job | function | gradient |
|---|---|---|
| choose blocks of keys | `select_blocks` | none: the choice is discrete |
| attend to the chosen blocks | `sparse_attention` | to q, k and v |
| train the index branch | `index_kl` | to index queries and keys alone |
| train it while attention is dense | `index_kl_dense` | the same |

Shape legend: T new tokens (all sequences packed), N keys, P pages, H query heads, G KV groups (= index
heads), D head width, I index width, K kept blocks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import reprlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pilotfish.kernels import plain_attention, plain_selection, plain_training
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.checks import (
    check_attention,
    check_choice,
    check_chosen,
    check_loss,
    check_output,
    check_scales,
    check_selection,
    check_types,
    check_whole,
)

has_triton = importlib.util.find_spec("triton") is not None
if has_triton:
    from pilotfish.kernels import attention, backward, card, selection, training, warmup

    INTERPRET = backward.INTERPRET
else:
    INTERPRET = False
"""Whether the kernels run in Triton's interpreter, on CPU tensors too."""


def has_kernels(x: Tensor) -> bool:
    """Whether kernels run where this tensor is; if not, the twins do."""
    return x.is_cuda or INTERPRET


def select_blocks(
    qi_TGI: Tensor,
    ki: Tensor,
    batch: Batch,
    *,
    block: int,
    topk: int,
    local: int = 1,
    init: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """The blocks of keys each token and group keeps: int32 [T, G, K], ascending, padded with -1; K = topk.

    Index queries [T, G, I] and keys [N, I], or pages of them [P, block, I]; see `selection.select_blocks`.
    NaN and -inf count as -1e30, +inf as the greatest number of fp32. out: where the ids go. Raises
    ValueError, naming the argument, for what is not accepted.
    """
    # What torch would refuse in words of its own; the kernels check the rest.
    check_types("qi", batch, qi=qi_TGI, ki=ki, **({} if out is None else {"out": out}))
    check_whole(block=block)
    check_choice(topk, local, init)
    if not has_kernels(qi_TGI):
        check_selection(qi_TGI, ki, batch, block, topk, local, init, kernels=False)
    options = (*_fields(batch), block, topk, local, init)
    if out is None:
        ids_TGK: Tensor = torch.ops.pilotfish.select_blocks(qi_TGI, ki, *options)
        return ids_TGK
    torch.ops.pilotfish.select_blocks_out(out, qi_TGI, ki, *options)
    return out


def sparse_attention(
    q_THD: Tensor,
    k: Tensor,
    v: Tensor,
    ids_TGK: Tensor,
    batch: Batch,
    *,
    block: int,
    scale: float,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention [T, H, D] of each token to the chosen blocks, and its log-sum-exp [T, H], fp32, natural.

    Keys and values [N, G, D], or pages of them [P, block, G, D]; see `attention.sparse_attention`.
    Differentiable, once, by q, k and v if keys are not paged. A key or value that is not finite leaves open
    the rows of its group that chose its block, a query its own row; and backward, the gradients of the blocks
    that such rows chose. out: where the two results go; then nothing is differentiable. Raises ValueError,
    naming the argument, for what is not accepted.
    """
    if out is not None and not (isinstance(out, tuple | list) and len(out) == 2):
        raise ValueError(
            f"out is {reprlib.repr(out)}: a pair of tensors is accepted, attention and log-sum-exp"
        )
    outputs = {} if out is None else {"out": out[0], "lse": out[1]}
    check_types("q", batch, q=q_THD, k=k, v=v, ids=ids_TGK, **outputs)
    check_whole(block=block)
    check_scales(scale=scale)
    if not has_kernels(q_THD):
        check_attention(q_THD, k, v, ids_TGK, batch, block, scale, kernels=False)
    options = (*_fields(batch), block, scale)
    if out is None:
        if _wants_gradient(q_THD, k, v):
            if batch.pages is not None:
                raise ValueError(
                    "batch.pages is given and a gradient wanted: keys packed as [N, G, D] are accepted"
                )
            if k.dtype != q_THD.dtype:
                raise ValueError(f"k is {k.dtype} and a gradient wanted: {q_THD.dtype}, as q, is accepted")
        attended: tuple[Tensor, Tensor] = torch.ops.pilotfish.sparse_attention(q_THD, k, v, ids_TGK, *options)
        return attended
    torch.ops.pilotfish.sparse_attention_out(*out, q_THD, k, v, ids_TGK, *options)
    return out


def index_kl(
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
) -> Tensor:
    """Mean over tokens and groups of KL(teacher || student) over the chosen keys, in nat: a scalar.

    Teacher: the mean over the group's heads of the main branch's attention, from q, k and the lse that
    `sparse_attention` returned; student: the softmax of the index products times `index_scale`. Gradients
    reach qi and ki alone, once; the teacher is a constant. Tokens that see nothing count as 0. What is not
    finite leaves open the loss, and the gradients of rows that chose its block and of the blocks they chose.
    Raises ValueError, naming the argument, for what is not accepted.
    """
    check_loss(q_THD, k_NGD, lse_TH, qi_TGI, ki_NI, batch, scale, index_scale, kernels=has_kernels(q_THD))
    check_chosen(ids_TGK, qi_TGI, batch, block)
    loss, _, _ = torch.ops.pilotfish.index_kl(
        q_THD.detach(), k_NGD.detach(), lse_TH.detach(), qi_TGI, ki_NI, ids_TGK, *_fields(batch),
        block, scale, index_scale, _wants_gradient(qi_TGI, ki_NI),
    )  # fmt: skip
    return loss / max(qi_TGI.shape[0] * qi_TGI.shape[1], 1)


def index_kl_dense(
    q_THD: Tensor,
    k_NGD: Tensor,
    lse_TH: Tensor | None,
    qi_TGI: Tensor,
    ki_NI: Tensor,
    batch: Batch,
    *,
    scale: float,
    index_scale: float,
) -> Tensor:
    """`index_kl` over every visible key: the loss of the warm-up, when the main branch attends to all of
    them.

    lse: of full attention; None: computed here. What is not finite leaves open the loss and the gradients of
    its sequence. On a GPU the gradient of ki is summed by atomics, so its
    last bits may differ between runs.
    """
    check_loss(q_THD, k_NGD, lse_TH, qi_TGI, ki_NI, batch, scale, index_scale, kernels=has_kernels(q_THD))
    loss, _, _ = torch.ops.pilotfish.index_kl_dense(
        q_THD.detach(), k_NGD.detach(), None if lse_TH is None else lse_TH.detach(), qi_TGI, ki_NI,
        *_fields(batch), scale, index_scale, _wants_gradient(qi_TGI, ki_NI),
    )  # fmt: skip
    return loss / max(qi_TGI.shape[0] * qi_TGI.shape[1], 1)


class _Fields(NamedTuple):
    """A `Batch` as an operator's schema can say it."""

    query_starts: Tensor
    key_lengths: Tensor
    max_queries: int
    max_keys: int
    pages: Tensor | None
    key_starts: Tensor | None
    visible: Tensor | None


def _fields(b: Batch) -> _Fields:
    return _Fields(b.query_starts, b.key_lengths, b.max_queries, b.max_keys, b.pages, b.key_starts, b.visible)


def _fitting(name: str, x: Tensor) -> contextlib.AbstractContextManager[None]:
    """One sentence where a kernel does not fit the card; the twins always fit."""
    return card.fitting(name, x.device) if has_triton else contextlib.nullcontext()


def _wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


@torch.library.custom_op("pilotfish::select_blocks", mutates_args=())
def _select_blocks(
    qi: Tensor, ki: Tensor, query_starts: Tensor, key_lengths: Tensor, max_queries: int, max_keys: int,
    pages: Tensor | None, key_starts: Tensor | None, visible: Tensor | None,
    block: int, topk: int, local: int, init: int,
) -> Tensor:  # fmt: skip
    batch = Batch(query_starts, key_lengths, max_queries, max_keys, pages, key_starts, visible)
    choose = selection.select_blocks if has_kernels(qi) else plain_selection.select_blocks
    return choose(qi, ki, batch, block=block, topk=topk, local=local, init=init)


@_select_blocks.register_fake
def _(qi: Tensor, ki: Tensor, *options: Any) -> Tensor:
    topk = options[len(_Fields._fields) + 1]
    return torch.empty(*qi.shape[:2], topk, dtype=torch.int32, device=qi.device)


@torch.library.custom_op("pilotfish::select_blocks_out", mutates_args=("out",))
def _select_blocks_out(
    out: Tensor, qi: Tensor, ki: Tensor, query_starts: Tensor, key_lengths: Tensor, max_queries: int,
    max_keys: int, pages: Tensor | None, key_starts: Tensor | None, visible: Tensor | None,
    block: int, topk: int, local: int, init: int,
) -> None:  # fmt: skip
    batch = Batch(query_starts, key_lengths, max_queries, max_keys, pages, key_starts, visible)
    if has_kernels(qi):
        selection.select_blocks(qi, ki, batch, block=block, topk=topk, local=local, init=init, out=out)
    else:
        ids = plain_selection.select_blocks(qi, ki, batch, block=block, topk=topk, local=local, init=init)
        check_output("out", out, ids.shape, ids.dtype, ids)
        out.copy_(ids)


@torch.library.custom_op("pilotfish::sparse_attention", mutates_args=())
def _sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, ids: Tensor, query_starts: Tensor, key_lengths: Tensor, max_queries: int,
    max_keys: int, pages: Tensor | None, key_starts: Tensor | None, visible: Tensor | None,
    block: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch = Batch(query_starts, key_lengths, max_queries, max_keys, pages, key_starts, visible)
    attend = attention.sparse_attention if has_kernels(q) else plain_attention.plain_sparse_attention
    return attend(q, k, v, ids, batch, block=block, scale=scale)


@_sparse_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


@torch.library.custom_op("pilotfish::sparse_attention_out", mutates_args=("out", "lse"))
def _sparse_attention_out(
    out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, ids: Tensor, query_starts: Tensor,
    key_lengths: Tensor, max_queries: int, max_keys: int, pages: Tensor | None, key_starts: Tensor | None,
    visible: Tensor | None, block: int, scale: float,
) -> None:  # fmt: skip
    batch = Batch(query_starts, key_lengths, max_queries, max_keys, pages, key_starts, visible)
    if has_kernels(q):
        attention.sparse_attention(q, k, v, ids, batch, block=block, scale=scale, out=out, lse=lse)
        return
    results = plain_attention.plain_sparse_attention(q, k, v, ids, batch, block=block, scale=scale)
    check_output("out", out, q.shape, q.dtype, q)
    check_output("lse", lse, q.shape[:2], torch.float32, q)
    out.copy_(results[0])
    lse.copy_(results[1])


@torch.library.custom_op("pilotfish::sparse_attention_backward", mutates_args=())
def _sparse_attention_backward(
    dout: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, ids: Tensor, out: Tensor, lse: Tensor,
    query_starts: Tensor, key_lengths: Tensor, max_queries: int, max_keys: int, pages: Tensor | None,
    key_starts: Tensor | None, visible: Tensor | None, block: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch = Batch(query_starts, key_lengths, max_queries, max_keys, pages, key_starts, visible)
    differentiate = (
        backward.sparse_attention_backward
        if has_kernels(q)
        else plain_training.plain_sparse_attention_backward
    )
    with _fitting("q", q):
        return differentiate(dout, dlse, q, k, v, ids, out, lse, batch, block=block, scale=scale)


def _refuse_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError(
        "sparse_attention and the index losses have no second derivative: call autograd without create_graph,"
        " or detach their gradients"
    )


_sparse_attention_backward.register_autograd(_refuse_second)


@_sparse_attention_backward.register_fake
def _(dout: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ids, *options = inputs
    fields = _Fields(*options[: len(_Fields._fields)])
    ctx.save_for_backward(
        q, k, v, ids, *output, fields.query_starts, fields.key_lengths, fields.key_starts, fields.visible
    )
    ctx.bounds, ctx.block_scale = (fields.max_queries, fields.max_keys), options[len(fields) :]


def _attention_gradients(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
    *saved, query_starts, key_lengths, key_starts, visible = ctx.saved_tensors
    fields = (query_starts, key_lengths, *ctx.bounds, None, key_starts, visible)
    gradients = torch.ops.pilotfish.sparse_attention_backward(dout, dlse, *saved, *fields, *ctx.block_scale)
    return (*gradients, None, *(None for _ in (*fields, *ctx.block_scale)))


_sparse_attention.register_autograd(_attention_gradients, setup_context=_keep_for_backward)


@torch.library.custom_op("pilotfish::index_kl", mutates_args=())
def _index_kl(
    q: Tensor, k: Tensor, lse: Tensor, qi: Tensor, ki: Tensor, ids: Tensor, query_starts: Tensor,
    key_lengths: Tensor, max_queries: int, max_keys: int, pages: Tensor | None, key_starts: Tensor | None,
    visible: Tensor | None, block: int, scale: float, index_scale: float, with_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch = Batch(query_starts, key_lengths, max_queries, max_keys, pages, key_starts, visible)
    lose = training.index_kl if has_kernels(q) else plain_training.plain_index_kl
    with _fitting("q", q):
        return lose(
            q, k, lse, qi, ki, ids, batch,
            block=block, scale=scale, index_scale=index_scale, with_gradient=with_gradient,
        )  # fmt: skip


@torch.library.custom_op("pilotfish::index_kl_dense", mutates_args=())
def _index_kl_dense(
    q: Tensor, k: Tensor, lse: Tensor | None, qi: Tensor, ki: Tensor, query_starts: Tensor,
    key_lengths: Tensor, max_queries: int, max_keys: int, pages: Tensor | None, key_starts: Tensor | None,
    visible: Tensor | None, scale: float, index_scale: float, with_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch = Batch(query_starts, key_lengths, max_queries, max_keys, pages, key_starts, visible)
    lose = warmup.index_kl_dense if has_kernels(q) else plain_training.plain_index_kl_dense
    with _fitting("q", q):
        return lose(
            q, k, lse, qi, ki, batch, scale=scale, index_scale=index_scale, with_gradient=with_gradient
        )


def _fake_loss(
    q: Tensor, k: Tensor, lse: Tensor | None, qi: Tensor, ki: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if qi.dtype == torch.float64 else torch.float32
    T, N = (qi.shape[0], ki.shape[0]) if options[-1] else (0, 0)
    return (
        q.new_empty((), dtype=wide),
        qi.new_empty(T, *qi.shape[1:]),
        ki.new_empty(N, ki.shape[1], dtype=wide),
    )


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, dqi, dki = output
    ctx.mark_non_differentiable(dqi, dki)
    ctx.save_for_backward(dqi, dki, *inputs[3:5])
    ctx.inputs = len(inputs)


def _loss_gradients(ctx: Any, dloss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.pilotfish.index_kl_backward(dloss, *ctx.saved_tensors)
    return (None, None, None, *gradients, *(None for _ in range(ctx.inputs - 5)))


@torch.library.custom_op("pilotfish::index_kl_backward", mutates_args=())
def _index_kl_backward(
    dloss: Tensor, dqi: Tensor, dki: Tensor, qi: Tensor, ki: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients by qi and ki, which are here so that autograd knows what the gradients hang on."""
    return (dqi * dloss).to(qi.dtype), (dki * dloss).to(ki.dtype)


@_index_kl_backward.register_fake
def _(dloss: Tensor, dqi: Tensor, dki: Tensor, qi: Tensor, ki: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(dqi), torch.empty_like(dki, dtype=ki.dtype)


_index_kl_backward.register_autograd(_refuse_second)
for _op in (_index_kl, _index_kl_dense):
    _op.register_fake(_fake_loss)
    _op.register_autograd(_loss_gradients, setup_context=_keep_gradients)
