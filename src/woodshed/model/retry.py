"""RetryRules: which faults are tried again, how often and how soon. Data and arithmetic, without a clock or chance.

Nothing is ever tried again because the agent failed: only an :class:`Invalid` verdict whose fault is retryable is asked
about at all. Faults of the infrastructure and of the model have budgets of their own, so that a flaky endpoint does
not use up what a dying worker needs, and the other way round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field, field_validator

from woodshed.errors import INVALID_CAUSES, Cause
from woodshed.model.record import Record
from woodshed.model.verdict import Invalid, Valid, Verdict

STAGES = ("prepare", "act", "capture", "verify", "grade", "close")
"""Where an execution may break, in the order of :func:`woodshed.attempt.run_attempt`."""


class Budget(StrEnum):
    """Who pays for a retry."""

    INFRASTRUCTURE = "infrastructure"
    MODEL = "model"


def budget_of(cause: Cause) -> Budget:
    """The model's own faults are the model's; everything else of ours is infrastructure."""
    return Budget.MODEL if cause is Cause.MODEL_API else Budget.INFRASTRUCTURE


class RetryRule(Record):
    """One line of the table ``[[retry]]``. Absent ``cause`` or ``stage`` means any.

    ``max`` is how many retries of faults that this rule matches an attempt may have. The wait before retry n (from 1)
    is ``backoff_s`` × 2^(n−1), at most ``longest_s``, of which the share ``jitter`` is left to chance ("equal jitter",
    Brooker 2015, "Exponential Backoff And Jitter").
    """

    cause: Cause | None = None
    stage: str | None = None
    max: int = Field(default=2, ge=0, le=100)
    backoff_s: float = Field(default=1.0, ge=0, le=3600)
    longest_s: float = Field(default=60.0, ge=0, le=86_400)
    jitter: float = Field(default=0.5, ge=0, le=1)

    @field_validator("cause")
    @classmethod
    def _of_ours(cls, cause: Cause | None) -> Cause | None:
        if cause is not None and cause not in INVALID_CAUSES - {Cause.CANCELLED}:
            allowed = ", ".join(sorted(INVALID_CAUSES - {Cause.CANCELLED}))
            raise ValueError(f"nothing is retried because of '{cause}'; use one of: {allowed}")
        return cause

    @field_validator("stage")
    @classmethod
    def _known(cls, stage: str | None) -> str | None:
        if stage is not None and stage not in STAGES:
            raise ValueError(f"no stage '{stage}'; use one of: {', '.join(STAGES)}")
        return stage

    def matches(self, cause: Cause, stage: str | None) -> bool:
        """Whether the rule is about such a fault."""
        return self.cause in (None, cause) and self.stage in (None, stage)

    def wait_s(self, retry: int, chance: float, asked_s: float = 0.0) -> float:
        """Seconds before retry number ``retry`` (from 1); ``chance`` in [0, 1) decides the jitter.

        What the other side asked for (Retry-After) is a floor, and no ``longest_s`` shortens it.
        """
        backoff = min(self.longest_s, self.backoff_s * 2.0 ** min(retry - 1, 60))
        return max(asked_s, backoff * (1.0 - self.jitter * chance))


class Broken(Record):
    """One fault of an attempt's past: what broke, where, and whether trying again could help."""

    cause: Cause
    stage: str | None = None
    retryable: bool = False
    asked_s: float = Field(default=0.0, ge=0, description="the other side's Retry-After")


class BreakerRule(Record):
    """A run is paused when fewer than ``valid_rate`` of its last ``over`` executions were valid."""

    valid_rate: float = Field(default=0.2, ge=0, le=1)
    over: int = Field(default=20, ge=1, le=10_000)


class RetryRules(Record):
    """The table of a run. The first rule that matches a fault decides; a fault that none matches is final.

    ``infrastructure`` and ``model`` bound the retries of one attempt by who pays, whatever the rules allow. By default
    a model's fault is tried again once only: the gateway has tried each call several times by then. Without a
    ``breaker`` a run goes on whatever breaks.
    """

    version: int = 1
    retry: tuple[RetryRule, ...] = (
        RetryRule(cause=Cause.MODEL_API, max=1, backoff_s=2.0, longest_s=120.0),
        RetryRule(max=2, backoff_s=0.5),
    )
    infrastructure: int = Field(default=3, ge=0, le=100)
    model: int = Field(default=5, ge=0, le=100)
    breaker: BreakerRule | None = BreakerRule()

    def wait_s(self, past: Sequence[Broken], chance: float) -> float | None:
        """Seconds until the next execution after the faults ``past`` (oldest first); None: the last one stands."""
        last = past[-1]
        if not last.retryable or last.cause is Cause.CANCELLED:
            return None
        rule = next((rule for rule in self.retry if rule.matches(last.cause, last.stage)), None)
        if rule is None:
            return None
        payer = budget_of(last.cause)
        paid = sum(budget_of(fault.cause) is payer for fault in past)
        bound = self.model if payer is Budget.MODEL else self.infrastructure
        seen = sum(self._rule(fault) is rule for fault in past)
        if paid > bound or seen > rule.max:
            return None
        return rule.wait_s(seen, chance, last.asked_s)

    def _rule(self, fault: Broken) -> RetryRule | None:
        return next((rule for rule in self.retry if rule.matches(fault.cause, fault.stage)), None)


class Breaker:
    """Watches the executions of a run as they end. It speaks once; a resumed run has a new one."""

    def __init__(self, rule: BreakerRule) -> None:
        self._rule = rule
        self._last: deque[Invalid | None] = deque(maxlen=rule.over)

    def add(self, verdict: Verdict) -> str | None:
        """Why the run must be paused, or None. Cancellation says nothing about validity and is not counted."""
        if isinstance(verdict, Invalid) and verdict.cause is Cause.CANCELLED:
            return None
        self._last.append(None if isinstance(verdict, Valid) else verdict)
        if len(self._last) < self._rule.over:
            return None
        broken = [verdict for verdict in self._last if verdict is not None]
        if len(self._last) - len(broken) >= self._rule.valid_rate * len(self._last):
            return None
        causes = sorted({verdict.cause.value for verdict in broken})
        return (f"only {len(self._last) - len(broken)} of the last {len(self._last)} executions were valid "
                f"({', '.join(causes)}); the last fault: {broken[-1].detail}")
