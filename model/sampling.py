"""From scores to a token: greedy, or temperature with top-k, top-p and min-p, repeatable by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pilotfish.model.protocol import ModelError

# Tokens that stand for media in a prompt. A model never writes them: as input they would claim features that
# do not exist. Speech markers are reserved by the published tokenizer.
MEDIA_TOKENS = (
    "]<]image[>[",
    "]<]video[>[",
    "]<]start of image[>[",
    "]<]end of image[>[",
    "]<]start of video[>[",
    "]<]end of video[>[",
    "]<]vision pad[>[",
    "]<]speech[>[",
    "]<]start of speech[>[",
    "]<]end of speech[>[",
)


@dataclass(frozen=True)
class Choice:
    """A token, and the natural logarithm of the probability the model gave it before any rule applied."""

    token: int
    logprob: float


class Sampler:
    """Chooses one token at a time; one sampler serves one answer.

    temperature: 0 is greedy, higher flattens the distribution.
    top_p: keep the most likely tokens whose probabilities reach this sum (1 keeps all).
    top_k: keep this many of the most likely tokens (0 keeps all).
    min_p: keep the tokens at least this share as likely as the most likely one (0 keeps all).
    seed: the same seed and the same scores give the same tokens; None draws a fresh one.
    forbidden: ids that are never chosen.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int | None = None,
        forbidden: Iterable[int] = (),
    ):
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ModelError(f"temperature is {temperature}; give a number of at least 0.")
        if not 0 < top_p <= 1:
            raise ModelError(f"top_p is {top_p}; give a number above 0 and at most 1.")
        if top_k < 0:
            raise ModelError(f"top_k is {top_k}; give 0 for all tokens or how many to keep.")
        if not 0 <= min_p <= 1:
            raise ModelError(f"min_p is {min_p}; give a number from 0 to 1.")
        self.temperature, self.top_p, self.top_k, self.min_p = temperature, top_p, top_k, min_p
        self._forbidden = torch.tensor(sorted(set(forbidden)), dtype=torch.long)
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed % 2**63)

    def choose(self, logits_V: Tensor, allowed: npt.NDArray[np.bool_] | None = None) -> Choice:
        """Choose the next token for the scores [V] of one position.

        allowed: which ids may be chosen [at most V], None for all; ids beyond it may not.
        Raises ModelError when a score is NaN or plus infinity, or when no token may be chosen.
        """
        scores_V = logits_V.detach().to("cpu", torch.float32, copy=True)
        top = float(scores_V.max())
        if not math.isfinite(top):  # max() is NaN as soon as one score is
            raise ModelError(
                f"The model's best score is {top}, so no token can be chosen; "
                "load the checkpoint again with dtype float32, or replace it."
            )
        total = float(scores_V.logsumexp(-1))
        if allowed is not None:
            scores_V[: len(allowed)].masked_fill_(torch.from_numpy(~allowed), -math.inf)
            scores_V[len(allowed) :] = -math.inf
        scores_V[self._forbidden[self._forbidden < len(scores_V)]] = -math.inf
        best = int(scores_V.argmax())
        if scores_V[best] == -math.inf:
            raise ModelError("Every token the model may choose has no score; replace the checkpoint.")
        # In double, because a tiny temperature is zero in single and would make the best score 0 / 0.
        relative_V = (scores_V - scores_V[best]).double()
        token = best if self.temperature == 0 else self._draw(relative_V / self.temperature)
        return Choice(token, float(scores_V[token]) - total)

    def _draw(self, scores_V: Tensor) -> int:
        if self.top_k and self.top_k < len(scores_V):
            kept, ids = scores_V.topk(self.top_k)
        else:
            kept, ids = scores_V.sort(descending=True)
        probabilities = kept.softmax(-1)
        if self.min_p > 0:
            probabilities[probabilities < self.min_p * probabilities.max()] = 0
            probabilities /= probabilities.sum()
        if self.top_p < 1:
            # A token stays while the tokens before it do not reach top_p, so the best one always stays.
            before = probabilities.cumsum(-1) - probabilities
            probabilities[before >= self.top_p] = 0
        return int(ids[torch.multinomial(probabilities, 1, generator=self._generator)])
