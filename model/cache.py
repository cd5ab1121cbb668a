"""What a sequence remembers: keys and values of every layer, and the index keys of the sparse ones.

They lie in pages of a pool that sequences share. Whatever happens to one kind happens to the others: extend,
truncate, fork.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pilotfish.model.pages import PagePool


class Cache:
    """The pages of one sequence, in order. It gives its pages back when it is no longer used.

    `length` is the number of tokens every layer holds; a forward pass reserves room, writes behind them and
    then advances it once. Consecutive pages are read in place; others are joined for each reading.
    """

    def __init__(self, pool: PagePool):
        self.pool, self.length = pool, 0
        self.version = 0  # counts the changes of its pages
        self._pages: list[int] = []
        self._numbers: npt.NDArray[np.int64] | None = None
        self._runs: list[tuple[int, int]] = []  # rows of the buffers, [first, end), in the order of tokens
        weakref.finalize(self, pool.drop, self._pages)

    def __len__(self) -> int:
        """Pages it holds, shared ones included."""
        return len(self._pages)

    def __iter__(self) -> Iterator[int]:
        """The numbers of its pages, in the order of its tokens."""
        return iter(self._pages)

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The same as an array, made once for as long as its pages stay the same."""
        if self._numbers is None:
            self._numbers = np.array(self._pages, dtype=np.int64)
        return self._numbers

    @property
    def capacity(self) -> int:
        """Tokens that fit into the pages it holds."""
        return len(self._pages) * self.pool.block

    @property
    def in_one_run(self) -> bool:
        """Whether its pages are consecutive, so that nothing is copied to read them."""
        return len(self._runs) <= 1

    def reserve(self, tokens: int) -> None:
        """Hold pages of its own for all that follows its tokens, up to `tokens` in all.

        Raises ModelError when memory allows no more pages; what is there stays.
        """
        pool, last = self.pool, self.length // self.pool.block
        if self.length % pool.block and pool.is_shared(self._pages[last]):
            (page,) = pool.take(1, self._pages[last - 1] if last else -1)
            pool.copy(self._pages[last], page)
            pool.release([self._pages[last]])
            self._pages[last] = page
            self._order()
        more = pool.pages_for(tokens) - len(self._pages)
        if more > 0:
            self._pages += pool.take(more, self._pages[-1] if self._pages else -1)
            self._order()

    def settle(self, tokens: int) -> None:
        """Reserve pages that are consecutive, moving it where need be; then reading costs no copy.

        It shares no page after a move, and stays where it is when no row of so many pages is free. Raises
        ModelError as `reserve` does.
        """
        self.reserve(tokens)
        if self.in_one_run:
            return
        pages = self.pool.take(len(self._pages))
        if pages[-1] - pages[0] >= len(pages):
            self.pool.release(pages)
            return
        target, block = pages[0], self.pool.block
        for first, end in self._runs:
            self.pool.copy(first // block, target, (end - first) // block)
            target += (end - first) // block
        self.pool.release(self._pages)
        self._pages[:] = pages
        self._order()

    def trim(self) -> None:
        """Give back the pages behind the last token."""
        needed = self.pool.pages_for(self.length)
        if needed < len(self._pages):
            self.pool.release(self._pages[needed:])
            del self._pages[needed:]
            self._order()

    def append(self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of a layer; returns all of its keys and values [1, G, N, D]."""
        return self._append(f"keys.{layer}", k_BGTD), self._append(f"values.{layer}", v_BGTD)

    def append_index(self, layer: int, k_BTD: Tensor) -> Tensor:
        """Write the new index keys of a sparse layer; returns all of them [1, N, Di]."""
        return self._append(f"index.{layer}", k_BTD)

    def advance(self, tokens: int) -> None:
        """Called once per forward pass, after every layer has written."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        if length < self.length:
            self.length = length
            self.trim()

    def fork(self, length: int | None = None) -> Cache:
        """A cache of the first `length` tokens (None: of all) that goes its own way.

        It shares the whole pages and copies the last, so that this one's pages stay consecutive.
        """
        length = self.length if length is None else length
        whole = length // self.pool.block
        twin = Cache(self.pool)
        self.pool.hold(self._pages[:whole])
        twin._pages += self._pages[:whole]
        twin.length = whole * self.pool.block
        twin._order()
        if length > twin.length:
            twin.reserve(length)
            self.pool.copy(self._pages[whole], twin._pages[whole])
            twin.length = length
        return twin

    def row_of(self, token: int) -> int:
        """The row of the pool's buffers that holds a token, or will."""
        block = self.pool.block
        return self._pages[token // block] * block + token % block

    def rows(self, start: int, end: int) -> list[tuple[int, int]]:
        """The rows of the buffers that hold the tokens [start, end)."""
        rows, token = [], 0
        for first, last in self._runs:
            low, high = max(start, token), min(end, token + last - first)
            if low < high:
                rows.append((first + low - token, first + high - token))
            token += last - first
        return rows

    def tensors(self, length: int) -> dict[str, Tensor]:
        """What it holds of the first `length` tokens: [1, G, N, D] or [1, N, Di] by the pool's names."""
        return {name: self.read(buffer, length) for name, buffer in self.pool.buffers.items()}

    def _append(self, name: str, new: Tensor) -> Tensor:
        buffer, at, end = self.pool.buffers[name], 0, self.length + new.shape[-2]
        assert end <= self.capacity, "room is reserved before a pass"
        for first, last in self.rows(self.length, end):
            buffer.narrow(-2, first, last - first).copy_(new.narrow(-2, at, last - first))
            at += last - first
        return self.read(buffer, end)

    def read(self, buffer: Tensor, tokens: int) -> Tensor:
        """The first `tokens` rows of this sequence in a buffer of the pool, [..., tokens, width]."""
        parts = [buffer.narrow(-2, first, end - first) for first, end in self.rows(0, tokens)]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, dim=-2) if parts else buffer.narrow(-2, 0, 0)

    def _order(self) -> None:
        """Find the runs anew, after the pages changed."""
        self.version += 1
        self._numbers = None
        block = self.pool.block
        runs: list[tuple[int, int]] = []
        for page in self._pages:
            if runs and runs[-1][1] == page * block:
                runs[-1] = (runs[-1][0], (page + 1) * block)
            else:
                runs.append((page * block, (page + 1) * block))
        self._runs = runs
