"""Choosing tokens from scores."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from pilotfish.model.protocol import ModelError
from pilotfish.model.sampling import Sampler

SCORES = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])


def draw(sampler: Sampler, scores: torch.Tensor = SCORES, count: int = 400) -> Counter[int]:
    return Counter(sampler.choose(scores).token for _ in range(count))


def test_greedy_takes_the_best() -> None:
    assert draw(Sampler(), count=3) == {1: 3}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_will_do(dtype: torch.dtype) -> None:
    assert Sampler().choose(SCORES.to(dtype)).token == 1


def test_scores_are_left_as_they_were() -> None:
    scores = SCORES.clone()
    Sampler(temperature=1.0, top_k=2, top_p=0.5, forbidden=[1]).choose(scores)
    assert torch.equal(scores, SCORES)


def test_the_same_seed_gives_the_same_tokens() -> None:
    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(temperature=1.5, seed=seed)
        return [sampler.choose(SCORES).token for _ in range(50)]

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)
    assert tokens(-1) == tokens(-1)
    assert tokens(2**70 + 1) == tokens(2**70 + 1)
    assert tokens(None) != tokens(None)


def test_temperature_follows_the_distribution() -> None:
    counts = draw(Sampler(temperature=2.0, seed=0), count=4000)
    expected = (SCORES / 2).softmax(-1)
    for token, probability in enumerate(expected.tolist()):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize("temperature", [1e-8, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert draw(Sampler(temperature=temperature, seed=0), count=5) == {1: 5}


def test_top_k_keeps_so_many() -> None:
    assert set(draw(Sampler(temperature=5.0, top_k=2, seed=0))) == {1, 3}
    assert set(draw(Sampler(temperature=5.0, top_k=99, seed=0))) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    first = float(SCORES.softmax(-1)[1])
    assert set(draw(Sampler(temperature=1.0, top_p=first - 1e-3, seed=0))) == {1}
    assert set(draw(Sampler(temperature=1.0, top_p=first + 1e-3, seed=0))) == {1, 3}
    assert set(draw(Sampler(temperature=1.0, top_p=1e-9, seed=0))) == {1}


def test_min_p_keeps_what_is_likely_enough_beside_the_best() -> None:
    probabilities = SCORES.softmax(-1)
    share = float(probabilities[3] / probabilities[1])
    assert set(draw(Sampler(temperature=1.0, min_p=share + 1e-3, seed=0))) == {1}
    assert set(draw(Sampler(temperature=1.0, min_p=share - 1e-3, seed=0))) == {1, 3}


def test_only_allowed_tokens_come_and_those_beyond_the_mask_do_not() -> None:
    allowed = np.array([True, False, False, True])
    assert Sampler().choose(SCORES, allowed).token == 3
    sampler = Sampler(temperature=5.0, seed=0)
    assert {sampler.choose(SCORES, allowed).token for _ in range(200)} == {0, 3}
    with pytest.raises(ModelError, match="may choose"):
        Sampler().choose(SCORES, np.zeros(5, dtype=np.bool_))


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_choice_knows_how_likely_the_model_held_it(temperature: float) -> None:
    expected = SCORES.double().log_softmax(-1)
    sampler = Sampler(temperature=temperature, seed=0, forbidden=[1])
    for _ in range(20):
        choice = sampler.choose(SCORES, np.array([True, True, False, True, True]))
        assert choice.logprob == pytest.approx(float(expected[choice.token]), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_forbidden_tokens_never_come(temperature: float) -> None:
    sampler = Sampler(temperature=temperature, seed=0, forbidden=[1, 3, 3, 900])
    assert not {1, 3} & set(draw(sampler))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    scores = SCORES.clone()
    scores[4] = bad
    for sampler in (Sampler(), Sampler(temperature=1.0), Sampler(forbidden=[4])):
        with pytest.raises(ModelError, match="checkpoint"):
            sampler.choose(scores)


def test_nothing_to_choose_is_refused() -> None:
    with pytest.raises(ModelError, match="may choose"):
        Sampler(forbidden=range(5)).choose(SCORES)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"top_k": -1},
        {"min_p": -0.1},
        {"min_p": float("nan")},
    ],
)
def test_impossible_settings_are_named(settings: dict[str, float]) -> None:
    with pytest.raises(ModelError, match=next(iter(settings))):
        Sampler(**settings)
