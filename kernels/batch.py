"""Which new tokens belong to which sequence, and where each sequence's keys lie.

One `Batch` describes a call of every kernel: a chunk of a prefill, a step over a long prefix, one decoded
token of many sequences, or a mixture. It is made once per forward pass and shared by all layers.

The tensors live on the device and are never read back from a GPU, so nothing here waits for it; the integers
are upper bounds known on the host. Rows beyond the last sequence and sequences without keys give zeros, ids
of -1 and a log-sum-exp of -inf. On a CPU numbers that contradict each other are refused. On a GPU they are
believed: kernels stay inside the buffers they were given and ids name blocks of them, but which ones, and
what comes of it, is open, and kernels and twins differ.

Shape legend: T new tokens (all sequences packed), S sequences, N keys, P pages, G KV groups, D head width.
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_KEYS = 2**31 - 256
"""Keys of a sequence and queries of a batch, which kernels count in 32 bits, a block at a time."""


@dataclass(frozen=True)
class Batch:
    """The sequences of one call. Every tensor is int32 and contiguous, on the device of the keys.

    Raises ValueError, naming the argument, for what is no tensor, no whole number, or too many keys.

    Sequences that are packed share no keys; where they do all the same, results may be wrong, but nothing
    outside the keys is read. To share a prefix, share its pages.
    """

    query_starts: Tensor
    """[S + 1], from 0 on; rows query_starts[s]:query_starts[s + 1] are the newest tokens of sequence s."""
    key_lengths: Tensor
    """[S]; keys of each sequence, those of its new tokens included. 0 is a padded sequence."""
    max_queries: int
    """No sequence has more new tokens."""
    max_keys: int
    """No sequence has more keys."""
    pages: Tensor | None = None
    """[S, pages of the longest]; page numbers. Keys then are [P, block, ...]; None: keys are [N, ...]."""
    key_starts: Tensor | None = None
    """[S + 1]; the first key of each sequence among packed keys [N, ...]. None: one sequence, from 0."""
    visible: Tensor | None = None
    """[T]; how many keys each token sees. None: all up to its own, the last row of a sequence all of them."""

    def __post_init__(self) -> None:
        for name in ("query_starts", "key_lengths", "pages", "key_starts", "visible"):
            tensor = getattr(self, name)
            if not isinstance(tensor, Tensor) and (
                tensor is not None or name in ("query_starts", "key_lengths")
            ):
                raise ValueError(f"{name} is {reprlib.repr(tensor)}: a torch.Tensor is accepted")
        if self.key_lengths.ndim != 1 or self.sequences == 0:
            raise ValueError(
                f"key_lengths has shape {list(self.key_lengths.shape)}: [S] with S of 1 or more is accepted"
            )
        _check_numbers(max_queries=self.max_queries, max_keys=self.max_keys)

    @staticmethod
    def single(queries: int, keys: int, device: torch.device | str) -> Batch:
        """One sequence: the `queries` newest of its `keys` tokens.

        Copies nothing to the device, so a CUDA graph may capture it.
        """
        _check_numbers(queries=queries, keys=keys)
        if queries > keys:
            raise ValueError(f"queries is {queries}: a sequence of {keys} keys has 0 to {keys} newest tokens")
        return Batch(
            query_starts=torch.arange(2, dtype=torch.int32, device=device) * queries,
            key_lengths=torch.full((1,), keys, dtype=torch.int32, device=device),
            max_queries=queries,
            max_keys=keys,
        )

    @staticmethod
    def packed(
        queries: Sequence[int], keys: Sequence[int], device: torch.device | str, pages: Tensor | None = None
    ) -> Batch:
        """Sequences back to back: `queries[s]` newest tokens of the `keys[s]` tokens of sequence s.

        Their keys are packed in the same order, or lie in `pages` [S, pages of the longest].
        """
        for name, lengths in (("queries", queries), ("keys", keys)):
            if not isinstance(lengths, Sequence):
                raise ValueError(
                    f"{name} is {reprlib.repr(lengths)}: a sequence of whole numbers is accepted"
                )
            _check_numbers(**{f"{name}[{i}]": length for i, length in enumerate(lengths)})
        if len(queries) != len(keys) or not keys:
            raise ValueError(
                f"queries has {len(queries)} entries and keys {len(keys)}: give one per sequence"
            )
        for name, total in (("queries", sum(queries)), ("keys", 0 if pages is not None else sum(keys))):
            if total > MOST_KEYS:
                raise ValueError(f"{name} are {total} together: up to {MOST_KEYS} are accepted")

        def starts(lengths: Sequence[int]) -> Tensor:
            return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)

        return Batch(
            query_starts=starts(queries),
            key_lengths=torch.tensor(keys, dtype=torch.int32).to(device),
            max_queries=max(queries),
            max_keys=max(keys),
            pages=pages,
            key_starts=None if pages is not None else starts(keys),
        )

    @property
    def sequences(self) -> int:
        """S."""
        return self.key_lengths.shape[0]

    def row_sequences(self, tokens: int) -> Tensor:
        """The sequence of each of T rows, int64 [T]; S for rows that belong to none."""
        rows_T = torch.arange(tokens, dtype=torch.int32, device=self.query_starts.device)
        return torch.bucketize(rows_T, self.query_starts[1:], right=True)

    def row_visible(self, tokens: int) -> Tensor:
        """How many keys each of T rows sees, int64 [T]; 0 for rows that belong to no sequence."""
        sequence_T = self.row_sequences(tokens)
        known_T = sequence_T < self.sequences
        sequence_T = sequence_T.clamp(max=self.sequences - 1)
        keys_T = self.key_lengths[sequence_T].long()
        if self.visible is None:
            rows_T = torch.arange(tokens, device=self.query_starts.device)
            seen_T = keys_T - (self.query_starts[1:].long()[sequence_T] - 1 - rows_T)
        else:
            seen_T = self.visible[:tokens].long()
        return torch.where(known_T, torch.minimum(seen_T.clamp(min=0), keys_T), 0)

    def check(self, tokens: int, keys: Tensor, block: int, name: str = "keys") -> None:
        """Raise a ValueError unless this batch can describe `tokens` rows over these keys, called `name`.

        Shapes, types and devices only: what the tensors hold is not read.
        """
        S, device = self.sequences, keys.device
        for field, tensor, shape in (
            ("query_starts", self.query_starts, (S + 1,)),
            ("key_lengths", self.key_lengths, (S,)),
            ("pages", self.pages, (S, -1)),
            ("key_starts", self.key_starts, (S + 1,)),
            ("visible", self.visible, (tokens,)),
        ):
            if tensor is None:
                continue
            if (
                tensor.dtype != torch.int32
                or tensor.ndim != len(shape)
                or tensor.shape[0] != shape[0]
                or tensor.device != device
                or not tensor.is_contiguous()
            ):
                wanted = f"[{', '.join('*' if n < 0 else str(n) for n in shape)}]"
                raise ValueError(
                    f"batch.{field} is {tensor.dtype} {list(tensor.shape)} on {tensor.device} with strides"
                    f" {tensor.stride()}: contiguous torch.int32 {wanted} on {device}, as {name}, is accepted"
                )
        if self.pages is not None:
            if keys.shape[1] != block:
                raise ValueError(
                    f"{name} has pages of {keys.shape[1]} keys: the page size must be the block, {block}"
                )
            if self.pages.shape[1] * block < self.max_keys:
                raise ValueError(
                    f"batch.pages has {self.pages.shape[1]} pages of {block} per sequence: too few for"
                    f" batch.max_keys = {self.max_keys}"
                )
        else:
            if self.key_starts is None and S > 1:
                raise ValueError(f"batch.key_starts is None with {S} sequences: give it, or pages")
            if keys.shape[0] < self.max_keys:
                raise ValueError(
                    f"{name} has {keys.shape[0]} keys: fewer than batch.max_keys = {self.max_keys}"
                )
        if device.type == "cpu" and not torch.compiler.is_compiling():  # there reading waits for nothing
            self._check_values(tokens, keys.shape[0])

    def _check_values(self, tokens: int, keys: int) -> None:
        starts, lengths = self.query_starts.tolist(), self.key_lengths.tolist()
        counts = [end - start for start, end in itertools.pairwise(starts)]
        if starts[0] != 0 or min(counts) < 0 or starts[-1] > tokens:
            raise ValueError(
                f"batch.query_starts is {reprlib.repr(starts)}: numbers from 0 on that never fall, up to the"
                f" {tokens} rows there are, are accepted"
            )
        if max(counts) > self.max_queries:
            raise ValueError(
                f"batch.max_queries is {self.max_queries}, but a sequence has {max(counts)} new tokens"
            )
        if min(lengths) < 0 or max(lengths) > self.max_keys:
            raise ValueError(
                f"batch.key_lengths is {reprlib.repr(lengths)}: 0 to batch.max_keys = {self.max_keys} each is"
                " accepted"
            )
        if self.pages is None and self.key_starts is not None:
            firsts = self.key_starts.tolist()
            if any(not 0 <= first <= keys - length for first, length in zip(firsts, lengths, strict=False)):
                raise ValueError(
                    f"batch.key_starts is {reprlib.repr(firsts)}: sequences of {reprlib.repr(lengths)} keys"
                    f" that lie within {keys} are accepted"
                )


def _check_numbers(**numbers: int) -> None:
    for name, n in numbers.items():
        if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= MOST_KEYS:
            raise ValueError(f"{name} is {reprlib.repr(n)}: a whole number from 0 to {MOST_KEYS} is accepted")
