"""A layer's attention as the engine calls it: by kernels, and in plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import layer, plain_selection, reference
from pilotfish.kernels.batch import Batch

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SETTINGS = {"block": 32, "topk": 3, "scale": 0.125}


def _cached(device: torch.device, sequences: int, new: int, keys: int) -> tuple[Tensor, ...]:
    """q, k, v, qi, ki as the model and its cache give them: heads first, in buffers with room to grow."""
    H, G, D, room = 6, 2, 64, keys + 50

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    k, v = (random(sequences, G, room, D)[:, :, :keys] for _ in "kv")
    q, qi = (random(sequences, new, heads, D).transpose(1, 2) for heads in (H, G))
    return q, k, v, qi, random(sequences, room, D)[:, :keys]


@pytest.mark.parametrize(("sequences", "new", "keys"), [(1, 9, 130), (2, 3, 150), (1, 1, 130)])
def test_kernels_and_plain_torch_agree(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, sequences: int, new: int, keys: int
) -> None:
    inputs, batch = _cached(device, sequences, new, keys), Batch.single(new, keys, device)
    monkeypatch.setattr(layer, "has_kernels", lambda *_: False)
    plain = layer.selected_attention(*inputs, batch, **SETTINGS)
    monkeypatch.setattr(layer, "has_kernels", lambda *_: True)
    torch.testing.assert_close(
        layer.selected_attention(*inputs, batch, **SETTINGS), plain, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("sequences", "tokens"), [(2, 100), (1, 33)])
def test_training_is_the_same_packed_and_masked(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, sequences: int, tokens: int
) -> None:
    """Attention, loss and every gradient, of several sequences at once and of ones within the budget."""
    results = []
    for kernels in (False, True):
        torch.manual_seed(0)
        inputs = [x.detach().contiguous() for x in _cached(device, sequences, tokens, tokens)]
        for x in inputs:
            x.requires_grad_()
        monkeypatch.setattr(layer, "has_kernels", lambda *_, here=kernels: here)
        out, loss = layer.trained_attention(*inputs, **SETTINGS, rows=tokens)
        (out.sin().sum() + 3 * loss).backward()
        results.append([out.detach(), loss.detach(), *(x.grad for x in inputs)])
    for masked, packed in zip(*results, strict=True):
        torch.testing.assert_close(packed, masked, rtol=1e-4, atol=1e-5)
        assert masked.abs().max() > 1e-3


def test_under_autocast_types_may_differ(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, qi, ki = _cached(device, 1, 6, 100)
    monkeypatch.setattr(layer, "has_kernels", lambda *_: True)
    with torch.autocast(device.type, torch.bfloat16):
        mixed = layer.selected_attention(
            q, k, v.bfloat16(), qi, ki.bfloat16(), Batch.single(6, 100, device), **SETTINGS
        )
    assert mixed.dtype == torch.bfloat16
    plain = [x.bfloat16() for x in (q, k, v, qi, ki)]
    assert torch.equal(mixed, layer.selected_attention(*plain, Batch.single(6, 100, device), **SETTINGS))


def test_choosing_a_few_rows_and_keys_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, _, qi, ki = _cached(torch.device("cpu"), 2, 70, 333)
    ki[:, 5], qi[0, 1, 3] = float("nan"), float("inf")
    scores = reference.block_scores(qi, ki, 263, 32)
    at_once = reference.select_blocks(scores, 263, 32, 4)
    monkeypatch.setattr(reference, "CHOOSE_ROWS", 9)
    monkeypatch.setattr(reference, "SCORES_AT_ONCE", 2 * 2 * 9 * 64)
    torch.testing.assert_close(reference.block_scores(qi, ki, 263, 32), scores)
    assert torch.equal(reference.choose_blocks(qi, ki, 263, 32, 4), at_once)
    assert reference.choose_blocks(qi[:1, :, :1], ki[:1, :1], 0, 32, 4).tolist() == [[[[0]], [[0]]]]


def test_scores_that_are_no_numbers_cost_no_forced_block(device: torch.device) -> None:
    """As the kernels have it: infinities rank below a forced block, and above what is not seen."""
    qi, ki = torch.ones(1, 2, 3, 64, device=device), torch.randn(1, 320, 64, device=device)
    ki[0, :64], ki[0, 64], ki[0, 96:128], ki[0, 128:160] = math.inf, math.nan, -math.inf, math.nan
    batch, options = Batch.single(3, 320, device), {"block": 32, "local": 2, "init": 1}
    for topk in (3, 4, 5, 16):
        ids = reference.choose_blocks(qi, ki, 317, topk=topk, **options)
        wanted = plain_selection.select_blocks(qi[0].transpose(0, 1), ki[0], batch, topk=topk, **options)
        assert torch.equal(ids[0].transpose(0, 1), wanted[..., : ids.shape[-1]])
    assert ids[0, 0, 0].tolist() == [*range(10)]


def test_autocast_does_not_change_the_choice(device: torch.device) -> None:
    _, _, _, qi, ki = _cached(device, 2, 70, 333)
    with torch.autocast(device.type, torch.bfloat16):
        ids = reference.choose_blocks(qi, ki, 263, 32, 4)
    assert torch.equal(ids, reference.choose_blocks(qi, ki, 263, 32, 4))


@gpu
@pytest.mark.parametrize(("new", "keys"), [(1, 130), (40, 40), (40, 300)])
def test_dense_layers_on_the_gpu(device: torch.device, new: int, keys: int) -> None:
    """bf16 behind a prefix takes flash attention's own causal mask: the newest query sees the newest key."""
    q, k, v, _, _ = _cached(device, 2, new, keys)
    exact = reference.dense_attention(q, k, v, keys - new, 0.125)
    rough = reference.dense_attention(*(x.bfloat16() for x in (q, k, v)), keys - new, 0.125)
    torch.testing.assert_close(rough.float(), exact, rtol=2e-2, atol=2e-2)
