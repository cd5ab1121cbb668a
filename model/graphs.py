"""Decoding by CUDA graphs: one launch a pass instead of some hundred, for any mixture of sequences.

A graph is captured for each power of two of pages that the longest sequence may have, and again when the
pool's buffers have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pilotfish.kernels.layer import takes
from pilotfish.model.cache import Cache
from pilotfish.model.flat import FlatDecoder
from pilotfish.model.m3 import M3
from pilotfish.model.paged import PagedRows
from pilotfish.model.pages import PagePool
from pilotfish.model.text import AttentionKind

WARM_UP = 2
"""Passes before a capture, in which kernels are compiled and libraries take their work space."""


@dataclass(frozen=True, eq=False)
class _Pass:
    """A pass of fixed size: where its tokens go in, and what computes its logits [WIDTH, vocab]."""

    rows: PagedRows
    run: Callable[[], Tensor]


class PagedDecoder:
    """Decodes over one pool of pages.

    graphs: whether passes are captured; without, their kernels are launched one by one, on any device.
    """

    def __init__(self, model: M3, pool: PagePool, attention: AttentionKind, graphs: bool):
        self.model, self.pool, self.attention, self.graphs = model, pool, attention, graphs
        self._spare = pool.set_aside()
        self._passes: dict[int, _Pass] = {}
        self._generation = pool.generation

    def decode(self, ids: Sequence[int], caches: Sequence[Cache]) -> Tensor:
        """Logits [sequences, vocab] of one new token of each of up to `rows.WIDTH` sequences."""
        for cache in caches:
            cache.reserve(cache.length + 1)
        if self._generation != self.pool.generation:
            self._passes.clear()
            self._generation = self.pool.generation
        most = 1 << (max(len(cache) for cache in caches) - 1).bit_length()
        if most not in self._passes:
            self._passes[most] = self._prepare(most, ids, caches)
        chosen = self._passes[most]
        chosen.rows.set(ids, caches)
        logits = chosen.run()[: len(caches)].clone()
        for cache in caches:
            cache.advance(1)
        return logits

    def _prepare(self, pages: int, ids: Sequence[int], caches: Sequence[Cache]) -> _Pass:
        rows = PagedRows(self.pool, pages, self._spare)

        def compute() -> Tensor:
            return self.model.decode_rows(rows.ids, rows, self.attention)

        if not self.graphs:
            return _Pass(rows, compute)
        rows.set(ids, caches)  # what the passes before the capture write is written again after it
        side = torch.cuda.Stream(self.pool.device)
        side.wait_stream(torch.cuda.current_stream(self.pool.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                compute()
        torch.cuda.current_stream(self.pool.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = compute()

        def replay() -> Tensor:
            graph.replay()
            return logits

        return _Pass(rows, replay)


def decoder_of(model: M3, pool: PagePool, attention: AttentionKind) -> PagedDecoder | FlatDecoder | None:
    """The pool's decoder; None on a GPU for sizes that the kernels do not take."""
    t = model.config.text
    on_cpu = pool.device.type == "cpu"
    if not on_cpu and not takes(
        pool.device, t.num_attention_heads // t.num_key_value_heads, t.head_dim, t.index_dim, t.block_size,
        t.topk_blocks,
    ):  # fmt: skip
        return None
    decoder = pool.decoders.get(attention)
    if decoder is None:
        decoder = (
            FlatDecoder(model, pool, attention)
            if on_cpu
            else PagedDecoder(model, pool, attention, graphs=True)
        )
        pool.decoders[attention] = decoder
    assert isinstance(decoder, PagedDecoder | FlatDecoder)
    return decoder
