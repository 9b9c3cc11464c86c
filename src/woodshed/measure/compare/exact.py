"""Exact tests and intervals for counts. Pure arithmetic, no table and no normal law but where it says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

_MOST_BITS = 40_000_000
"""Of the polynomial that counts sign patterns; beyond, hundreds of tasks differ and the normal law is as good."""


def binomial_tail(n: int, c: int, p: float) -> float:
    """The chance of c or more successes in n tries of chance p."""
    if c <= 0:
        return 1.0
    if p <= 0.0 or p >= 1.0:
        return float(p >= 1.0)
    log_p, log_q = math.log(p), math.log1p(-p)
    terms = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_p + (n - k) * log_q
             for k in range(c, n + 1))
    return min(1.0, math.fsum(map(math.exp, terms)))


def clopper_pearson(c: int, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """The exact interval of a rate from c successes in n independent tries: it covers with at least 1 − alpha.

    Clopper and Pearson 1934. Raises ValueError unless 0 ≤ c ≤ n and n > 0.
    """
    if not 0 <= c <= n or n <= 0:
        raise ValueError(f"no interval for {c} of {n}")
    low = 0.0 if c == 0 else _solved(lambda p: binomial_tail(n, c, p), alpha / 2)
    high = 1.0 if c == n else 1.0 - _solved(lambda p: binomial_tail(n, n - c, p), alpha / 2)
    return low, high


def _solved(rising: Callable[[float], float], level: float) -> float:
    """Where a rising function of [0, 1] reaches ``level``, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def sign_test(wins: int, losses: int) -> float:
    """The two-sided exact sign test: as many or more of the one kind among those that differ, were both as likely."""
    n, more = wins + losses, max(wins, losses)
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(more, n + 1))
    return min(1.0, 2 * tail / (1 << n))


def sign_flip(differences: Sequence[int]) -> float:
    """The two-sided p of the mean of paired differences (whole numbers of any unit), by all patterns of signs.

    Exact where the two sides are exchangeable in each pair (Fisher's randomisation test): all 2^n patterns are counted
    in one polynomial. Where that has too many terms, the normal law with the same variance, corrected for steps.
    """
    values = [abs(value) for value in differences if value]
    if not values:
        return 1.0
    unit = math.gcd(*values)
    values = [value // unit for value in values]
    observed, total = abs(sum(differences)) // unit, sum(values)
    if observed == 0:
        return 1.0
    width = len(values) // 8 * 8 + 8  # bits of a coefficient: none exceeds 2^n
    if total * width > _MOST_BITS:
        z = max(0.0, observed - 1) / math.sqrt(sum(value * value for value in values))
        return math.erfc(z / math.sqrt(2))
    polynomial = 1
    for value in values:
        polynomial += polynomial << (value * width)
    above = polynomial >> ((total + observed) // 2 * width)
    tail = _sum_of_coefficients(above, width // 8)
    return min(1.0, 2 * tail / (1 << len(values)))


def _sum_of_coefficients(packed: int, step: int) -> int:
    data = packed.to_bytes((packed.bit_length() + 7) // 8 + step, "little")
    return sum(int.from_bytes(data[at:at + step], "little") for at in range(0, len(data), step))


def same_on_these(counts: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> float:
    """The two-sided exact p that both pass each of these tasks with one chance; ((passed, tries), (passed, tries)).

    All ways to deal a task's passes to its tries, tasks convolved (the exact Mantel-Haenszel test); with one try of
    each by each it is McNemar's exact test. It speaks of these tasks alone, not of others like them.
    """
    ways, least, observed = [1], 0, 0
    for (first, tries), (second, others) in counts:
        passed = first + second
        low, high = max(0, passed - others), min(tries, passed)
        dealt = [math.comb(tries, k) * math.comb(others, passed - k) for k in range(low, high + 1)]
        ways, least, observed = _product(ways, dealt), least + low, observed + first
    at, total = observed - least, sum(ways)
    tail = min(sum(ways[at:]), sum(ways[:at + 1]))
    return min(1.0, 2 * tail / total)


def _product(left: Sequence[int], right: Sequence[int]) -> list[int]:
    out = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            out[i + j] += a * b
    return out


def holm(values: Sequence[float]) -> list[float]:
    """The p values of several comparisons, adjusted so that all hold together (Holm 1979), in the order given."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    adjusted, most = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        most = max(most, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = most
    return adjusted
