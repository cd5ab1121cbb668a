"""MiniMax-M3: a vision tower whose tokens replace placeholders in the text, and a sparse text tower.

Module names equal the published checkpoint's tensor names, so a state dict is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pilotfish.model.cache import Cache
from pilotfish.model.config import M3Config
from pilotfish.model.paged import PagedRows
from pilotfish.model.rows import WIDTH, Rows
from pilotfish.model.text import AttentionKind, CausalLM, IndexLoss
from pilotfish.model.vision import Grid, VisionTower, patch_merger, projector


class M3(nn.Module):
    """The network of any size; see `M3Config`."""

    def __init__(self, config: M3Config):
        super().__init__()
        self.config = config
        self.language_model = CausalLM(config.text)
        self.vision_tower = VisionTower(config.vision)
        self.multi_modal_projector = projector(config)
        self.patch_merge_mlp = patch_merger(config)

    def encode_media(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Vision tokens [tokens, hidden] of patch vectors [P, patch_dim]; four patches make one token."""
        features = self.vision_tower.vision_model(patches, grids)
        projected = self.multi_modal_projector(features)
        return self.patch_merge_mlp(
            projected.reshape(projected.shape[0] // self.config.vision.spatial_merge_size**2, -1)
        )

    def embed(self, ids_BT: Tensor, media: Tensor | None = None) -> Tensor:
        """Token embeddings [B, T, hidden], placeholders replaced by the vision tokens in order."""
        x = self.language_model.model.embed_tokens(ids_BT)
        place = (ids_BT == self.config.image_token_id) | (ids_BT == self.config.video_token_id)
        wanted, given = int(place.sum()), 0 if media is None else media.shape[0]
        if wanted != given:
            raise ValueError(
                f"the text holds {wanted} vision placeholders, but {given} vision tokens were given"
            )
        if media is None or given == 0:
            return x
        return x.masked_scatter(place[..., None], media.to(x.dtype))

    def hidden(
        self,
        ids_BT: Tensor,
        cache: Cache | None = None,
        media: Tensor | None = None,
        attention: AttentionKind = "sparse",
        index_loss: IndexLoss | None = None,
    ) -> Tensor:
        """Final hidden states [B, T, hidden]."""
        return self.language_model.model(self.embed(ids_BT, media), cache, attention, index_loss)

    def forward(
        self,
        ids_BT: Tensor,
        cache: Cache | None = None,
        media: Tensor | None = None,
        last_only: bool = False,
        attention: AttentionKind = "sparse",
    ) -> Tensor:
        """Logits [B, T, vocab], or [B, 1, vocab] with `last_only`.

        ids_BT: token ids; with a cache B is 1 and they follow the tokens cached.
        media: the vision tokens of the placeholders among these ids, in order.
        attention: "dense" lets every layer see every key, to show what sparsity costs or gains.
        """
        x = self.hidden(ids_BT, cache, media, attention)
        return self.language_model.lm_head(x[:, -1:] if last_only else x)

    def decode(self, ids: Sequence[int], caches: Sequence[Cache], attention: AttentionKind) -> Tensor:
        """Logits [sequences, vocab] of one new token of each of up to `rows.WIDTH` sequences.

        Each follows its own cache, which takes it. A sequence's logits do not depend on the others, to the
        last bit where a product's rows do not depend on each other.
        """
        rows = Rows(caches)
        ids_R = torch.tensor([*ids, *[0] * (WIDTH - len(ids))]).to(rows.positions.device)
        return self.decode_rows(ids_R, rows, attention)[: rows.live]

    def decode_rows(self, ids_R: Tensor, rows: Rows | PagedRows, attention: AttentionKind) -> Tensor:
        """Logits [WIDTH, vocab] of a decoding pass."""
        x = self.language_model.model.embed_tokens(ids_R[None])
        return self.language_model.lm_head(self.language_model.model.decode(x, rows, attention))[0]


def count_parameters(model: nn.Module) -> int:
    """Values in all parameters and persistent buffers."""
    return sum(x.numel() for x in model.state_dict().values())


def initialise(model: M3, std: float = 0.02) -> None:
    """Random weights for training from scratch: normal matrices, zero biases, unit norms."""
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(p)
        elif p.ndim > 1:
            torch.nn.init.trunc_normal_(p, std=std)
