"""The 3D vision tower and the projector.

Patches of up to four temporal patches (eight video frames, or the four frames of a clip) attend to each
other in both directions; position enters by a rotary embedding over time, height and width. Each patch is
projected to the text width first, then 2x2 neighbours are merged into one token.

Shape legend: P patches, S patches of one segment, D head width, V vision width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilotfish.model.config import M3Config, VisionConfig
from pilotfish.model.layers import rotate
from pilotfish.model.regions import region

Grid = tuple[int, int, int]  # temporal patches, patch rows, patch columns of one segment


def axial_rotary(grid: Grid, config: VisionConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [S, width] in fp32 for one segment, in the order patches come: 2x2 blocks, row by row."""
    t, h, w = grid
    m = config.spatial_merge_size
    rows = torch.arange(h, device=device).view(h // m, 1, m, 1).expand(-1, w // m, -1, m).flatten()
    columns = torch.arange(w, device=device).view(1, w // m, 1, m).expand(h // m, -1, m, -1).flatten()
    times = torch.arange(t, device=device).repeat_interleave(h * w)
    per_axis = 2 * ((config.head_dim // 3) // 2)
    frequencies = config.rope_theta ** (
        -torch.arange(0, per_axis, 2, device=device, dtype=torch.float32) / max(per_axis, 1)
    )
    axes = (times, rows.repeat(t), columns.repeat(t))
    angles = torch.cat([axis.float()[:, None] * frequencies for axis in axes], dim=-1)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class VisionAttention(nn.Module):
    def __init__(self, config: VisionConfig):
        super().__init__()
        self.heads = config.num_attention_heads
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x_BSV: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            projection(x_BSV).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(rotate(q, *rotary), rotate(k, *rotary), v)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class VisionMLP(nn.Module):
    def __init__(self, config: VisionConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class VisionLayer(nn.Module):
    def __init__(self, config: VisionConfig):
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = VisionAttention(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = VisionMLP(config)

    @region
    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x), rotary)
        return x + self.mlp(self.layer_norm2(x))


class PatchEmbedding(nn.Module):
    """A 3D convolution whose stride is its size, so one matrix product per patch; no bias."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        size = (config.num_channels, config.temporal_patch_size, config.patch_size, config.patch_size)
        self.weight = nn.Parameter(torch.empty(config.hidden_size, *size))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, patches: Tensor) -> Tensor:
        return F.linear(patches.to(self.weight.dtype), self.weight.flatten(1))


class VisionEmbeddings(nn.Module):
    def __init__(self, config: VisionConfig):
        super().__init__()
        self.patch_embedding = PatchEmbedding(config)


class VisionEncoder(nn.Module):
    def __init__(self, config: VisionConfig):
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.num_hidden_layers))


class VisionModel(nn.Module):
    """Patch vectors in, patch features out. There is no norm after the last layer."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.config = config
        self.embeddings = VisionEmbeddings(config)
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)  # the published spelling
        self.encoder = VisionEncoder(config)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Features [P, V] of the patches [P, patch_dim] of all segments, one after another.

        Neighbouring segments of one grid run as one batch.
        """
        x_PV = self._embedded(patches)
        parts, first = [], 0
        for grid, run in groupby(grids):
            count, size = len(list(run)), grid[0] * grid[1] * grid[2]
            x = x_PV[first : first + count * size].unflatten(0, (count, size))
            rotary = axial_rotary(grid, self.config, x.device)
            for layer in self.encoder.layers:
                x = layer(x, rotary)
            parts.append(x.flatten(0, 1))
            first += count * size
        if first != x_PV.shape[0]:
            raise ValueError(
                f"the grids {list(grids)} describe {first} patches, but {x_PV.shape[0]} were given"
            )
        return torch.cat(parts)

    @region
    def _embedded(self, patches: Tensor) -> Tensor:
        x_PV = self.embeddings.patch_embedding(patches).to(self.pre_layrnorm.weight.dtype)
        return self.pre_layrnorm(x_PV)


class VisionTower(nn.Module):
    def __init__(self, config: VisionConfig):
        super().__init__()
        self.vision_model = VisionModel(config)


class TwoLayer(nn.Module):
    """linear, exact GELU, linear: the projector and the patch merger."""

    def __init__(self, width_in: int, width: int, width_out: int):
        super().__init__()
        self.linear_1 = nn.Linear(width_in, width)
        self.linear_2 = nn.Linear(width, width_out)

    @region
    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.gelu(self.linear_1(x)))


def projector(config: M3Config) -> TwoLayer:
    """Vision width to text width, patch by patch."""
    return TwoLayer(config.vision.hidden_size, config.projector_hidden_size, config.text.hidden_size)


def patch_merger(config: M3Config) -> TwoLayer:
    """Four neighbouring projected patches to one token."""
    merged = config.text.hidden_size * config.vision.spatial_merge_size**2
    return TwoLayer(merged, config.projector_hidden_size, config.text.hidden_size)
