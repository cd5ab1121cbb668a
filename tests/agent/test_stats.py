from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.agent.stats import Z95, percentile, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (5, 10, 0.2366, 0.7634),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),
        (0, 0, 0, 1),
    ],
)
def test_wilson_against_published_values(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))))
def test_a_bound_is_where_the_normal_test_turns(pair: tuple[int, int]) -> None:
    successes, trials = pair
    rate = successes / trials
    low, _ = wilson(successes, trials)
    assert abs(rate - low) == pytest.approx(Z95 * math.sqrt(low * (1 - low) / trials), rel=1e-6)


def test_percentile() -> None:
    assert percentile([], 0.5) == 0
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile(range(101), 0.95) == 95
