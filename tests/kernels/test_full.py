"""Full attention of a chunk to a long prefix, in pieces, against one pass over all keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pilotfish.kernels import full
from pilotfish.kernels.full import Attended, attend_to_long_prefix
from pilotfish.kernels.layer import full_attention
from pilotfish.kernels.reference import dense_attention

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _plain(q: Tensor, k: Tensor, v: Tensor, scale: float, last: bool = False) -> Attended:
    times = q.shape[1] // k.shape[1]
    x = scale * q @ k.repeat_interleave(times, 1).transpose(-1, -2)
    if last:
        unseen = torch.ones_like(x, dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        x = x.masked_fill(unseen, -torch.inf)
    return x.softmax(-1) @ v.repeat_interleave(times, 1), x.logsumexp(-1)


def _plain_last(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Attended:
    return _plain(q, k, v, scale, last=True)


@pytest.mark.parametrize("start", [3, 8, 27, 83])
@pytest.mark.parametrize("shift", [0.0, 200.0, -200.0])
def test_pieces_add_up_to_the_whole(device: torch.device, start: int, shift: float) -> None:
    """shift: added to the scores of the first keys, so that they take all or nothing of the weights."""
    T, H, G, D = 7, 6, 2, 16
    q = torch.randn(1, H, T, D, device=device, dtype=torch.float64)
    k, v = (torch.randn(1, G, start + T, D, device=device, dtype=torch.float64) for _ in "kv")
    q[..., 0], k[..., 0], k[:, :, :8, 0] = 1.0, 0.0, shift
    ours = attend_to_long_prefix(q, k, v, 0.3, _plain, _plain_last, piece=8)
    wanted = dense_attention(q, k, v, start, 0.3)
    torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-6)


def test_pieces_have_few_sizes() -> None:
    sizes: set[int] = set()

    def note(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Attended:
        sizes.add(k.shape[2])
        return _plain(q, k, v, scale)

    for start in range(80):
        k = torch.randn(1, 1, 2 + start, 4)
        attend_to_long_prefix(torch.randn(1, 1, 2, 4), k, k, 1.0, note, _plain_last, piece=4)
    assert sizes == {4, 8, 16, 32, 64}


@gpu
@pytest.mark.parametrize(("H", "G", "D"), [(6, 2, 64), (16, 1, 128)])
@pytest.mark.parametrize("before", [full.PIECE, 3 * full.PIECE + 1234])
def test_a_gpu_attends_as_in_one_pass(device: torch.device, H: int, G: int, D: int, before: int) -> None:
    T = full.CHUNK
    q = torch.randn(1, H, T, D, device=device).bfloat16()
    k, v = (torch.randn(1, G, before + T, D, device=device).bfloat16() for _ in "kv")
    assert full.takes(q, k) == (torch.cuda.get_device_capability()[0] == 9)
    ours = full_attention(q, k, v, D**-0.5)
    wanted = dense_attention(q, k, v, before, D**-0.5)
    assert (ours.float() - wanted.float()).norm() < 1e-2 * wanted.float().norm()
    assert torch.equal(ours, full_attention(q, k, v, D**-0.5))
