"""Vision tokens, kept by the pixels they came from: a frame seen before is not encoded again."""

from __future__ import annotations

import time
from collections import OrderedDict

import torch
from torch import Tensor

from pilotfish.model.images import Media, clip_patches
from pilotfish.model.m3 import M3

FEATURE_BYTES = 256 * 1024**2


class Features:
    """Vision tokens by the pixels they came from, kept while there is room; those unused longest go first.

    seconds: time spent on encoding since someone set it to zero.
    """

    def __init__(self, model: M3, limit_bytes: int = FEATURE_BYTES):
        self.model, self.limit_bytes, self.seconds = model, limit_bytes, 0.0
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    @torch.no_grad()
    def of(self, content: bytes, media: Media) -> Tensor:
        """The vision tokens [tokens, hidden] of a picture or clip with this content hash."""
        if content in self._kept:
            self._kept.move_to_end(content)
            return self._kept[content]
        began_s = time.perf_counter()
        patches, grids = clip_patches(media)
        device = self.model.language_model.lm_head.weight.device
        # A copy: torch aligns its memory, numpy does not, and the last bits of a product may depend on it.
        features = self.model.encode_media(torch.from_numpy(patches).to(device, copy=True), grids)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._kept[content] = features
        while len(self._kept) > 1 and self.bytes > self.limit_bytes:
            self._kept.popitem(last=False)
        self.seconds += time.perf_counter() - began_s
        return features

    @property
    def bytes(self) -> int:
        """Memory the kept vision tokens hold."""
        return sum(features.nbytes for features in self._kept.values())
