"""One new token of each of several sequences: what a decoding pass computes at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pilotfish.kernels.batch import Batch
from pilotfish.model.cache import Cache

WIDTH = 4
"""Rows of every decoding pass. A row's scores must not depend on how many others there are, and the last bits
of a matrix product may depend on its height, so all passes have one height: rows without a sequence are
computed and dropped."""


class Rows:
    """The caches of up to `WIDTH` sequences. To the layers their tokens are the T tokens of one pass.

    live: rows that belong to a sequence; the first ones.
    positions: the place of each row's token in its sequence, int64 [WIDTH].
    batches: how each sequence's attention is called.
    """

    def __init__(self, caches: Sequence[Cache]):
        assert 0 < len(caches) <= WIDTH
        self.caches, self.live = tuple(caches), len(caches)
        device = caches[0].pool.device
        places = [cache.length for cache in caches]
        self.positions = torch.tensor(places + [0] * (WIDTH - self.live)).to(device)
        self.batches = [Batch.single(1, place + 1, device) for place in places]

    def reserve(self) -> None:
        """Room for the new tokens; raises ModelError when memory allows none."""
        for cache in self.caches:
            cache.reserve(cache.length + 1)

    def advance(self) -> None:
        """Called once per pass, after every layer has written."""
        for cache in self.caches:
            cache.advance(1)

    def padded(self, live: list[Tensor], dim: int) -> Tensor:
        """What was computed for each live row, 1 along `dim`, as one tensor of all rows; zeros behind."""
        shape = list(live[0].shape)
        shape[dim] = WIDTH - self.live
        return torch.cat([*live, live[0].new_zeros(shape)], dim=dim)
