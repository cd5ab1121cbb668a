"""The ways of a CPU through small parts, against the plain ones."""

from __future__ import annotations

import pytest
import torch

from pilotfish.model.layers import GemmaRMSNorm, norm_and_rotate, rotate, text_rotary


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("width", [0, 6, 16])
def test_norms_and_rotated_heads_equal_the_plain_ones(dtype: torch.dtype, near: float, width: int) -> None:
    norm = GemmaRMSNorm(16, 1e-6).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x_BTHD = torch.randn(2, 9, 3, 16).to(dtype)
    given = x_BTHD.clone()
    rotary = text_rotary(torch.arange(5, 14), width, 1e4)
    plain = norm(x_BTHD), rotate(norm(x_BTHD.transpose(1, 2)), *rotary).transpose(1, 2)
    with torch.no_grad():
        fast = norm(x_BTHD), norm_and_rotate(norm, x_BTHD, *rotary)
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(other, one, rtol=near, atol=near, check_dtype=True)
    assert torch.equal(x_BTHD, given)
