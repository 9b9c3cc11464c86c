"""Estimates from counts: pass@k, and intervals that say how far a rate can be trusted. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate of the chance that at least one of k tries passes, from c passes in n tries.

    1 − C(n−c, k) / C(n, k), as the product of Chen et al. 2021 (arXiv 2107.03374), which never leaves [0, 1] nor
    overflows. Raises ValueError unless 0 ≤ c ≤ n and 1 ≤ k ≤ n: with fewer tries than k there is no unbiased estimate.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} is not defined for {c} passes in {n} tries")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def wilson(rate: float, n: float, z: float = Z95) -> tuple[float, float]:
    """The Wilson score interval of a rate seen in n independent tries (n may be an effective size, not whole).

    Wilson 1927; unlike the normal interval it stays in [0, 1] and is honest at 0 and 1. Raises ValueError for n ≤ 0 or
    a rate outside [0, 1].
    """
    if not n > 0 or not 0 <= rate <= 1:
        raise ValueError(f"no interval for the rate {rate} of {n} tries")
    centre = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return max(0.0, min(low, rate)), min(1.0, max(high, rate))


def difference(
    before: tuple[int, int], after: tuple[int, int], z: float = Z95
) -> tuple[float, tuple[float, float]]:
    """How much higher the rate of ``after`` is than that of ``before``, each (passed, tries), and its interval.

    Newcombe 1998, method 10: from the Wilson intervals of both, for tries that do not depend on each other; where the
    same tasks were tried, it is rather too wide. Raises ValueError where there are no tries.
    """
    if not before[1] or not after[1]:
        raise ValueError("no difference of rates without tries")
    old, new = before[0] / before[1], after[0] / after[1]
    (old_low, old_high), (new_low, new_high) = wilson(old, before[1], z), wilson(new, after[1], z)
    gained = new - old
    return gained, (gained - math.hypot(new - new_low, old_high - old),
                    gained + math.hypot(new_high - new, old - old_low))


def mean_of_tasks(counts: Sequence[tuple[int, int]]) -> float | None:
    """The mean over tasks of each task's pass rate, from (passed, tries) by task; None when no task was tried.

    Tasks weigh the same however often each was tried, so that lost tries do not tilt the figure.
    """
    rates = [c / n for c, n in counts if n]
    return math.fsum(rates) / len(rates) if rates else None


def interval_of_tasks(counts: Sequence[tuple[int, int]], z: float = Z95) -> tuple[float, float] | None:
    """The interval of :func:`mean_of_tasks`; tries of one task are one cluster, not independent draws.

    Wilson's interval at the effective number of tries p(1−p)/SE², SE the standard error between task means (clusters as
    in Miller 2024, arXiv 2411.00640), never above the number of tries. Where tasks do not differ at all, the number of
    tasks is taken; for a single task its own tries, and the interval then speaks of that task alone.
    """
    rates = [c / n for c, n in counts if n]
    if not rates:
        return None
    tries = sum(n for _, n in counts)
    mean = math.fsum(rates) / len(rates)
    if len(rates) == 1:
        return wilson(mean, tries, z)
    spread = math.fsum((rate - mean) ** 2 for rate in rates) / (len(rates) * (len(rates) - 1))
    effective = mean * (1 - mean) / spread if spread > 1e-12 else float(len(rates))
    return wilson(mean, min(effective, float(tries)), z)


def all_of_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate of the chance that all of k tries pass (pass^k), from c passes in n tries.

    C(c, k) / C(n, k), as in tau-bench (Yao et al. 2024, arXiv 2406.12045). Raises ValueError as :func:`pass_at_k`.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass^{k} is not defined for {c} passes in {n} tries")
    return math.comb(c, k) / math.comb(n, k)
