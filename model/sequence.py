"""One conversation inside the model: its tokens, where its pictures lie, and the cache of both.

A result must not depend on what happened to be cached. Matrix products of different heights may differ in the
last bits, so tokens are computed in chunks that start at multiples of one fixed size, and only whole chunks
are kept for the next prompt. A prompt then gives the same scores, bit for bit, whether its prefix was cached
or not (on the same device, with the same number of threads); the price is to compute again the tokens behind
the last whole chunk, the previous answer among them.

A prompt that cannot fit into memory is refused before anything of it is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pilotfish.model.cache import Cache
from pilotfish.model.flat import FlatDecoder
from pilotfish.model.graphs import decoder_of
from pilotfish.model.images import MERGE, Media, clip_grid, content_hash
from pilotfish.model.m3 import M3
from pilotfish.model.pages import PagePool
from pilotfish.model.protocol import ModelError
from pilotfish.model.rows import WIDTH
from pilotfish.model.text import AttentionKind


@dataclass(frozen=True)
class Span:
    """The tokens from a picture's or clip's first placeholder through its last: [start, end)."""

    start: int
    end: int
    content: bytes


@dataclass(frozen=True, eq=False)
class Tokens:
    """A prompt as the model computes it: ids [T], which of them are placeholders [T], and whose they are."""

    ids: npt.NDArray[np.int64]
    is_place: npt.NDArray[np.bool_]
    spans: tuple[Span, ...]

    @staticmethod
    def lay_out(ids: Sequence[int], media: Sequence[Media], place_ids: Sequence[int]) -> Tokens:
        """Find the placeholders of each picture and clip; raises ModelError when they do not add up."""
        array = np.asarray(ids, dtype=np.int64)
        is_place = np.isin(array, place_ids)
        places = np.flatnonzero(is_place)
        counts = [sum(t * h * w // MERGE**2 for t, h, w in clip_grid(item)) for item in media]
        if sum(counts) != len(places):
            raise ModelError(
                f"The prompt holds {len(places)} placeholders where its pictures need {sum(counts)}; "
                "use the chat template that belongs to the checkpoint."
            )
        spans, used = [], 0
        for item, count in zip(media, counts, strict=True):
            own = places[used : used + count]
            spans.append(Span(int(own[0]), int(own[-1]) + 1, content_hash(item)))
            used += count
        return Tokens(array, is_place, tuple(spans))

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, length: int) -> Tokens:
        """The first `length` tokens; a picture cut in two keeps its whole span, and so its identity."""
        spans = tuple(span for span in self.spans if span.start < length)
        return Tokens(self.ids[:length], self.is_place[:length], spans)

    def common(self, other: Tokens) -> int:
        """How many leading tokens are the same here and there; pictures count by their pixels, whole."""
        shorter = min(len(self), len(other))
        different = np.flatnonzero(self.ids[:shorter] != other.ids[:shorter])
        length = int(different[0]) if len(different) else shorter
        for mine, theirs in zip(self.spans, other.spans, strict=False):
            if mine.start < length and mine != theirs:
                return min(mine.start, theirs.start)
        return length


class TokenSequence:
    """Tokens and their cache. Extended, truncated and forked as one; not for use by two threads at once.

    chunk: tokens computed at once, and the step of what is kept between prompts.
    """

    def __init__(
        self, model: M3, *, chunk: int, attention: AttentionKind = "sparse", pool: PagePool | None = None
    ):
        self.model, self.chunk, self.attention = model, chunk, attention
        self.cache = Cache(pool or pool_for(model))
        self.tokens = Tokens.lay_out((), (), ())
        self.target: Tokens | None = None
        """The prompt that is being computed."""

    @property
    def length(self) -> int:
        """Tokens the cache holds, appended ones included."""
        return self.cache.length

    @property
    def whole(self) -> int:
        """Tokens of whole chunks: what other prompts may reuse of it."""
        return min(len(self.tokens), self.cache.length) // self.chunk * self.chunk

    def reusable(self, tokens: Tokens) -> int:
        """How many leading tokens of a prompt would not be computed again."""
        last = len(tokens) - 1  # its scores are always wanted
        return min(self.whole, self.tokens.common(tokens), last) // self.chunk * self.chunk

    def will_share(self, tokens: Tokens) -> int:
        """How many leading tokens of a prompt could be reused when the one being computed is there."""
        if self.target is None:
            return 0
        return min(self.target.common(tokens), len(tokens) - 1) // self.chunk * self.chunk

    def extend(
        self,
        tokens: Tokens,
        features: Callable[[int], Tensor],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Tensor | None:
        """Make the sequence hold exactly this prompt; return the scores [vocab] of its last token.

        features: the vision tokens of the picture with this number, asked for when its turn comes.
        cancelled: asked before every layer of the towers; when it says so the whole chunks computed stay and
        None comes back.
        """
        steps = self.extending(tokens, features, cancelled)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                scores: Tensor | None = end.value
                return scores

    def extending(
        self,
        tokens: Tokens,
        features: Callable[[int], Tensor],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Generator[int, None, Tensor | None]:
        """`extend` in steps: yields after each chunk but the last how many tokens are there.

        Between steps other sequences of the model may be computed, and this one forked, but not changed.
        """
        assert len(tokens) > 0, "a prompt has at least one token"
        self.cache.pool.refuse_beyond(len(tokens))
        self.truncate(self.reusable(tokens))
        self.cache.reserve(len(tokens))
        self.target = tokens
        try:
            for start in range(self.length, len(tokens), self.chunk):
                end = min(start + self.chunk, len(tokens))
                scores = self._compute(tokens, start, end, features, cancelled)
                self.tokens = tokens.cut(end)
                if end == len(tokens):
                    return scores
                yield end
        except _Cancelled:
            pass
        finally:
            self.target = None
        return None

    @torch.no_grad()
    def _compute(
        self,
        tokens: Tokens,
        start: int,
        end: int,
        features: Callable[[int], Tensor],
        cancelled: Callable[[], bool],
    ) -> Tensor | None:
        """Compute one chunk; returns the scores of the prompt's last token if it is the last chunk."""
        with _interruptible(self.model, cancelled):
            ids = self._ids(tokens.ids[start:end])
            media = _media_between(tokens, start, end, features)
            if end < len(tokens):
                self.model.hidden(ids, self.cache, media, self.attention)
                return None
            logits = self.model(ids, self.cache, media, last_only=True, attention=self.attention)
            scores: Tensor = logits[0, -1]
            return scores

    def append(self, token_id: int) -> Tensor:
        """Add one token of an answer; return the scores [vocab] that follow it."""
        return append_each([self], [token_id])[0]

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens; this is how a step is taken back."""
        self.cache.truncate(length)
        self.tokens = self.tokens.cut(length)

    def hold(self, tokens: Tokens) -> None:
        """Make an empty sequence hold tokens that are in its pages already, computed before."""
        assert self.length == 0
        self.cache.advance(len(tokens))
        self.tokens = tokens

    def fork(self, length: int | None = None) -> TokenSequence:
        """A sequence of the first `length` tokens (None: of all) that goes its own way, on shared pages."""
        twin = TokenSequence(self.model, chunk=self.chunk, attention=self.attention, pool=self.cache.pool)
        twin.cache = self.cache.fork(length)
        twin.tokens = self.tokens.cut(twin.length)
        return twin

    def _ids(self, ids: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(ids)[None].to(self.cache.pool.device)


@torch.no_grad()
def append_each(sequences: Sequence[TokenSequence], token_ids: Sequence[int]) -> list[Tensor]:
    """Add one token to each of some sequences of one model; return the scores [vocab] that follow each."""
    scores: list[Tensor] = []
    for first in range(0, len(sequences), WIDTH):
        some, ids = sequences[first : first + WIDTH], token_ids[first : first + WIDTH]
        caches, one = [sequence.cache for sequence in some], some[0]
        paged = decoder_of(one.model, one.cache.pool, one.attention)
        rows = one.model.decode(ids, caches, one.attention) if paged is None else paged.decode(ids, caches)
        scores += rows.unbind()
    return scores


@torch.no_grad()
def append_ahead(sequence: TokenSequence, token_ids: Sequence[int]) -> Tensor:
    """Add some tokens to one sequence; return the scores [rows, vocab] that follow each.

    What is computed one row at a time is of the first token alone, and then there is one row. The scores are
    those of adding one token after the other, to the last bit.
    """
    decoder = decoder_of(sequence.model, sequence.cache.pool, sequence.attention)
    if not isinstance(decoder, FlatDecoder):
        return append_each([sequence], token_ids[:1])[0][None]
    some = token_ids[:WIDTH]
    return decoder.decode(some, [sequence.cache] * len(some))


class _Cancelled(Exception):
    """A pass was given up; the cache holds what it held before."""


@contextlib.contextmanager
def _interruptible(model: M3, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Ask before every layer whether to go on: a chunk of a long prompt, or a clip, may take seconds."""

    def ask(*_: object) -> None:
        if cancelled():
            raise _Cancelled

    ask()
    layers = [*model.language_model.model.layers, *model.vision_tower.vision_model.encoder.layers]
    hooks = [layer.register_forward_pre_hook(ask) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def pool_for(model: M3, limit_bytes: int | None = None) -> PagePool:
    """An empty pool of pages on the device and in the type of a model's weights."""
    weight = model.language_model.lm_head.weight
    return PagePool(model.config, weight.device, weight.dtype, limit_bytes)


def _media_between(tokens: Tokens, start: int, end: int, features: Callable[[int], Tensor]) -> Tensor | None:
    """The vision tokens of the placeholders in [start, end), in order."""
    parts = []
    for number, span in enumerate(tokens.spans):
        if span.end <= start or span.start >= end:
            continue
        first = int(tokens.is_place[span.start : max(start, span.start)].sum())
        count = int(tokens.is_place[max(start, span.start) : min(end, span.end)].sum())
        if count:
            parts.append(features(number)[first : first + count])
    return torch.cat(parts) if parts else None
