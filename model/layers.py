"""Small parts shared by the towers: norms, rotary embedding, gated MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GemmaRMSNorm(nn.Module):
    """RMS norm in fp32 that scales by `1 + weight`; every norm of the text tower is one."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], 1.0 + self.weight.float(), self.eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in split halves over the first `cos.shape[-1]` channels; the rest pass unchanged."""
    width = cos.shape[-1]
    turned, passed = x[..., :width].to(cos.dtype), x[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned.to(x.dtype), passed), dim=-1)


def text_rotary(positions_T: Tensor, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [T, width] in fp32 for one-dimensional positions."""
    frequencies = theta ** (
        -torch.arange(0, width, 2, device=positions_T.device, dtype=torch.float32) / max(width, 1)
    )
    angles = positions_T.float()[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float, beta: float) -> Tensor:
    """SwiGLU-OAI: (up + beta) * gate * sigmoid(alpha * gate); gate clamped from above, up on both sides."""
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (up + beta) * gate * torch.sigmoid(alpha * gate)
