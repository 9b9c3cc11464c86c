"""How long to wait before the next attempt when the server does not say."""

from __future__ import annotations

from collections.abc import Callable
from random import random


class Backoff:
    """Exponential backoff with equal jitter: half of each delay is fixed, half is random.

    ``rng`` returns floats in [0, 1). It is called exactly once for each delay.
    """

    def __init__(
        self, base_s: float = 1.0, factor: float = 2.0, max_s: float = 60.0, rng: Callable[[], float] = random
    ) -> None:
        self._base_s = base_s
        self._factor = factor
        self._max_s = max_s
        self._rng = rng

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the ``attempt``-th failed attempt, counted from 1."""
        full = min(self._max_s, self._base_s * self._factor ** (attempt - 1))
        return full / 2 + self._rng() * full / 2
