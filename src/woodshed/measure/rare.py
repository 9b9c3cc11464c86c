"""Rare events: what tries without one, or with few, allow to say of how often it happens. Pure arithmetic.

After n tries without an event, the exact bound at 95 % is 1 − 0.05^(1/n), a little below 3/n ("rule of three": Hanley
and Lippman-Hand 1983). With events it is the one-sided bound of Clopper and Pearson 1934.
"""

from __future__ import annotations

import math

CONFIDENCE = 0.95


def upper_bound(events: int, tries: int, confidence: float = CONFIDENCE) -> float:
    """The rate that ``events`` in ``tries`` still allow at ``confidence``. Raises ValueError for impossible counts."""
    if not 0 <= events <= tries or not 0 < confidence < 1:
        raise ValueError(f"no bound for {events} events in {tries} tries")
    if events == tries:
        return 1.0
    low, high = events / tries, 1.0
    for _ in range(60):  # the chance of so few events falls as the rate rises
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(events, tries, middle) > 1 - confidence else (low, middle)
    return high


def tries_for(bound: float, confidence: float = CONFIDENCE) -> int:
    """How many tries without an event it takes to say "at most ``bound``". Raises ValueError outside (0, 1)."""
    if not 0 < bound < 1 or not 0 < confidence < 1:
        raise ValueError(f"no number of tries bounds a rate by {bound}")
    return math.ceil(math.log(1 - confidence) / math.log1p(-bound))


def _at_most(events: int, tries: int, rate: float) -> float:
    """The chance of at most so many events, each try having ``rate``; in logarithms, so that it never underflows."""
    if rate >= 1:
        return 0.0
    if rate <= 0:
        return 1.0
    logs = [math.lgamma(tries + 1) - math.lgamma(k + 1) - math.lgamma(tries - k + 1)
            + k * math.log(rate) + (tries - k) * math.log1p(-rate) for k in range(events + 1)]
    top = max(logs)
    return min(1.0, math.exp(top) * math.fsum(math.exp(one - top) for one in logs))
