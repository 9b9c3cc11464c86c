"""Exact tests against known values, brute force and each other."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.measure.compare import clopper_pearson, holm, interval, same_on_these, sign_flip, sign_test
from woodshed.measure.rates import all_of_k, pass_at_k


@pytest.mark.parametrize(("c", "n", "low", "high"), [
    (0, 10, 0.0, 0.30849710781876083), (10, 10, 0.6915028921812392, 1.0), (5, 10, 0.18708602844739, 0.8129139715526),
    (1, 20, 0.00126508974979, 0.24873276277), (19, 20, 0.75126723723, 0.99873491025), (81, 263, 0.2527, 0.3676),
])  # fmt: skip
def test_the_exact_interval_has_known_values(c: int, n: int, low: float, high: float) -> None:
    """As published, and as R's binom.test gives them."""
    assert clopper_pearson(c, n) == pytest.approx((low, high), abs=6e-5)


def test_an_interval_of_nothing_is_refused() -> None:
    """No tries, or more successes than tries, have none."""
    for c, n in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="no interval"):
            clopper_pearson(c, n)


@pytest.mark.parametrize(("wins", "losses", "p"), [
    (0, 0, 1.0), (5, 0, 0.0625), (6, 0, 0.03125), (8, 2, 0.109375), (10, 10, 1.0), (12, 3, 0.03515625),
])  # fmt: skip
def test_the_sign_test_has_known_values(wins: int, losses: int, p: float) -> None:
    """Twice the tail of a fair coin, whichever side won."""
    assert sign_test(wins, losses) == sign_test(losses, wins) == p


@given(st.lists(st.integers(-6, 6), max_size=9))
def test_flipping_signs_counts_every_pattern(differences: list[int]) -> None:
    """The polynomial gives what listing all patterns gives, in any unit."""
    seen = abs(sum(differences))
    patterns = [abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
                for signs in product((1, -1), repeat=len(differences))]
    brute = sum(one >= seen for one in patterns) / len(patterns)
    assert sign_flip(differences) == pytest.approx(brute)
    assert sign_flip([7 * d for d in differences]) == pytest.approx(brute)


def test_flipping_signs_of_very_many_tasks_takes_the_normal_law() -> None:
    """Where there are too many patterns the answer is near that of a slightly smaller case that is exact."""
    chance = random.Random(3)
    some = [chance.choice((-3, -1, 1, 2)) * 997 + chance.randrange(3) for _ in range(300)]
    coarse = [round(d / 997) for d in some]
    assert sign_flip(some * 3) == pytest.approx(sign_flip(coarse * 3), rel=0.05)


def test_one_try_of_each_is_mcnemar() -> None:
    """Only tasks where they differ count, and the p is the sign test's."""
    counts = [((1, 1), (0, 1))] * 8 + [((0, 1), (1, 1))] * 2 + [((1, 1), (1, 1))] * 30 + [((0, 1), (0, 1))] * 7
    assert same_on_these(counts) == pytest.approx(sign_test(8, 2))
    assert same_on_these([((1, 1), (1, 1))] * 5) == 1.0
    assert same_on_these([]) == 1.0


def test_one_task_is_the_exact_test_of_a_two_by_two_table() -> None:
    """Fisher's tea lady: three of four right has a doubled tail of 0.4857."""
    assert same_on_these([((3, 4), (1, 4))]) == pytest.approx(2 * 17 / 70)


def test_adjusted_values_are_those_of_holm() -> None:
    """Known values; the order is kept and none falls below a smaller one's."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_at_k_and_of_k_are_means_over_all_choices(case: tuple[int, int, int]) -> None:
    """pass^k is the share of k attempts that all pass, pass@k that of those where one does; they mirror each other."""
    n, c, k = case
    assert all_of_k(n, c, k) == pytest.approx(math.comb(c, k) / math.comb(n, k))
    assert all_of_k(n, c, k) == pytest.approx(1 - pass_at_k(n, n - c, k))


def test_of_k_beyond_the_tries_is_refused() -> None:
    """With fewer tries than k there is no unbiased estimate."""
    with pytest.raises(ValueError, match=r"pass\^3"):
        all_of_k(2, 1, 3)


def test_an_interval_over_tasks_repeats_and_widens_what_drawing_narrows() -> None:
    """The same seed gives the same interval around the mean; a single task, or equal ones, have none."""
    values = [0.0, 0.2, 0.4, -0.2, 0.6, 0.2]
    low, high = interval(values, seed=1) or (0, 0)
    assert (low, high) == interval(values, seed=1)
    assert low < sum(values) / 6 < high
    assert interval([0.5]) is None
    assert interval([0.5, 0.5]) is None
