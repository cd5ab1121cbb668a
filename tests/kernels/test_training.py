"""Gradients of sparse attention and the index branch's loss, kernels and twins, against autograd in fp64."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import backward, plain_training, training, warmup
from pilotfish.kernels.batch import Batch

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# Relative error: what is rounded is the operands of the products and the results.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


class Case(NamedTuple):
    """The inputs of one layer."""

    q: Tensor
    k: Tensor
    v: Tensor
    qi: Tensor
    ki: Tensor
    ids: Tensor
    dout: Tensor
    dlse: Tensor
    batch: Batch
    block: int

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    @property
    def index_scale(self) -> float:
        return self.qi.shape[-1] ** -0.5


def _case(
    queries: list[int],
    keys: list[int],
    device: torch.device,
    *,
    heads: int = 4,
    groups: int = 2,
    width: int = 64,
    block: int = 32,
    kept: int = 3,
    dtype: torch.dtype = torch.float32,
) -> Case:
    T, N = sum(queries), sum(keys)
    single = len(keys) == 1
    batch = Batch.single(T, N, device) if single else Batch.packed(queries, keys, device)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    return Case(
        q=random(T, heads, width),
        k=random(N, groups, width),
        v=random(N, groups, width),
        qi=random(T, groups, width),
        ki=random(N, width),
        ids=_random_ids(batch, T, groups, kept, block),
        dout=random(T, heads, width),
        dlse=torch.randn(T, heads, device=device),
        batch=batch,
        block=block,
    )


def _random_ids(batch: Batch, tokens: int, groups: int, kept: int, block: int) -> Tensor:
    """Random visible blocks, each token's own among them, ascending, padded with -1."""
    seen_T = batch.row_visible(tokens)
    blocks = -(-int(seen_T.max()) // block) if tokens else 0
    own_T = (seen_T - 1) // block
    block_C = torch.arange(blocks, device=seen_T.device)
    order_TGC = torch.rand(tokens, groups, blocks, device=seen_T.device)
    order_TGC = order_TGC.masked_fill((block_C > own_T[:, None])[:, None], 2.0)
    order_TGC = order_TGC.masked_fill((block_C == own_T[:, None])[:, None], -1.0)
    ranked, ids = order_TGC.sort(dim=-1)
    ids = ids.masked_fill(ranked == 2.0, blocks)[..., :kept].sort(dim=-1).values
    ids = torch.nn.functional.pad(ids, (0, max(0, kept - blocks)), value=blocks)
    return ids.masked_fill(ids == blocks, -1).int()


def _seen(c: Case, ids: Tensor | None) -> Tensor:
    """Which (token, group, key) triples the main branch sees, from the definition: bool [T, G, N]."""
    T, N, G = len(c.q), len(c.k), c.k.shape[1]
    sequence_T, visible_T = c.batch.row_sequences(T).tolist(), c.batch.row_visible(T).tolist()
    starts = [0] if c.batch.key_starts is None else c.batch.key_starts.tolist()
    seen = torch.zeros(T, G, N, dtype=torch.bool)
    for t in range(T):
        if sequence_T[t] == c.batch.sequences:
            continue
        first = starts[sequence_T[t]]
        for g in range(G):
            kept = range(-(-visible_T[t] // c.block)) if ids is None else set(ids[t, g].tolist())
            for b in kept:
                if b >= 0 and b * c.block < visible_T[t]:
                    end = min((b + 1) * c.block, visible_T[t])
                    seen[t, g, first + b * c.block : first + end] = True
    return seen.to(c.q.device)


class Truth(NamedTuple):
    """A layer's results and gradients in fp64."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    loss: Tensor
    dqi: Tensor
    dki: Tensor


def _truth(c: Case, ids: Tensor | None) -> Truth:
    seen = _seen(c, ids)
    leaves = [x.double().requires_grad_() for x in (c.q, c.k, c.v, c.qi, c.ki)]
    q, k, v, qi, ki = leaves
    grouped = q.unflatten(1, (k.shape[1], -1))
    blind = ~seen.any(-1)
    scores = torch.einsum("tgrd,ngd->tgrn", grouped, k) * c.scale
    scores = scores.masked_fill(~seen[:, :, None], -1e30)
    lse = scores.logsumexp(-1)
    p = scores.softmax(-1).masked_fill(~seen[:, :, None], 0)
    out = torch.einsum("tgrn,ngd->tgrd", p, v)
    by_lse = c.dlse.double().view_as(lse).masked_fill(blind[..., None], 0)
    dq, dk, dv = torch.autograd.grad((out, lse), (q, k, v), (c.dout.double().view_as(out), by_lse))
    teacher = p.mean(2).detach()
    student = (torch.einsum("tgi,ni->tgn", qi, ki) * c.index_scale).masked_fill(~seen, -1e30).log_softmax(-1)
    terms = torch.xlogy(teacher, teacher) - teacher * student
    loss = terms.masked_fill(~seen, 0).sum()
    dqi, dki = torch.autograd.grad(loss, (qi, ki))
    lse = lse.masked_fill(blind[..., None], float("-inf"))
    return Truth(out.flatten(1, 2).detach(), lse.flatten(1).detach(), dq, dk, dv, loss.detach(), dqi, dki)


def _close(name: str, ours: Tensor, truth: Tensor, tolerance: float) -> None:
    assert ours.shape == truth.shape, name
    assert ours.isfinite().all(), name
    error = (ours.double() - truth).norm() / truth.norm().clamp(min=1)  # some are zero
    assert error <= tolerance, (name, float(error))


def _check(c: Case, *, ids: Tensor | None = None) -> None:
    """Both kernels and both twins against fp64; `ids` is what the case's ids mean, if they are untidy."""
    truth = _truth(c, c.ids if ids is None else ids)
    tolerance = TOLERANCE[c.q.dtype]
    out, lse = truth.out.to(c.q.dtype), truth.lse.float()
    results = (c.dout, c.dlse, c.q, c.k, c.v, c.ids, out, lse, c.batch)
    for differentiate in (backward.sparse_attention_backward, plain_training.plain_sparse_attention_backward):
        for name, ours in zip(
            ("dq", "dk", "dv"), differentiate(*results, block=c.block, scale=c.scale), strict=True
        ):
            _close(f"{differentiate.__name__} {name}", ours, getattr(truth, name), tolerance)
    scales = {"block": c.block, "scale": c.scale, "index_scale": c.index_scale}
    for lose in (training.index_kl, plain_training.plain_index_kl):
        loss, dqi, dki = lose(c.q, c.k, lse, c.qi, c.ki, c.ids, c.batch, **scales)
        for name, ours in (("loss", loss), ("dqi", dqi), ("dki", dki)):
            _close(f"{lose.__name__} {name}", ours, getattr(truth, name), tolerance)


def _check_dense(c: Case) -> None:
    truth, tolerance = _truth(c, None), TOLERANCE[c.q.dtype]
    scales = {"scale": c.scale, "index_scale": c.index_scale}
    for lose in (warmup.index_kl_dense, plain_training.plain_index_kl_dense):
        loss, dqi, dki = lose(c.q, c.k, None, c.qi, c.ki, c.batch, **scales)
        for name, ours in (("loss", loss), ("dqi", dqi), ("dki", dki)):
            _close(f"{lose.__name__} {name}", ours, getattr(truth, name), tolerance)


@pytest.mark.parametrize("keys", [1, 127, 128, 129])
def test_lengths_at_edges_of_blocks(device: torch.device, keys: int) -> None:
    c = _case([min(keys, 3)], [keys], device, block=64)
    _check(c)
    _check_dense(c)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "block", "kept"),
    [(2, 2, 64, 32, 2), (6, 2, 64, 32, 4), (16, 1, 64, 64, 3), (4, 4, 128, 128, 1), (5, 1, 64, 32, 17)],
)
def test_group_head_and_block_sizes(
    device: torch.device, heads: int, groups: int, width: int, block: int, kept: int
) -> None:
    c = _case([5], [150], device, heads=heads, groups=groups, width=width, block=block, kept=kept)
    _check(c)
    _check_dense(c)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(device: torch.device, dtype: torch.dtype) -> None:
    c = _case([6], [100], device, dtype=dtype)
    _check(c)
    _check_dense(c)


def test_packed_sequences_with_empty_and_padded_ones(device: torch.device) -> None:
    c = _case([5, 0, 1, 6, 3], [40, 33, 0, 70, 3], device)
    # A row of a sequence without keys, as padding in a CUDA graph: it sees nothing.
    assert c.batch.row_visible(len(c.q))[5] == 0
    _check(c)
    _check_dense(c)


def test_tokens_that_each_see_a_number_of_their_own(device: torch.device) -> None:
    c = _case([6], [100], device)
    visible = torch.tensor([0, 1, 32, 33, 100, 7], dtype=torch.int32, device=device)
    batch = dataclasses.replace(c.batch, visible=visible)
    c = c._replace(batch=batch, ids=_random_ids(batch, 6, 2, 3, 32))
    _check(c)
    _check_dense(c)


def test_untidy_ids(device: torch.device) -> None:
    """What names no block is left out, repeats count once, order is free."""
    c = _case([3], [100], device, kept=5)
    rows = [[3, 0, 3, -1, 1], [-7, 2, 2, 2**31 - 1, 0], [9, 3, -1, -1, 3]]
    ids = torch.tensor(rows, dtype=torch.int32, device=device)[:, None].expand(-1, 2, -1)
    _check(c._replace(ids=ids), ids=ids)


def test_as_many_tokens_as_heads(device: torch.device) -> None:
    """Layouts that swap tokens and heads cannot hide behind equal sizes."""
    _check(_case([4], [90], device, heads=4, groups=4))


def test_strides_and_poisoned_memory(device: torch.device) -> None:
    """Keys beside values in one buffer, heads first, as the engine's cache; what is not used is NaN."""
    c = _case([7], [75], device)
    N, G, D = c.k.shape
    both = torch.full((G, N + 60, 2, D), float("nan"), device=device)
    both[:, :N, 0], both[:, :N, 1] = c.k.transpose(0, 1), c.v.transpose(0, 1)
    index = torch.full((N + 60, 2 * D), float("nan"), device=device)
    index[:N, :D] = c.ki
    k, v = (both[:, :, i].transpose(0, 1) for i in (0, 1))
    wide = torch.full((7, 6, D), float("nan"), device=device)
    wide[:, 1:5] = c.q
    truth = _truth(c, c.ids)
    results = (c.dout, c.dlse, wide[:, 1:5], k, v, c.ids, truth.out.float(), truth.lse.float(), c.batch)
    dq, dk, dv = backward.sparse_attention_backward(*results, block=c.block, scale=c.scale)
    for name, ours in (("dq", dq), ("dk", dk[:N]), ("dv", dv[:N])):
        _close(name, ours, getattr(truth, name), 5e-6)
    assert not dk[N:].any()
    assert not dv[N:].any()
    scales = {"scale": c.scale, "index_scale": c.index_scale}
    index_inputs = (wide[:, 1:5], k, truth.lse.float(), c.qi, index[:, :D])
    loss, dqi, dki = training.index_kl(*index_inputs, c.ids, c.batch, block=c.block, **scales)
    for name, ours in (("loss", loss), ("dqi", dqi), ("dki", dki[:N])):
        _close(name, ours, getattr(truth, name), 5e-6)
    loss, dqi, dki = warmup.index_kl_dense(*index_inputs, c.batch, **scales)
    for name, ours in (("loss", loss), ("dqi", dqi), ("dki", dki[:N])):
        _close(f"dense {name}", ours, getattr(truth, name), 5e-6)  # all three blocks are chosen
    assert not dki[N:].any()


def test_pieces_and_chunks_change_nothing_but_rounding(device: torch.device) -> None:
    """Lists cut into pieces of eight and queries taken in chunks: the same sums in another order."""
    c = _case([20], [130], device, heads=6)
    truth = _truth(c, c.ids)
    results = (c.dout, c.dlse, c.q, c.k, c.v, c.ids, truth.out.float(), truth.lse.float(), c.batch)
    few_bytes = 12 * 6 * 3 * 64 * 4
    cut = backward.Tiles(rows=16, warps=4, stages=1, piece=8)
    gradients = backward.sparse_attention_backward(
        *results, block=c.block, scale=c.scale, tiles=cut, slot_bytes=few_bytes
    )
    for name, ours in zip(("dq", "dk", "dv"), gradients, strict=True):
        _close(name, ours, getattr(truth, name), 5e-6)
    loss, dqi, dki = training.index_kl(
        c.q, c.k, truth.lse.float(), c.qi, c.ki, c.ids, c.batch,
        block=c.block, scale=c.scale, index_scale=c.index_scale,
        tiles=training.Tiles(rows=16, warps=4, stages=1, piece=16), slot_bytes=few_bytes // 6,
    )  # fmt: skip
    for name, ours in (("loss", loss), ("dqi", dqi), ("dki", dki)):
        _close(name, ours, getattr(truth, name), 5e-6)


def test_two_runs_give_the_same_bits(device: torch.device) -> None:
    """All but the dense loss's gradient of the index keys, which atomics add."""
    c = _case([12], [100], device, dtype=torch.float16)
    truth = _truth(c, c.ids)
    results = (c.dout, c.dlse, c.q, c.k, c.v, c.ids, truth.out.half(), truth.lse.float(), c.batch)
    scales = {"scale": c.scale, "index_scale": c.index_scale}
    runs = [
        (
            *backward.sparse_attention_backward(*results, block=c.block, scale=c.scale),
            *training.index_kl(
                c.q, c.k, truth.lse.float(), c.qi, c.ki, c.ids, c.batch, block=c.block, **scales
            ),
            *warmup.index_kl_dense(c.q, c.k, None, c.qi, c.ki, c.batch, **scales)[:2],
        )
        for _ in range(2)
    ]
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


def test_an_untrained_student_and_a_perfect_one(device: torch.device) -> None:
    """The loss is 0 where the index branch scores as the main branch does, and its gradient with it."""
    c = _case([10], [80], device, heads=1, groups=1)
    lse = _truth(c, c.ids).lse.float()
    scales = {"block": c.block, "scale": c.scale, "index_scale": c.scale}
    loss, dqi, dki = training.index_kl(c.q, c.k, lse, c.q, c.k[:, 0], c.ids, c.batch, **scales)
    assert abs(float(loss)) < 1e-5
    assert max(float(dqi.abs().max()), float(dki.abs().max())) < 1e-6
    other, _, _ = training.index_kl(c.q, c.k, lse, c.qi, c.ki, c.ids, c.batch, **scales)
    assert float(other) > 0.1


def test_nothing_at_all(device: torch.device) -> None:
    """No tokens; no blocks kept; no keys."""
    for c in (_case([0], [50], device), _case([3], [50], device, kept=0), _case([0, 0], [0, 0], device)):
        _check(c)
        _check_dense(c)
    c = _case([2, 0], [40, 0], device)
    padded = dataclasses.replace(c.batch, key_lengths=torch.zeros_like(c.batch.key_lengths), max_keys=0)
    _check(c._replace(batch=padded))
    _check_dense(c._replace(batch=padded))


@gpu
@pytest.mark.parametrize("keys", [2047, 2048, 2049, 100_003])
def test_long_on_the_gpu(device: torch.device, keys: int) -> None:
    """M3's shape, against the twins in fp64."""
    queries = min(keys, 1024)
    shape = {"heads": 64, "groups": 4, "width": 128, "block": 128, "kept": 16, "dtype": torch.bfloat16}
    c = _case([queries], [keys], device, **shape)  # type: ignore[arg-type]
    from pilotfish.kernels.plain_attention import plain_sparse_attention

    double = c._replace(**{n: getattr(c, n).double() for n in ("q", "k", "v", "qi", "ki", "dout")})
    out, lse = plain_sparse_attention(double.q, double.k, double.v, c.ids, c.batch, block=128, scale=c.scale)
    options = {"block": 128, "scale": c.scale}
    ours = backward.sparse_attention_backward(
        c.dout, c.dlse, c.q, c.k, c.v, c.ids, out.bfloat16(), lse.float(), c.batch, **options
    )
    theirs = plain_training.plain_sparse_attention_backward(
        double.dout, c.dlse.double(), double.q, double.k, double.v, c.ids, out, lse, c.batch, **options
    )
    options["index_scale"] = c.index_scale
    ours += training.index_kl(c.q, c.k, lse.float(), c.qi, c.ki, c.ids, c.batch, **options)
    theirs += plain_training.plain_index_kl(
        double.q, double.k, lse, double.qi, double.ki, c.ids, c.batch, **options
    )
    for name, a, b in zip(("dq", "dk", "dv", "loss", "dqi", "dki"), ours, theirs, strict=True):
        _close(name, a, b, 1e-2)
