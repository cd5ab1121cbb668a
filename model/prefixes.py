"""Conversations kept between prompts, so that each finds what was computed of it before.

Two conversations that take turns, and one that goes back a step, find their prefixes again. Sequences that
begin alike share the pages of what they have in common for as long as they are idle, or memory is short.
"""

from __future__ import annotations

from pathlib import Path

from pilotfish.model import saved
from pilotfish.model.m3 import M3
from pilotfish.model.sequence import Tokens, TokenSequence, pool_for
from pilotfish.model.text import AttentionKind

KEPT = 8
"""Sequences kept at most."""
KEPT_SHARE = 4
"""Idle sequences may take one part in so many of the memory that was free at the start."""


class Prefixes:
    """The last sequences, out of one pool of pages; those unused longest go first."""

    def __init__(
        self, model: M3, *, chunk: int, attention: AttentionKind = "sparse", limit_bytes: int | None = None
    ):
        """limit_bytes: what all caches together may take; None leaves that to the free memory."""
        self.model, self.chunk, self.attention = model, chunk, attention
        self.pool = pool_for(model, limit_bytes)
        self._keep_pages = self.pool.most() // KEPT_SHARE
        self._kept: list[TokenSequence] = []  # the one used last stands last

    def __len__(self) -> int:
        return len(self._kept)

    def pick(self, tokens: Tokens, room: int = 0) -> TokenSequence:
        """The sequence from which a prompt is computed soonest, with pages for it and `room` tokens more.

        A sequence is taken over when nothing reusable of it is lost, and forked otherwise. Raises ModelError
        with the numbers when all memory is too little; then every sequence is as it was.
        """
        self.pool.refuse_beyond(len(tokens) + room)
        sequence = max(reversed(self._kept), key=lambda kept: kept.reusable(tokens), default=None)
        reused = sequence.reusable(tokens) if sequence is not None else 0
        if sequence is None or reused == 0:
            sequence = self.new()
        elif sequence.whole > reused:
            sequence = sequence.fork(reused)
        else:
            self._kept.remove(sequence)
        sequence.truncate(reused)
        self._make_room(sequence, len(tokens) + room)
        return sequence

    def new(self) -> TokenSequence:
        """An empty sequence out of the same pool, not kept."""
        return TokenSequence(self.model, chunk=self.chunk, attention=self.attention, pool=self.pool)

    def save(self, path: Path | str, key: dict[str, str]) -> int:
        """Write what the sequence used last has for the next prompt; see `saved.save`."""
        return saved.save(self._kept[-1] if self._kept else self.new(), path, key)

    def load(self, path: Path | str, key: dict[str, str]) -> int:
        """Keep a sequence from a file as the one used last; returns its tokens. See `saved.load`."""
        sequence = self.new()
        found = saved.load(path, sequence, key)
        self.pool.refuse_beyond(len(found.tokens))
        self._make_room(sequence, len(found.tokens))
        sequence.fill(found.tokens, found.tensors)
        return sequence.length

    def _make_room(self, sequence: TokenSequence, tokens: int) -> None:
        """Make a sequence the last of the kept, with pages for so many tokens, in a row if memory allows."""
        for kept in self._kept:
            kept.cache.trim()
        cache, needed = sequence.cache, self.pool.pages_for(tokens)
        self._kept.append(sequence)
        budget = min(max(self._keep_pages, needed), self.pool.most())
        while len(self._kept) > 1 and (
            len(self._kept) > KEPT or self.pool.held + needed - len(cache) > budget
        ):
            self._kept.pop(0).truncate(0)
        cache.reserve(tokens)
        if self.pool.held + needed <= budget:
            cache.settle(tokens)
