"""How many workers are wanted, from what waits and how fast it goes. Pure: no clock, no process, no database.

The work left, at the pace of late, over the time it may take, is the need: a number of workers, with a fraction. It is
met at once where it grows. Where it falls, the number falls to a quarter more than the need, no sooner than a cool-down
after the last change: between the two nothing changes, so a load that wavers by less than that moves nobody
(hysteresis). Nothing left to do wants the least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SLACK = 0.25
"""A number within the need and so much more of it stays."""
_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class Bounds:
    """``least`` to ``most`` workers; what is there is to be done in ``drain_s``; fewer at most every ``cool_s``."""

    least: int = 0
    most: int = 1
    drain_s: float = 600.0
    cool_s: float = 60.0

    def __post_init__(self) -> None:
        """Raises ValueError for bounds that nothing is within."""
        if not 0 <= self.least <= self.most or self.drain_s <= 0 or self.cool_s < 0:
            raise ValueError(f"no number of workers is within {self}")

    def within(self, count: float) -> int:
        """The whole number next above ``count`` within the bounds."""
        return int(min(max(math.ceil(count - _EPS), self.least), self.most))


@dataclass(frozen=True, slots=True)
class Load:
    """What there is to do: attempts that wait and that are at work, ``slots`` of a worker, seconds of an attempt.

    ``attempt_s`` is None as long as none has ended; then one is taken to last as long as all may.
    """

    ready: int
    running: int
    slots: float
    attempt_s: float | None = None

    def need(self, drain_s: float) -> float:
        """Workers with which it is done in ``drain_s``, never more than have something to do; 0.0 without work."""
        left, slots = self.ready + self.running, max(self.slots, 1.0)
        each = drain_s if self.attempt_s is None else self.attempt_s
        return left / slots * min(1.0, each / drain_s) if left else 0.0

    def drain_s(self, workers: int) -> float | None:
        """Seconds until so many workers are done; None where that is not known, or never."""
        left = self.ready + self.running
        if not left:
            return 0.0
        if self.attempt_s is None or workers < 1:
            return None
        return self.attempt_s * max(1.0, left / (max(self.slots, 1.0) * workers))


class Scaler:
    """Remembers what it last wanted, and since when. ``decide`` is called every few seconds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.wanted = bounds, bounds.least
        self._changed_at = -math.inf

    def decide(self, load: Load, at: float) -> int:
        """The number of workers wanted from now (``at``, seconds on a clock that never goes back) on."""
        need = load.need(self.bounds.drain_s)
        floor = 1 if load.ready + load.running else 0
        enough = self.bounds.within(max(need, floor))
        plenty = self.bounds.within(max(need * (1 + SLACK), floor))
        if enough > self.wanted:
            self._set(enough, at)
        elif plenty < self.wanted and at - self._changed_at >= self.bounds.cool_s:
            self._set(plenty, at)
        return self.wanted

    def _set(self, count: int, at: float) -> None:
        self.wanted, self._changed_at = count, at
