"""Where attention goes: how much of it the chosen blocks hold, and how much of it text gives to pictures.

Shape legend: B batch, H heads, G KV groups, T tokens, R of them that are looked at, N keys, C blocks, D head
width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pilotfish.kernels import reference as msa
from pilotfish.model.layers import norm_and_rotate
from pilotfish.model.m3 import M3
from pilotfish.model.text import Attention

ROWS = 192  # tokens of a sequence that are looked at


@dataclass
class Seen:
    """One layer's queries [B, H, T, D], keys [B, G, N, D], and index queries and keys if it is sparse."""

    layer: int
    attention: Attention
    q: Tensor
    k: Tensor
    index: tuple[Tensor, Tensor] | None

    def weights(self, rows_R: Tensor) -> Tensor:
        """Full attention of these tokens, whatever the layer chose: fp32 [B, H, R, N]."""
        B, H, _, D = self.q.shape
        G, N = self.k.shape[1:3]
        q = self.q[:, :, rows_R].float().reshape(B, G, H // G, len(rows_R), D)
        logits = q @ self.k.float().transpose(-1, -2)[:, :, None] * D**-0.5
        hidden = torch.arange(N, device=q.device) > rows_R[:, None]
        return logits.masked_fill(hidden, float("-inf")).softmax(-1).flatten(1, 2)

    def chosen(self) -> Tensor | None:
        """The blocks each group keeps, [B, G, T, K]; None in a dense layer."""
        if self.index is None:
            return None
        c = self.attention.config
        return msa.choose_blocks(*self.index, 0, c.block_size, c.topk_blocks, c.local_blocks, c.init_blocks)


@contextmanager
def watching(model: M3, look: Callable[[Seen], None]) -> Iterator[None]:
    """While this lasts, every layer's attention is shown to `look` before it is computed."""

    def before(attention: Attention, given: tuple[Any, ...]) -> None:
        x, rotary = given[:2]
        width = attention.config.head_dim
        q = norm_and_rotate(attention.q_norm, attention.q_proj(x).unflatten(-1, (-1, width)), *rotary)
        k = norm_and_rotate(attention.k_norm, attention.k_proj(x).unflatten(-1, (-1, width)), *rotary)
        index = attention._index(x, rotary) if attention.sparse else None
        look(Seen(attention.layer, attention, q.transpose(1, 2), k.transpose(1, 2), index))

    hooks = [
        layer.get_submodule("self_attn").register_forward_pre_hook(before)
        for layer in model.language_model.model.layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def vision_mass(model: M3, ids_1T: Tensor, media: Tensor | None) -> Tensor:
    """Share of attention that text tokens behind the first picture give to vision tokens: fp32
    [layers, H + 1].

    The last column is what even attention to all visible keys would give. In a sparse layer attention is that
    to the chosen blocks.
    """
    c = model.config
    vision_N = ((ids_1T == c.image_token_id) | (ids_1T == c.video_token_id))[0]
    if not bool(vision_N.any()):
        raise ValueError("the sequence shows no picture; give one that does")
    first = int(vision_N.nonzero()[0])
    text_R = (~vision_N).nonzero()[:, 0]
    text_R = text_R[text_R > first]
    out: dict[int, Tensor] = {}

    def look(seen: Seen) -> None:
        weights = seen.weights(text_R)
        if (ids := seen.chosen()) is not None:
            keep = msa.keep_mask(ids, 0, seen.attention.config.block_size, ids_1T.shape[1])[:, :, text_R]
            heads = weights.shape[1] // keep.shape[1]
            weights = weights * keep.repeat_interleave(heads, dim=1)
            weights = weights / weights.sum(-1, keepdim=True)
        out[seen.layer] = (weights * vision_N).sum(-1).mean((0, 2))

    with watching(model, look):
        model.hidden(ids_1T, media=media)
    even = (vision_N.float().cumsum(0) / torch.arange(1, len(vision_N) + 1, device=vision_N.device))[text_R]
    return torch.stack([torch.cat((out[n], even.mean()[None])) for n in sorted(out)]).cpu()


@dataclass(frozen=True)
class Recall:
    """Means over the looked-at tokens of one layer of one sequence, for lengths up to `keys`.

    chosen, best, window, even: share of attention mass in the chosen blocks; in the best blocks there are, as
    many; in the newest ones; and in blocks drawn evenly beside those that are always kept. blocks: share of
    the best blocks among the chosen.
    """

    layer: int
    keys: int
    tokens: int
    chosen: float
    best: float
    window: float
    even: float
    blocks: float


@torch.no_grad()
def recall(model: M3, ids_1T: Tensor, media: Tensor | None) -> list[Recall]:
    """What the index branch finds, layer by layer, by length; tokens that see every block do not count."""
    found: list[Recall] = []

    def look(seen: Seen) -> None:
        if (ids := seen.chosen()) is None:
            return
        c = seen.attention.config
        first, T = c.topk_blocks * c.block_size, ids.shape[2]
        start, end = first, 2 * first
        while start < T:
            rows = torch.arange(start, min(end, T), max(1, (min(end, T) - start) // ROWS))
            found.append(_recall(seen, ids, rows.to(ids.device), end))
            start, end = end, 2 * end

    with watching(model, look):
        model.hidden(ids_1T, media=media)
    return found


def _recall(seen: Seen, ids_BGTK: Tensor, rows_R: Tensor, keys: int) -> Recall:
    c, G = seen.attention.config, ids_BGTK.shape[1]
    weights = seen.weights(rows_R)
    weights = weights.unflatten(1, (G, -1)).mean(2)  # [B, G, R, N]
    mass = F.pad(weights, (0, -weights.shape[-1] % c.block_size)).unflatten(-1, (-1, c.block_size)).sum(-1)
    kept = ids_BGTK[:, :, rows_R]
    visible_R = rows_R // c.block_size + 1
    blocks_C = torch.arange(mass.shape[-1], device=mass.device)
    newest = (blocks_C < visible_R[:, None]) & (blocks_C >= visible_R[:, None] - c.topk_blocks)
    forced = (blocks_C < c.init_blocks) | (blocks_C >= visible_R[:, None] - c.local_blocks)
    forced &= blocks_C < visible_R[:, None]
    always, number = (mass * forced).sum(-1), forced.sum(-1)
    even = always + (1 - always) * (c.topk_blocks - number) / (visible_R - number)
    best = mass.topk(c.topk_blocks, dim=-1)
    was_chosen = torch.zeros_like(mass, dtype=torch.bool).scatter_(-1, kept.clamp(min=0), True)
    return Recall(
        seen.layer,
        keys,
        len(rows_R),
        *(
            float(x.mean())
            for x in (
                (mass * was_chosen).sum(-1),
                best.values.sum(-1),
                (mass * newest).sum(-1),
                even,
                was_chosen.gather(-1, best.indices).float(),
            )
        ),
    )
