"""The public functions: operators that torch can compile, differentiate and refuse bad input for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import ops
from pilotfish.kernels.batch import Batch

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

T, H, G, D, BLOCK, KEPT = 5, 4, 2, 64, 32, 2
QUERIES, KEYS = [3, 0, 2], [40, 0, 70]
SCALES = {"scale": D**-0.5, "index_scale": D**-0.5}


def _inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v, qi, ki of two sequences and an empty one."""
    N = sum(KEYS)
    shapes = ((T, H, D), (N, G, D), (N, G, D), (T, G, D), (N, D))
    return [torch.randn(*shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


def _batch(device: torch.device) -> Batch:
    return Batch.packed(QUERIES, KEYS, device)


def _layer(q: Tensor, k: Tensor, v: Tensor, qi: Tensor, ki: Tensor, batch: Batch) -> tuple[Tensor, ...]:
    """All that a layer does in training."""
    ids = ops.select_blocks(qi.detach(), ki.detach(), batch, block=BLOCK, topk=KEPT)
    out, lse = ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=D**-0.5)
    kl = ops.index_kl(q, k, lse, qi, ki, ids, batch, block=BLOCK, **SCALES)
    return out, lse, kl, ops.index_kl_dense(q, k, None, qi, ki, batch, **SCALES)


def _results(layer: Any, inputs: list[Tensor], batch: Batch) -> list[Tensor]:
    out, lse, kl, dense = layer(*inputs, batch)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)
    loss = (out * weights).sum() + lse.sin().sum() + kl + 2 * dense
    return [out, lse, kl, dense, *torch.autograd.grad(loss, inputs)]


def test_kernels_and_twins_agree(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, batch = _inputs(device), _batch(device)
    by_kernels = _results(_layer, inputs, batch)
    monkeypatch.setattr(ops, "has_kernels", lambda x: False)
    for ours, twins in zip(by_kernels, _results(_layer, inputs, batch), strict=True):
        torch.testing.assert_close(ours, twins, rtol=1e-5, atol=1e-5)


def test_compiles_into_one_graph(device: torch.device) -> None:
    inputs, batch = _inputs(device), _batch(device)
    compiled = torch.compile(_layer, backend="aot_eager", fullgraph=True)
    for eager, graph in zip(_results(_layer, inputs, batch), _results(compiled, inputs, batch), strict=True):
        torch.testing.assert_close(eager, graph, rtol=1e-6, atol=1e-6)


def test_operators_keep_torch_s_rules(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemas, fake kernels, autograd and dynamic shapes, by torch's own checker."""
    monkeypatch.setattr(ops, "has_kernels", lambda x: x.is_cuda)
    q, k, v, qi, ki = _inputs(device)
    batch = ops._fields(_batch(device))
    ids = ops.select_blocks(qi.detach(), ki.detach(), _batch(device), block=BLOCK, topk=KEPT)
    out, lse = ops.sparse_attention(q, k, v, ids, _batch(device), block=BLOCK, scale=1.0)
    held, mine = (out.detach(), lse.detach()), (out.detach().clone(), lse.detach().clone())
    op = torch.ops.pilotfish
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (op.select_blocks, (qi.detach(), ki.detach(), *batch, BLOCK, KEPT, 1, 0)),
        (op.select_blocks_out, (ids.clone(), qi.detach(), ki.detach(), *batch, BLOCK, KEPT, 1, 0)),
        (op.sparse_attention, (q, k, v, ids, *batch, BLOCK, 1.0)),
        (op.sparse_attention_out, (*mine, q.detach(), k.detach(), v.detach(), ids, *batch, BLOCK, 1.0)),
        (op.index_kl, (q.detach(), k.detach(), held[1], qi, ki, ids, *batch, BLOCK, 1.0, 1.0, True)),
        (op.index_kl_dense, (q.detach(), k.detach(), None, qi, ki, *batch, 1.0, 1.0, True)),
    ]  # fmt: skip
    for function, arguments in calls:
        torch.library.opcheck(function, arguments)


def test_gradcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """By finite differences in fp64, which the twins have; the kernels are held to the twins."""
    monkeypatch.setattr(ops, "has_kernels", lambda x: False)
    device = torch.device("cpu")
    batch = Batch.packed([2, 1], [34, 9], device)
    shapes = ((3, 4, 2), (43, 2, 2), (43, 2, 2), (3, 2, 2), (43, 2))
    q, k, v, qi, ki = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in shapes)
    ids = ops.select_blocks(qi.detach(), ki.detach(), batch, block=BLOCK, topk=1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=0.7)

    def losses(qi: Tensor, ki: Tensor) -> tuple[Tensor, Tensor]:
        lse = attend(q, k, v)[1].detach()
        kl = ops.index_kl(q, k, lse, qi, ki, ids, batch, block=BLOCK, scale=0.7, index_scale=0.6)
        return kl, ops.index_kl_dense(q, k, None, qi, ki, batch, scale=0.7, index_scale=0.6)

    # The log-sum-exp comes in fp32, too coarse for finite differences.
    assert torch.autograd.gradcheck(lambda *x: attend(*x)[0], (q, k, v))
    assert torch.autograd.gradcheck(losses, (qi, ki))


@pytest.mark.parametrize("kernels", [True, False])
def test_autocast_changes_nothing(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, kernels: bool
) -> None:
    monkeypatch.setattr(ops, "has_kernels", lambda x: kernels)
    inputs, batch = _inputs(device), _batch(device)
    wanted = _results(_layer, inputs, batch)
    with torch.autocast(device.type, torch.bfloat16):
        found = _results(_layer, inputs, batch)
    for ours, plain in zip(found, wanted, strict=True):
        assert ours.dtype == plain.dtype
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernels", [True, False])
def test_second_derivatives_are_refused(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, kernels: bool
) -> None:
    """Whatever is added to them: what comes through the gradients must not go missing."""
    monkeypatch.setattr(ops, "has_kernels", lambda x: kernels)
    inputs = _inputs(device)
    for result in _layer(*inputs, _batch(device)):
        reached = torch.autograd.grad(result.sum(), inputs, retain_graph=True, allow_unused=True)
        of = [x for x, gradient in zip(inputs, reached, strict=True) if gradient is not None]
        gradients = torch.autograd.grad(result.sum(), of, create_graph=True)
        penalty = sum(g.square().sum() + x.square().sum() for g, x in zip(gradients, of, strict=True))
        with pytest.raises(RuntimeError, match="no second derivative: call autograd without create_graph"):
            torch.autograd.grad(penalty, of)


def test_the_loss_reaches_the_index_branch_alone(device: torch.device) -> None:
    q, k, v, qi, ki = _inputs(device)
    batch = _batch(device)
    ids = ops.select_blocks(qi, ki, batch, block=BLOCK, topk=KEPT)
    assert not ids.requires_grad
    out, lse = ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=1.0)
    kl = ops.index_kl(q, k, lse, qi, ki, ids, batch, block=BLOCK, **SCALES)
    (kl + ops.index_kl_dense(q, k, lse, qi, ki, batch, **SCALES)).backward(retain_graph=True)
    assert q.grad is None
    assert k.grad is None
    assert qi.grad is not None
    assert qi.grad.any()
    assert ki.grad is not None
    assert ki.grad.any()
    qi.grad = ki.grad = None
    out.sum().backward()
    assert qi.grad is None
    assert ki.grad is None
    assert q.grad is not None
    assert k.grad is not None


def test_the_loss_is_a_mean_over_tokens_and_groups(device: torch.device) -> None:
    """The same rows twice give the same loss; tokens that see nothing count as 0."""
    q, k, _, qi, ki = _inputs(device)
    one, more = Batch.single(T, 110, device), torch.full((2 * T,), 50, dtype=torch.int32, device=device)
    once = ops.index_kl_dense(q, k, None, qi, ki, dataclasses.replace(one, visible=more[:T]), **SCALES)
    double = [torch.cat((x, x)) for x in (q, qi)]
    batch = dataclasses.replace(Batch.single(2 * T, 110, device), visible=more)
    twice = ops.index_kl_dense(double[0], k, None, double[1], ki, batch, **SCALES)
    torch.testing.assert_close(once, twice, rtol=1e-6, atol=1e-6)
    more[T:] = 0
    half = ops.index_kl_dense(double[0], k, None, double[1], ki, batch, **SCALES)
    torch.testing.assert_close(once / 2, half, rtol=1e-6, atol=1e-6)


def test_outputs_of_the_caller(device: torch.device) -> None:
    q, k, v, qi, ki = (x.detach() for x in _inputs(device))
    batch = _batch(device)
    ids = torch.full((T, G, KEPT), 77, dtype=torch.int32, device=device)
    assert ops.select_blocks(qi, ki, batch, block=BLOCK, topk=KEPT, out=ids) is ids
    assert torch.equal(ids, ops.select_blocks(qi, ki, batch, block=BLOCK, topk=KEPT))
    mine = torch.full_like(q, float("nan")), torch.full((T, H), float("nan"), device=device)
    ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=1.0, out=mine)
    for ours, fresh in zip(
        mine, ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=1.0), strict=True
    ):
        assert torch.equal(ours, fresh)


def test_pages_give_no_gradient(device: torch.device) -> None:
    q, qi = torch.randn(1, H, D, device=device, requires_grad=True), torch.randn(1, G, D, device=device)
    k, ki = torch.randn(3, BLOCK, G, D, device=device), torch.randn(3, BLOCK, D, device=device)
    pages = torch.tensor([[2, 0]], dtype=torch.int32, device=device)
    batch = Batch.packed([1], [50], device, pages)
    ids = ops.select_blocks(qi, ki, batch, block=BLOCK, topk=KEPT)
    with pytest.raises(ValueError, match=r"batch\.pages is given and a gradient wanted"):
        ops.sparse_attention(q, k, k, ids, batch, block=BLOCK, scale=1.0)
    with torch.no_grad():
        ops.sparse_attention(q, k, k, ids, batch, block=BLOCK, scale=1.0)
    with pytest.raises(ValueError, match=r"batch\.pages is given"):
        ops.index_kl_dense(q, k[0], None, qi, ki[0], batch, **SCALES)


@gpu
def test_a_graph_captures_a_whole_step(device: torch.device) -> None:
    """One decoded token: captured once, replayed on other numbers."""
    keys, shape = 5000, {"device": device, "dtype": torch.bfloat16}
    q, qi = torch.randn(1, 64, 128, **shape), torch.randn(1, 4, 128, **shape)
    k, v, ki = (torch.randn(*s, **shape) for s in ((keys, 4, 128), (keys, 4, 128), (keys, 128)))
    batch = Batch.single(1, keys, device)

    def step() -> tuple[Tensor, Tensor]:
        ids = ops.select_blocks(qi, ki, batch, block=128, topk=16)
        return ops.sparse_attention(q, k, v, ids, batch, block=128, scale=0.09)

    with torch.no_grad():
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        for x in (q, qi, k, v, ki):
            x.normal_()
        graph.replay()
        for ours, fresh in zip(captured, step(), strict=True):
            assert torch.equal(ours, fresh)


@gpu
@pytest.mark.parametrize("tokens", [1, 16])
def test_layers_in_a_graph_wait_for_each_other(device: torch.device, tokens: int) -> None:
    """Launches that start early read nothing that the one in front has yet to write."""
    first = torch.randn(tokens, 64, 128, device=device).bfloat16()
    layers = [
        [torch.randn(*s, device=device).bfloat16() for s in ((20_000, 4, 128), (20_000, 128))]
        for _ in range(8)
    ]
    batch = Batch.single(tokens, 20_000, device)

    def model(between: Callable[[], object]) -> Tensor:
        q = first
        for kv, ki in layers:
            ids = ops.select_blocks(q[:, :4], ki, batch, block=128, topk=16)
            between()
            out, _ = ops.sparse_attention(q, kv, kv, ids, batch, block=128, scale=0.09)
            between()
            q = torch.nn.functional.layer_norm(out, (128,))
        return q

    with torch.no_grad():
        model(torch.cuda.synchronize)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(lambda: None)
        for _ in range(30):
            first.normal_()
            graph.replay()
            assert torch.equal(captured, model(torch.cuda.synchronize))


def test_sequences_that_share_keys_touch_nothing_outside(device: torch.device) -> None:
    """They are not to, and what comes of it is open; but what lies behind the keys stays out of it."""
    keys, rows = 97, 24
    behind = torch.full((2, keys + 64, G, D), float("nan"), device=device)
    behind[:, :keys] = torch.randn(2, keys, G, D, device=device)
    q, qi = (torch.randn(2 * rows, n, D, device=device, requires_grad=True) for n in (H, G))
    k, v = (x[:keys].requires_grad_() for x in behind.clone())
    ki_behind = torch.full((keys + 64, D), float("nan"), device=device)
    ki_behind[:keys] = torch.randn(keys, D, device=device)
    ki = ki_behind[:keys].requires_grad_()
    batch = dataclasses.replace(
        Batch.packed([rows, rows], [keys, 0], device),
        key_lengths=torch.tensor([keys, keys], dtype=torch.int32, device=device),
        key_starts=torch.tensor([0, 0, keys], dtype=torch.int32, device=device),
        visible=torch.full((2 * rows,), keys, dtype=torch.int32, device=device),
    )
    ids = torch.arange(4, dtype=torch.int32, device=device).expand(2 * rows, G, 4).contiguous()
    out, lse = ops.sparse_attention(q, k, v, ids, batch, block=BLOCK, scale=D**-0.5)
    kl = ops.index_kl(q, k, lse, qi, ki, ids, batch, block=BLOCK, **SCALES)
    for gradient in torch.autograd.grad(out.sum() + kl, (q, k, v, qi, ki)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kernels", [True, False])
def test_rows_without_any_key(device: torch.device, monkeypatch: pytest.MonkeyPatch, kernels: bool) -> None:
    """Sequences of no keys, packed and in pages: ids of -1, zeros, a log-sum-exp of -inf, no loss."""
    monkeypatch.setattr(ops, "has_kernels", lambda x: kernels)
    q, qi = torch.randn(2, H, D, device=device), torch.randn(2, G, D, device=device)
    nothing = Batch(
        torch.tensor([0, 2], dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device), 2, 0,
    )  # fmt: skip
    pages = torch.zeros(1, 1, dtype=torch.int32, device=device)
    for batch, lead in ((nothing, (0,)), (dataclasses.replace(nothing, pages=pages), (1, BLOCK))):
        ki, k = torch.randn(*lead, D, device=device), torch.randn(*lead, G, D, device=device)
        ids = ops.select_blocks(qi, ki, batch, block=BLOCK, topk=KEPT)
        assert ids.tolist() == [[[-1] * KEPT] * G] * 2
        out, lse = ops.sparse_attention(q, k, k, ids, batch, block=BLOCK, scale=1.0)
        assert not out.any()
        assert (lse == float("-inf")).all()
        if batch.pages is None:
            ki.requires_grad_()
            for loss in (
                ops.index_kl(q, k, lse, qi, ki, ids, batch, block=BLOCK, **SCALES),
                ops.index_kl_dense(q, k, None, qi, ki, batch, **SCALES),
            ):
                assert loss == 0
