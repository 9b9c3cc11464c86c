"""The interval of a mean over tasks, by drawing tasks anew. Pure; a seed makes it repeat."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

ROUNDS = 2000


def interval(
    values: Sequence[float], *, alpha: float = 0.05, rounds: int = ROUNDS, seed: int = 0
) -> tuple[float, float] | None:
    """The bootstrap interval of the mean of ``values``, one a task, tasks drawn with replacement.

    None for fewer than two, and where all are the same: to draw them anew tells nothing then.
    Percentiles of the drawn means (Efron 1979), their distance to the mean widened by √(n/(n−1)): drawing spreads by
    the plain variance, which is too small by that factor. A task's attempts are one value: they are one cluster.
    """
    n = len(values)
    if n < 2 or max(values) - min(values) < 1e-12:
        return None
    mean = math.fsum(values) / n
    chance = random.Random(seed)  # noqa: S311  (an interval must repeat)
    drawn = sorted(sum(chance.choices(values, k=n)) / n for _ in range(rounds))
    wide = math.sqrt(n / (n - 1))
    cut = int(rounds * alpha / 2)
    return mean + (drawn[cut] - mean) * wide, mean + (drawn[rounds - 1 - cut] - mean) * wide
