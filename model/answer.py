"""One answer while it is written: how its tokens are chosen, and what they say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from pilotfish.model.constraint import CallConstraint
from pilotfish.model.parser import AnswerParser, Event
from pilotfish.model.protocol import CallChunk, Chunk
from pilotfish.model.sampling import Sampler
from pilotfish.model.stopping import StopFilter
from pilotfish.model.tokenizer import IncrementalDecoder


@dataclass
class Answer:
    """Told every token in turn; says what became certain with it."""

    parser: AnswerParser
    decoder: IncrementalDecoder
    sampler: Sampler
    constraint: CallConstraint | None
    stops: StopFilter
    logprobs: list[float] = field(default_factory=list)
    _call_began: int | None = None
    """How many tokens stood before the call being written."""

    def choose(self, scores: Tensor) -> int:
        """The next token."""
        allowed = None if self.constraint is None else self.constraint.allowed(self.parser.in_code)
        choice = self.sampler.choose(scores, allowed)
        if self.constraint is not None:
            self.constraint.take(choice.token)
        self.logprobs.append(choice.logprob)
        return choice.token

    def guesses(self, most: int) -> tuple[int, ...]:
        """Tokens that will probably come next, at most so many; what comes is chosen all the same."""
        return () if self.constraint is None else tuple(self.constraint.ahead()[: max(0, most)])

    def read(self, token: int) -> Iterator[Chunk]:
        """What became certain with a token."""
        yield from self._marked(self.parser.feed(self.decoder.feed(token)))
        if self._call_began is None and self.parser.in_call:
            self._call_began = len(self.logprobs) - 1

    def close(self) -> Iterator[Chunk]:
        """What was still waiting when the answer ended."""
        yield from self._marked([*self.parser.feed(self.decoder.close()), *self.parser.close()])
        yield from self.stops.close()

    def _marked(self, events: Sequence[Event]) -> Iterator[Chunk]:
        for event in self.stops.filter(events):
            if isinstance(event, CallChunk) and self._call_began is not None:
                confidence = math.exp(math.fsum(self.logprobs[self._call_began :]))
                self._call_began = len(self.logprobs)
                event = replace(event, confidence=confidence)
            yield event
