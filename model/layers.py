"""Small parts shared by the towers: norms, rotary embedding, gated MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilotfish.model.regions import region


class GemmaRMSNorm(nn.Module):
    """RMS norm in fp32 that scales by `1 + weight`; every norm of the text tower is one."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    @region
    def forward(self, x: Tensor) -> Tensor:
        if _on_cpu(x):
            return self.scaled(x).to(x.dtype)
        return F.rms_norm(x.float(), x.shape[-1:], 1.0 + self.weight.float(), self.eps).to(x.dtype)

    def scaled(self, x: Tensor) -> Tensor:
        """The norm in fp32 and few passes; torch's own, on a CPU, takes twice the time. No gradients."""
        wide = x.float()
        size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        mean = size.square_().mul_(1 / x.shape[-1])
        return (wide * mean.add_(self.eps).rsqrt_()).mul_(1.0 + self.weight.float())


def _on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.is_grad_enabled()


def norm_and_rotate(norm: GemmaRMSNorm, x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Normalised and rotated heads, [B, T, H, D]; cos and sin as `text_rotary` gives them."""
    cos, sin = cos[:, None], sin[:, None]
    if not _on_cpu(x_BTHD):
        return rotate(norm(x_BTHD), cos, sin)
    turned, half = norm.scaled(x_BTHD), cos.shape[-1] // 2
    first, second = turned[..., :half], turned[..., half : 2 * half]
    cos, sin = cos[..., :half], sin[..., :half]
    aside = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(aside)
    return turned.to(x_BTHD.dtype)


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
