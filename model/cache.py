"""What a sequence remembers: keys and values of every layer, and the index keys of the sparse ones.

Whatever happens to one happens to the others: extend, truncate, fork.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pilotfish.model.config import M3Config


class Cache:
    """Keys and values [1, G, N, D] and index keys [1, N, Di] of one sequence, grown in doubling steps.

    `length` is the number of tokens every layer holds; a forward pass writes behind it and then advances it
    once.
    """

    def __init__(self, config: M3Config, capacity: int, device: torch.device | str, dtype: torch.dtype):
        self.config, self.device, self.dtype = config, torch.device(device), dtype
        self.length = 0
        self._capacity = 0
        t = config.text
        self._keys = [self._empty(t.num_key_value_heads, 0, t.head_dim) for _ in t.sparse_layers]
        self._values = [self._empty(t.num_key_value_heads, 0, t.head_dim) for _ in t.sparse_layers]
        self._index = [self._empty(0, t.index_dim) if sparse else None for sparse in t.sparse_layers]
        self.reserve(capacity)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(1, *shape, device=self.device, dtype=self.dtype)

    @property
    def capacity(self) -> int:
        """Tokens that fit before the buffers must grow."""
        return self._capacity

    @property
    def bytes(self) -> int:
        """Memory the buffers hold."""
        buffers = [*self._keys, *self._values, *(x for x in self._index if x is not None)]
        return sum(x.numel() * x.element_size() for x in buffers)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all; what is there stays."""
        if tokens <= self._capacity:
            return
        block = self.config.text.block_size
        capacity = -(-max(tokens, 2 * self._capacity) // block) * block
        # Buffer by buffer, the capacity last: memory peaks low, and running out of it leaves a sound cache.
        for layer, index in enumerate(self._index):
            self._keys[layer] = self._grown(self._keys[layer], 2, capacity)
            self._values[layer] = self._grown(self._values[layer], 2, capacity)
            self._index[layer] = None if index is None else self._grown(index, 1, capacity)
        self._capacity = capacity

    def _grown(self, old: Tensor, dim: int, capacity: int) -> Tensor:
        shape = list(old.shape)
        shape[dim] = capacity
        new = torch.empty(shape, device=self.device, dtype=self.dtype)
        new.narrow(dim, 0, self.length).copy_(old.narrow(dim, 0, self.length))
        return new

    def append(self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of a layer; returns all of its keys and values [1, G, N, D]."""
        end = self.length + k_BGTD.shape[2]
        self.reserve(end)
        self._keys[layer][:, :, self.length : end] = k_BGTD
        self._values[layer][:, :, self.length : end] = v_BGTD
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]

    def append_index(self, layer: int, k_BTD: Tensor) -> Tensor:
        """Write the new index keys of a sparse layer; returns all of them [1, N, Di]."""
        buffer = self._index[layer]
        assert buffer is not None, "index keys belong to sparse layers"
        end = self.length + k_BTD.shape[1]
        self.reserve(end)
        buffer = self._index[layer]
        assert buffer is not None
        buffer[:, self.length : end] = k_BTD
        return buffer[:, :end]

    def advance(self, tokens: int) -> None:
        """Called once per forward pass, after every layer has written."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self.length = length

    def fork(self) -> Cache:
        """An independent copy."""
        twin = Cache(self.config, 0, self.device, self.dtype)
        twin.length, twin._capacity = self.length, self._capacity
        twin._keys = [x.clone() for x in self._keys]
        twin._values = [x.clone() for x in self._values]
        twin._index = [None if x is None else x.clone() for x in self._index]
        return twin
