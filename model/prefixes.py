"""Conversations kept between prompts, so that each finds what was computed of it before.

Two conversations that take turns, and one that goes back a step, find their prefixes again. Sequences that
begin alike share the pages of what they have in common for as long as they are idle, or memory is short.
"""

from __future__ import annotations

from pathlib import Path

from pilotfish.model import saved
from pilotfish.model.graphs import decoder_of
from pilotfish.model.m3 import M3
from pilotfish.model.sequence import Tokens, TokenSequence, pool_for
from pilotfish.model.text import AttentionKind

KEPT = 8
"""Sequences kept at most."""
KEPT_SHARE = 4
"""Idle sequences may take one part in so many of the memory that was free at the start."""


class Prefixes:
    """The last sequences, out of one pool of pages, and those in use; idle ones go first that were unused
    longest."""

    def __init__(
        self, model: M3, *, chunk: int, attention: AttentionKind = "sparse", limit_bytes: int | None = None
    ):
        """limit_bytes: what all caches together may take; None leaves that to the free memory."""
        self.model, self.chunk, self.attention = model, chunk, attention
        self.pool = pool_for(model, limit_bytes)
        decoder_of(model, self.pool, attention)  # takes a page, now rather than in the midst of an answer
        self._keep_pages = self.pool.most() // KEPT_SHARE
        self._kept: list[TokenSequence] = []  # idle; the one used last stands last
        self._used: list[TokenSequence] = []
        self._short: list[Tokens] = []  # prompts that wait for memory, in the order they came

    def __len__(self) -> int:
        return len(self._kept)

    def pick(self, tokens: Tokens, room: int = 0) -> TokenSequence | None:
        """The sequence from which a prompt is computed soonest, with pages for it and `room` tokens more.

        It is in use until `put_back`. An idle one is taken over when nothing reusable of it is lost, and
        forked otherwise. None while waiting is better: sequences in use hold the memory, a prompt that came
        before waits for memory too, or one in use is computing what this prompt begins with; then ask again
        with the same `tokens`, or `leave`. Raises ModelError with the numbers when all memory is too little;
        then every sequence is as it was.
        """
        needed = self.pool.pages_for(len(tokens) + room)
        self.pool.refuse_beyond(len(tokens) + room)
        before = self._short[: self._short.index(tokens)] if tokens in self._short else self._short
        in_use = self.pool.distinct(sequence.cache for sequence in self._used)
        if before or (self._used and in_use + needed > self.pool.room()):
            if tokens not in self._short:
                self._short.append(tokens)
            return None
        self.leave(tokens)
        found = max(
            [*reversed(self._kept), *self._used], key=lambda sequence: sequence.reusable(tokens), default=None
        )
        reused = found.reusable(tokens) if found is not None else 0
        if any(sequence.will_share(tokens) > reused for sequence in self._used):
            return None
        if found is None or reused == 0:
            sequence = self.new()
        elif found.whole > reused or found in self._used:
            sequence = found.fork(reused)
        else:
            self._kept.remove(found)
            sequence = found
        sequence.truncate(reused)
        self._make_room(sequence, len(tokens) + room)
        self._used.append(sequence)
        return sequence

    def leave(self, tokens: Tokens) -> None:
        """A prompt no longer waits for memory."""
        if tokens in self._short:
            self._short.remove(tokens)

    def put_back(self, sequence: TokenSequence) -> None:
        """Keep a sequence that was in use as the one used last."""
        self._used.remove(sequence)
        sequence.cache.trim()
        self._give_up(len(sequence.cache), len(sequence.cache))
        self._kept.append(sequence)

    def new(self) -> TokenSequence:
        """An empty sequence out of the same pool, not kept."""
        return TokenSequence(self.model, chunk=self.chunk, attention=self.attention, pool=self.pool)

    def save(self, path: Path | str, key: dict[str, str]) -> int:
        """Write what the sequence used last has for the next prompt; see `saved.save`."""
        return saved.save(self._kept[-1] if self._kept else self.new(), path, key)

    def load(self, path: Path | str, key: dict[str, str]) -> int:
        """Keep a sequence from a file as the one used last; returns its tokens. See `saved.load`.

        Idle sequences are let go for it once its header fits.
        """
        sequence = self.new()

        def make_room(tokens: int) -> None:
            self.pool.refuse_beyond(tokens)
            self._make_room(sequence, tokens)

        saved.load(path, sequence, key, make_room)
        self._kept.append(sequence)
        return sequence.length

    def _make_room(self, sequence: TokenSequence, tokens: int) -> None:
        """Give a sequence pages for so many tokens, in a row if memory allows."""
        cache, needed = sequence.cache, self.pool.pages_for(tokens)
        budget = self._give_up(needed, len(cache))
        cache.reserve(tokens)
        if self.pool.held + needed <= budget:
            cache.settle(tokens)

    def _give_up(self, needed: int, had: int) -> int:
        """Let idle sequences go for one that comes among them, which needs pages and has some of them.

        Returns how many pages may be held in all.
        """
        in_use = self.pool.distinct(sequence.cache for sequence in self._used)
        budget = min(max(self._keep_pages, in_use + needed + self.pool.aside), self.pool.most())
        while self._kept and (len(self._kept) >= KEPT or self.pool.held + needed - had > budget):
            self._kept.pop(0).truncate(0)
        return budget
