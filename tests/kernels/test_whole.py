"""Full attention of single tokens over pages, against torch's own attention on keys laid end to end."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from pilotfish.kernels.batch import Batch
from pilotfish.kernels.whole import whole_attention


def paged(
    lengths: list[int], block: int, G: int, D: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, Batch]:
    """Random pages in a random order, some of them nobody's and full of NaN, and who has which."""
    each = [-(-length // block) for length in lengths]
    order = torch.randperm(sum(each) + 3)
    k, v = (torch.full((len(order), block, G, D), float("nan"), dtype=dtype) for _ in range(2))
    pages = torch.zeros(len(lengths), max(each) + 2, dtype=torch.int32)
    for s, (first, end) in enumerate(itertools.pairwise([0, *itertools.accumulate(each)])):
        own = order[first:end]
        pages[s, : len(own)] = own
        k[own], v[own] = torch.randn(2, len(own), block, G, D).to(dtype)
    batch = Batch.packed([1 if n else 0 for n in lengths], lengths, device, pages=pages.to(device))
    return k.to(device), v.to(device), batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("block", "D", "lengths"), [(32, 64, [1, 700, 33, 2100]), (128, 128, [513, 64])])
def test_every_row_is_full_attention(
    device: torch.device, dtype: torch.dtype, block: int, D: int, lengths: list[int]
) -> None:
    G, H = 2, 6
    k, v, batch = paged(lengths, block, G, D, dtype, device)
    q = torch.randn(len(lengths), H, D).to(device, dtype)
    out = whole_attention(q, k, v, batch, block=block, scale=0.1)
    assert batch.pages is not None
    for s, length in enumerate(lengths):
        own = batch.pages[s, : -(-length // block)].long()
        keys, values = (x[own].flatten(0, 1)[:length].transpose(0, 1)[None].float() for x in (k, v))
        expected = F.scaled_dot_product_attention(
            q[s][None, :, None].float(), keys, values, scale=0.1, enable_gqa=True
        )[0, :, 0]
        assert (out[s].float() - expected).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)


def test_a_row_without_a_sequence_is_zeros(device: torch.device) -> None:
    k, v, both = paged([40, 40], 32, 2, 64, torch.float32, device)
    lengths = torch.tensor([40, 0], dtype=torch.int32, device=device)
    out = whole_attention(
        torch.randn(2, 4, 64, device=device), k, v, replace(both, key_lengths=lengths), block=32, scale=1.0
    )
    assert out[0].abs().max() > 0
    assert out[1].abs().max() == 0


def test_what_is_not_accepted_is_named(device: torch.device) -> None:
    k, v, batch = paged([40, 40], 32, 2, 64, torch.float32, device)
    with pytest.raises(ValueError, match=r"batch has 2 sequences of up to 1 new tokens in pages: .* 3 rows"):
        whole_attention(torch.randn(3, 4, 64, device=device), k, v, batch, block=32, scale=1.0)
    single = Batch.single(1, 64, device)
    with pytest.raises(ValueError, match="batch has 1 sequences"):
        whole_attention(torch.randn(1, 4, 64, device=device), k[0], v[0], single, block=32, scale=1.0)
