"""One new token of each of several sequences with fixed shapes and addresses, so that a CUDA graph can replay
a whole decoding pass.

What changes from pass to pass (tokens, places, pages) is written into the same tensors; the layers read pages
where they lie, by the paged kernels, and nothing is asked back from the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pilotfish.kernels import ops
from pilotfish.kernels.batch import Batch
from pilotfish.kernels.whole import whole_attention
from pilotfish.model.cache import Cache
from pilotfish.model.config import TextConfig
from pilotfish.model.pages import PagePool
from pilotfish.model.rows import WIDTH


class PagedRows:
    """Rows of a decoding pass over one pool; sequences may have up to `pages` pages each.

    ids, positions: each row's token and its place in its sequence, int64 [WIDTH]. Rows without a sequence
    have no keys, and write into a page that is nobody's.
    """

    def __init__(self, pool: PagePool, pages: int, spare: int):
        """spare: a page for rows without a sequence to write into."""
        self.pool, self._spare = pool, spare
        # tokens, places, rows of the buffers to write
        self._numbers = torch.zeros(3, WIDTH, dtype=torch.int64, device=pool.device)
        self.ids, self.positions, self._slots = self._numbers
        self._table = torch.zeros(WIDTH, pages, dtype=torch.int32, device=pool.device)
        self.batch = Batch(
            query_starts=torch.arange(WIDTH + 1, dtype=torch.int32, device=pool.device),
            key_lengths=torch.zeros(WIDTH, dtype=torch.int32, device=pool.device),
            max_queries=1,
            max_keys=pages * pool.block,
            pages=self._table,
        )
        self._shown: list[tuple[weakref.ref[Cache], int] | None] = [None] * WIDTH

    def set(self, ids: Sequence[int], caches: Sequence[Cache]) -> None:
        """The next pass is of these tokens; their caches have room for one more."""
        spare = self._spare * self.pool.block
        numbers = np.zeros((3, WIDTH), dtype=np.int64)
        numbers[2] = spare
        lengths = np.zeros(WIDTH, dtype=np.int32)
        for row, (token, cache) in enumerate(zip(ids, caches, strict=True)):
            numbers[:, row] = token, cache.length, cache.row_of(cache.length)
            lengths[row] = cache.length + 1
            shown = self._shown[row]
            if shown is None or shown[0]() is not cache or shown[1] != cache.version:
                own = torch.tensor(list(cache), dtype=torch.int32)
                self._table[row, : len(own)].copy_(own)
                self._shown[row] = weakref.ref(cache), cache.version
        self._numbers.copy_(torch.from_numpy(numbers))
        self.batch.key_lengths.copy_(torch.from_numpy(lengths))

    def reserve(self) -> None:
        """Room was made when the pass was set."""

    def advance(self) -> None:
        """Who set the pass counts its tokens."""

    def attend(
        self,
        layer: int,
        config: TextConfig,
        q_1HRD: Tensor,
        k_1GRD: Tensor,
        v_1GRD: Tensor,
        index: tuple[Tensor, Tensor] | None,
        dense: bool,
    ) -> Tensor:
        """Write the new keys of a layer; attention [1, H, WIDTH, D] of each row to its own sequence."""
        c, block, scale = config, config.block_size, config.head_dim**-0.5
        q_RHD = q_1HRD[0].transpose(0, 1).contiguous()
        k, v = self._write(f"keys.{layer}", k_1GRD), self._write(f"values.{layer}", v_1GRD)
        if index is not None:
            ki = self._write(f"index.{layer}", index[1])
        if index is None or dense:
            out_RHD = whole_attention(q_RHD, k, v, self.batch, block=block, scale=scale)
        else:
            qi_RGI = index[0][0].transpose(0, 1).contiguous()
            ids = ops.select_blocks(
                qi_RGI, ki, self.batch, block=block, topk=c.topk_blocks, local=c.local_blocks,
                init=c.init_blocks,
            )  # fmt: skip
            out_RHD, _ = ops.sparse_attention(q_RHD, k, v, ids, self.batch, block=block, scale=scale)
        return out_RHD.transpose(0, 1)[None]

    def _write(self, name: str, new: Tensor) -> Tensor:
        """Write a row of each sequence; returns the buffer as pages: [P, block, G, D] or [P, block, Di]."""
        buffer = self.pool.buffers[name]
        buffer.index_copy_(-2, self._slots, new)
        pages = buffer[0].unflatten(-2, (-1, self.pool.block))
        return pages.permute(1, 2, 0, 3) if pages.ndim == 4 else pages
