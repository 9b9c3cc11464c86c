"""One thing under measurement: an engine of ours or a yardstick."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from woodshed.errors import EnvironmentFault

CREATE, EXEC, WARM, SNAPSHOT, FORK = "create_exec_destroy_ms", "exec_ms", "warm_claim_ms", "snapshot_ms", "fork_ms"
MEASURES = (CREATE, EXEC, WARM, SNAPSHOT, FORK)
BURST = 5
"""Samples in a row, not counting the first, which is thrown away."""

Burst = Callable[[int], Awaitable[list[float]]]
"""So many samples in a row, in milliseconds. Raises Missing or a WoodshedError."""


class Missing(EnvironmentFault):
    """This machine or this engine does not have it; the message says why, and how to get it where it can be got."""

    retryable = False


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class Subject:
    """A name, what it is and is not, and what can be measured of it.

    ``share`` is how many of the samples it takes: one that is slow by two orders of magnitude takes fewer. ``why`` says
    for each measure that it has not why that is so.
    """

    name: str
    about: str
    lacks: str
    bursts: dict[str, Burst]
    why: dict[str, str] = field(default_factory=dict)
    share: float = 1.0
    close: Callable[[], Awaitable[None]] = _nothing
    phases: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds of the parts of a cycle, where the subject can tell them apart."""

    def drop(self, measure: str, reason: str) -> None:
        """Measure it no more."""
        self.bursts.pop(measure, None)
        self.why[measure] = reason
