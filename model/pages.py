"""The pool of pages that every sequence's cache is made of.

A page holds the keys and values of all layers, and the index keys of the sparse ones, for as many tokens as
a block of sparse attention has. Sequences share pages, which count their holders; a page with several is
never written.

Pages lie side by side in one buffer per kind and layer, so that a run of consecutive pages is a plain slice
of it, which attention reads in place. The pool hands out consecutive pages wherever it can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import prod

import numpy as np
import torch
from torch import Tensor

from pilotfish.model.config import M3Config
from pilotfish.model.memory import free_bytes, gib
from pilotfish.model.protocol import ModelError

WORK_BYTES = 256 * 1024**2
"""What a pool leaves free for the passes that fill it."""


class PagePool:
    """Pages by number, each free or held by one or more caches. One thread at a time may use it.

    buffers: by name ("keys.0", "values.0", "index.3"), the keys and values [1, G, N, D] or index keys
    [1, N, Di] of one layer; page p has the rows from p * block on. Whatever moves, moves in all of them.
    """

    def __init__(
        self,
        config: M3Config,
        device: torch.device | str,
        dtype: torch.dtype,
        limit_bytes: int | None = None,
    ):
        """limit_bytes: what the pages may take at most; None leaves that to the free memory."""
        self.config, self.device, self.dtype = config, torch.device(device), dtype
        self.limit_bytes = limit_bytes
        t = config.text
        self.block = t.block_size
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, sparse in enumerate(t.sparse_layers):
            shapes[f"keys.{layer}"] = shapes[f"values.{layer}"] = (1, t.num_key_value_heads, 0, t.head_dim)
            if sparse:
                shapes[f"index.{layer}"] = (1, 0, t.index_dim)
        self.buffers = {name: self._empty(shape) for name, shape in shapes.items()}
        self.page_bytes = self.block * dtype.itemsize * sum(prod(s[:-2]) * s[-1] for s in shapes.values())
        self._holders = np.zeros(0, dtype=np.int32)
        self.aside = 0
        """Pages held for good that no cache has."""
        self.decoders: dict[str, object] = {}
        """What decodes over its pages, by kind of attention; see `graphs.py`. They end with the pool."""
        self.generation = 0
        """How often the buffers moved."""
        self._touched = 0  # no page from here on was ever written; a CPU gives such memory when it is
        self._dropped: deque[list[int]] = deque()

    @property
    def bytes(self) -> int:
        """Memory the pool holds, its free pages included."""
        return len(self._holders) * self.page_bytes

    @property
    def held(self) -> int:
        """Pages that caches hold; a shared one counts once."""
        self._sweep()
        return int(np.count_nonzero(self._holders))

    def distinct(self, caches: Iterable[Iterable[int]]) -> int:
        """Pages that some caches hold together; a shared one counts once."""
        return len(set[int]().union(*caches))

    def pages_for(self, tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-tokens // self.block)

    def bytes_for(self, tokens: int) -> int:
        """Memory that so many tokens of one sequence take."""
        return self.pages_for(tokens) * self.page_bytes

    def most(self) -> int:
        """Pages there can be at most, free and held together, with the memory that is free now."""
        taken = self._touched if self.device.type == "cpu" else len(self._holders)
        # While a buffer grows it is there twice.
        spare = free_bytes(self.device) - WORK_BYTES - taken * self.page_bytes // len(self.buffers)
        pages = taken + max(0, spare) // self.page_bytes
        if self.limit_bytes is not None:
            pages = min(pages, self.limit_bytes // self.page_bytes)
        return max(pages, self._touched)

    def room(self) -> int:
        """Pages that caches can have at most, all together, with the memory that is free now."""
        return self.most() - self.aside

    def refuse_beyond(self, tokens: int) -> None:
        """Raise ModelError when a sequence of so many tokens cannot fit, whatever else is given up."""
        most = self.room()
        if self.pages_for(tokens) > most:
            raise ModelError(
                f"A conversation of {tokens} tokens takes {gib(self.bytes_for(tokens))} of cache and "
                f"{gib(most * self.page_bytes)} can be had on {self.device}, enough for "
                f"{most * self.block} tokens; drop its oldest clips, or free some memory."
            )

    def take(self, count: int, after: int = -1) -> list[int]:
        """Hold so many free pages: those right behind page `after` if they are free, else others in a row.

        Where memory allows no row of them, any free pages. Raises ModelError when there are too few.
        """
        self._sweep()
        start = after + 1
        if self._holders[start : start + count].any():
            start = self._free_run(count)
        pages = np.arange(start, start + count)
        if start + count > self._touched and start + count > (most := self.most()):
            free = np.flatnonzero(self._holders[:most] == 0)
            pages = np.concatenate((free, np.arange(len(self._holders), most)))[:count]
            if len(pages) < count:
                raise ModelError(
                    f"{count} more pages of cache take {gib(count * self.page_bytes)} and "
                    f"{gib(len(pages) * self.page_bytes)} can be had on {self.device}; end other "
                    "conversations, or free some memory."
                )
        end = int(pages[-1]) + 1 if count else 0
        if end > len(self._holders):
            self._grow(end)
        self._holders[pages] += 1
        self._touched = max(self._touched, end)
        return pages.tolist()

    def set_aside(self) -> int:
        """Hold a page for good, which is no cache's; raises ModelError as `take` does."""
        (page,) = self.take(1)
        self.aside += 1
        return page

    def hold(self, pages: Iterable[int]) -> None:
        """Count one more holder of each page."""
        self._holders[list(pages)] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Count one holder less of each page."""
        self._holders[list(pages)] -= 1

    def drop(self, pages: list[int]) -> None:
        """Release pages from wherever a cache ends, in the midst of anything."""
        self._dropped.append(pages)

    def is_shared(self, page: int) -> bool:
        """Whether more than one cache holds a page."""
        return bool(self._holders[page] > 1)

    def copy(self, source: int, target: int, pages: int = 1) -> None:
        """Copy the rows of some consecutive pages to others, which do not overlap them."""
        rows = pages * self.block
        for buffer in self.buffers.values():
            old = buffer.narrow(-2, source * self.block, rows)
            buffer.narrow(-2, target * self.block, rows).copy_(old)

    def _sweep(self) -> None:
        while self._dropped:
            self.release(self._dropped.popleft())

    def _free_run(self, count: int) -> int:
        """The first page of the first row of free pages; one at the pool's end may reach beyond it."""
        held = np.flatnonzero(self._holders)
        before = np.concatenate(([-1], held))
        behind = np.concatenate((held, [len(self._holders) + count + 1]))
        return int(before[behind - before > count][0]) + 1

    def _grow(self, pages: int) -> None:
        """Make the pool so many pages large, or twice as large as it was if half the free memory allows."""
        target = max(pages, min(2 * len(self._holders), (pages + self.most()) // 2))
        # Buffer by buffer, the count last: memory peaks low, and running out of it leaves a sound pool.
        kept = self._touched * self.block
        self.generation += 1
        for name, old in self.buffers.items():
            if old.shape[-2] < target * self.block:
                new = self._empty((*old.shape[:-2], target * self.block, old.shape[-1]))
                new.narrow(-2, 0, kept).copy_(old.narrow(-2, 0, kept))
                self.buffers[name] = new
        self._holders = np.pad(self._holders, (0, target - len(self._holders)))

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)
