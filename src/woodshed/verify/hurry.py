"""A verification within a deadline that is shorter than the time its task grants the verifier.

Tests that are cut off by a deadline of ours prove nothing by that. So before the first of them the verifier is tried
where no agent had a hand in it, and how long it takes there is what is held against the agent's changes: they hang
where they take ten times as long and more. What the reference itself does not do in time makes nobody's attempt a 0.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace

from woodshed.verify.control import judged_reference, reference_changes
from woodshed.verify.run import Case

TIMES, LEAST_S = 10.0, 2.0
"""Changes are granted so many times what the reference took, and so many seconds more, whatever the deadline: as
variants of a reference are in a calibration."""
_PLAYED, _JUDGED = 1 / 2, 1 / 3
"""Of the deadline, what the reference may take to be played, and its tests."""
_TRIES = 2


@dataclass(slots=True)
class Pace:
    """How the verifier does without an agent, of one step of a task: found out once, or twice where it fails.

    ``seconds`` are what it took where it works, ``fault`` says what is wrong where it does not; neither, where the
    reference itself could not be played in time, which says nothing of the tests.
    """

    seconds: float | None = None
    fault: str | None = None
    slow: bool = False
    failures: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def settled(self) -> bool:
        """Nothing more is found out."""
        return self.slow or self.seconds is not None or self.failures >= _TRIES

    async def found(self, case: Case, within_s: float) -> None:
        """It is known as far as ``within_s`` seconds tell. Raises what the engine raises."""
        async with self.lock:
            if self.settled:
                return
            try:
                async with asyncio.timeout(_PLAYED * within_s) as playing:
                    changes = await reference_changes(case)
            except TimeoutError:
                if not playing.expired():
                    raise
                self.slow = True
                return
            began = time.monotonic()
            fault = changes if isinstance(changes, str) else await judged_reference(
                bounded(case, _JUDGED * within_s), changes)
            if fault is None:
                self.seconds, self.fault = time.monotonic() - began, None
            else:
                self.fault, self.failures = fault, self.failures + 1


@dataclass(frozen=True, slots=True)
class Hurry:
    """One verification that is to be over ``within_s`` seconds after it ``began`` (monotonic)."""

    within_s: float
    began: float
    pace: Pace

    def case(self, case: Case) -> Case:
        """The case as it is to be run now: with what is left, and never with less than the reference's pace grants."""
        if self.pace.slow:
            return case
        left_s = self.began + self.within_s - time.monotonic()
        return bounded(case, max(left_s, TIMES * (self.pace.seconds or 0.0) + LEAST_S))


def bounded(case: Case, seconds: float) -> Case:
    """The same with tests, and probes, that have so many seconds at the most."""
    spec = case.task.verifier
    verifier = spec.model_copy(update={"timeout_s": min(spec.timeout_s, seconds)})
    return replace(case, task=case.task.model_copy(update={"verifier": verifier}))
