"""What the estimates promise for every count, not only for the ones we thought of."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.measure import interval_of_tasks, mean_of_tasks, pass_at_k, wilson
from woodshed.measure.rates import difference

COUNTS = st.lists(
    st.integers(0, 12).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=0, max_size=12
)


@st.composite
def tries(draw: st.DrawFn, largest: int = 2000) -> tuple[int, int, int]:
    n = draw(st.integers(1, largest))
    return n, draw(st.integers(0, n)), draw(st.integers(1, n))


@given(tries())
def test_pass_at_k_equals_the_exact_ratio_of_binomials(counts: tuple[int, int, int]) -> None:
    """The stable product agrees with exact integer combinatorics to ten digits, also where floats would overflow."""
    n, c, k = counts
    exact = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert pass_at_k(n, c, k) == pytest.approx(exact, abs=1e-10)


@given(tries(9))
def test_pass_at_k_is_the_share_of_all_choices_that_hold_a_pass(counts: tuple[int, int, int]) -> None:
    """It is what one gets by listing every way to choose k of the n tries."""
    n, c, k = counts
    passes = [True] * c + [False] * (n - c)
    assert pass_at_k(n, c, k) == pytest.approx(fmean(any(choice) for choice in combinations(passes, k)))


@given(tries())
def test_pass_at_k_is_a_probability_that_grows_with_passes_and_with_k(counts: tuple[int, int, int]) -> None:
    """It stays in [0, 1], is 0 only without passes, and neither one more pass nor one more try lowers it."""
    n, c, k = counts
    value = pass_at_k(n, c, k)
    assert 0 <= value <= 1
    assert (value == 0) == (c == 0)
    assert c == n or pass_at_k(n, c + 1, k) >= value - 1e-12
    assert k == n or pass_at_k(n, c, k + 1) >= value - 1e-12


@given(st.integers(-3, 12), st.integers(-3, 12), st.integers(-3, 12))
def test_pass_at_k_refuses_what_is_not_defined(n: int, c: int, k: int) -> None:
    """Outside 0 ≤ c ≤ n and 1 ≤ k ≤ n there is an error, never a number."""
    if 0 <= c <= n and 1 <= k <= n:
        pass_at_k(n, c, k)
    else:
        with pytest.raises(ValueError, match="not defined"):
            pass_at_k(n, c, k)


@given(st.floats(0, 1), st.floats(0.5, 1e6), st.floats(0.5, 1e6))
def test_wilson_holds_the_rate_and_narrows_with_more_tries(rate: float, one: float, other: float) -> None:
    """The interval lies in [0, 1], contains the rate, and is no wider for more tries."""
    few, many = sorted((one, other))
    low, high = wilson(rate, few)
    assert 0 <= low <= rate <= high <= 1
    assert high > low
    tighter = wilson(rate, many)
    assert tighter[1] - tighter[0] <= high - low + 1e-12


def test_wilson_agrees_with_published_values() -> None:
    """Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611."""
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)


@given(COUNTS)
def test_the_interval_of_tasks_is_defined_exactly_where_the_mean_is(counts: list[tuple[int, int]]) -> None:
    """Tasks without a valid try say nothing; with none at all there is neither mean nor interval; else it holds it."""
    mean, interval = mean_of_tasks(counts), interval_of_tasks(counts)
    tried = [(c, n) for c, n in counts if n]
    assert mean == mean_of_tasks(tried)
    assert (mean is None) == (interval is None) == (not tried)
    if mean is not None and interval is not None:
        assert 0 <= interval[0] <= mean + 1e-12
        assert mean - 1e-12 <= interval[1] <= 1


@given(st.integers(2, 20), st.integers(1, 19), st.integers(2, 40))
def test_repeating_tries_of_unequal_tasks_does_not_fake_certainty(tasks: int, passing: int, repeats: int) -> None:
    """Tasks that always pass or always fail: trying each of them more often adds nothing about further tasks."""
    passing = min(passing, tasks - 1)
    once = interval_of_tasks([(1, 1)] * passing + [(0, 1)] * (tasks - passing))
    often = interval_of_tasks([(repeats, repeats)] * passing + [(0, repeats)] * (tasks - passing))
    assert once is not None
    assert often is not None
    naive = wilson(passing / tasks, tasks * repeats)
    assert often == pytest.approx(once)
    assert often[1] - often[0] > naive[1] - naive[0]


def test_a_difference_of_rates_is_newcombes() -> None:
    """The examples of his paper (1998, table II, method 10): 56/70 and 48/80, 9/10 and 3/10, 10/10 and 0/20."""
    for before, after, low, high in (((48, 80), (56, 70), 0.0524, 0.3339), ((3, 10), (9, 10), 0.1705, 0.8090),
                                     ((0, 20), (10, 10), 0.6791, 1.0)):
        gained, interval = difference(before, after)
        assert gained == pytest.approx(after[0] / after[1] - before[0] / before[1])
        assert interval == pytest.approx((low, high), abs=5e-4)
    with pytest.raises(ValueError, match="without tries"):
        difference((0, 0), (1, 2))


@given(tries(60), tries(60))
def test_a_difference_of_rates_stays_in_its_interval(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    """And turned round it is the same with the other sign."""
    before, after = (one[1], one[0]), (other[1], other[0])
    gained, (low, high) = difference(before, after)
    assert -1 - 1e-9 <= low <= gained <= high <= 1 + 1e-9
    back, (back_low, back_high) = difference(after, before)
    assert (back, back_low, back_high) == pytest.approx((-gained, -high, -low), abs=1e-9)
