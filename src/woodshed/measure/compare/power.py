"""How many more attempts would decide: the normal law over what attempts and tasks vary by. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

MOST = 100_000
"""Attempts of a task, or tasks; more is no answer."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What the difference of two agents varies by, and how much was seen of them.

    ``within`` is the variance of one attempt of each at one task (None with a single attempt), ``between`` that of the
    true differences of tasks.
    """

    within: float | None
    between: float
    tasks: int
    tries: float


@dataclass(frozen=True, slots=True)
class Needed:
    """What would decide a difference of ``effect`` with the given power.

    ``attempts`` of each task by each agent, in all (None: no number would, tasks differ too much); ``tasks`` like these
    at the present number of attempts. ``detectable`` is the smallest difference that what was seen would mostly decide.
    """

    effect: float
    attempts: int | None
    tasks: int | None
    detectable: float | None


def spread(counts: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> Spread | None:
    """From ((passed, tries), (passed, tries)) by task; None for fewer than two tasks.

    The variance of the tasks' differences is that of tasks plus that of attempts over their number; the latter is
    known, unbiased, from tasks with two attempts or more.
    """
    if len(counts) < 2:
        return None
    differences = [a / n - b / m for (a, n), (b, m) in counts]
    mean = math.fsum(differences) / len(differences)
    total = math.fsum((d - mean) ** 2 for d in differences) / (len(differences) - 1)
    tries = len(counts) / math.fsum(1 / min(n, m) for (_, n), (_, m) in counts)
    repeated = [_variance(a, n) + _variance(b, m) for (a, n), (b, m) in counts if min(n, m) > 1]
    if not repeated:
        return Spread(None, total, len(counts), tries)
    within = math.fsum(repeated) / len(repeated)
    return Spread(within, max(0.0, total - within / tries), len(counts), tries)


def _variance(passed: int, tries: int) -> float:
    rate = passed / tries
    return rate * (1 - rate) * tries / (tries - 1)


def needed(effect: float, seen: Spread, *, alpha: float = 0.05, power: float = 0.8) -> Needed:
    """What a two-sided test at ``alpha`` needs to decide ``effect`` with ``power``.

    SE² = between/T + within/(n·T) must reach (effect / (z₁₋α/₂ + z_power))². The effect is what was seen, and what was
    seen tends to be too large where it drew attention: take the numbers as the least.
    """
    reach = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)
    within = seen.within if seen.within is not None else 0.0
    se = math.sqrt((seen.between + within / seen.tries) / seen.tasks)
    detectable = reach * se if se > 0 else None
    if effect == 0:
        return Needed(effect, None, None, detectable)
    wanted = (effect / reach) ** 2
    attempts = None
    if seen.within is not None and wanted * seen.tasks > seen.between:
        attempts = max(1, math.ceil(seen.within / (wanted * seen.tasks - seen.between) - 1e-9))
    tasks = math.ceil((seen.between + within / seen.tries) / wanted - 1e-9)
    return Needed(effect, attempts if attempts is not None and attempts <= MOST else None,
                  tasks if tasks <= MOST else None, detectable)
