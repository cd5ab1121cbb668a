"""The other side of the bench: the same checkpoint in transformers' own MiniMax-M3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, MiniMaxM3SparseForConditionalGeneration

from pilotfish.model.vision import Grid

PIECE = 512
"""Tokens at a time where only the cache they leave is wanted: dense masks of all at once take gigabytes."""


class Theirs:
    """transformers with its cache, as its own `generate` calls it; whatever it chooses by default stays."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype):
        load: Any = MiniMaxM3SparseForConditionalGeneration.from_pretrained
        self.model = load(folder, dtype=dtype)
        self.model.to(device).eval().requires_grad_(False)
        self.device = device
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.cache, self.length = DynamicCache(config=self.model.config.text_config), 0

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        self.cache.crop(length - self.length)
        self.length = length

    def prepare(self, ids: list[int]) -> None:
        """Read tokens for what they leave in the cache."""
        for start in range(0, len(ids), PIECE):
            self.read(ids[start : start + PIECE])

    def read(self, ids: list[int], patches: Tensor | None = None, grids: list[Grid] | None = None) -> Tensor:
        """Scores [vocab] after these tokens, which follow those read before; with the patches of a clip."""
        media = {}
        if patches is not None:
            media = {"pixel_values_videos": patches, "video_grid_thw": torch.tensor(grids)}
        given = {name: x.to(self.device) for name, x in {"input_ids": torch.tensor([ids]), **media}.items()}
        scores: Tensor = self.model(**given, cache=self.cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        self.length += len(ids)
        return scores
