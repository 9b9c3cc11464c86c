"""Faults: what becomes of an attempt that the infrastructure broke, by dice, and what a trainer is told of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from woodshed.errors import Cause
from woodshed.model import Attempt, Invalid, Outcome, Valid
from woodshed.model.retry import Broken


class Follows(StrEnum):
    """What the faults follow: nothing, success, or length (each turn may break)."""

    NOTHING = "nothing"
    SUCCESS = "success"
    LENGTH = "length"


class Treatment(StrEnum):
    """An attempt that broke is invalid, or is taken for one that earned nothing."""

    INVALID = "invalid"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class Faults:
    """``share`` of attempts break; of those that passed ``success`` times as many as of others, or per turn.

    The attempt itself is real and over; its verdict is replaced by that of a verifier that crashed, which is all that
    a trainer would have. So the same dice break the same attempts whatever the treatment is.
    """

    follows: Follows = Follows.NOTHING
    treatment: Treatment = Treatment.INVALID
    share: float = 0.3
    success: float = 3.0

    def struck(self, attempts: Sequence[Attempt], seed: int) -> list[Attempt]:
        """The attempts as a trainer would know them."""
        chances = self._chances(attempts)
        return [self._broken(one) if random.Random(f"{seed} {one.task} {one.index}").random() < chance  # noqa: S311
                else one for one, chance in zip(attempts, chances, strict=True)]

    def _chances(self, attempts: Sequence[Attempt]) -> list[float]:
        """Of each attempt, so that the mean is ``share`` as long as none is certain."""
        weights = [self._weight(one) for one in attempts]
        mean = sum(weights) / max(1, len(weights))
        return [min(1.0, self.share * one / mean) for one in weights]

    def _weight(self, attempt: Attempt) -> float:
        outcome = attempt.outcome
        if outcome is None or self.follows is Follows.NOTHING:
            return 1.0
        if self.follows is Follows.LENGTH:
            return float(max(1, outcome.usage.turns))
        return self.success if isinstance(outcome.verdict, Valid) and outcome.verdict.passed else 1.0

    def _broken(self, attempt: Attempt) -> Attempt:
        outcome = attempt.outcome
        if outcome is None or not isinstance(outcome.verdict, Valid):
            return attempt
        if self.treatment is Treatment.ZERO:
            zero = Valid(rewards=dict.fromkeys(outcome.verdict.rewards, 0.0), total=0.0, cause=Cause.AGENT,
                         assurance=outcome.verdict.assurance)
            return attempt.model_copy(update={"outcome": outcome.model_copy(update={"verdict": zero})})
        verdict = Invalid(cause=Cause.VERIFIER, detail="the verifier crashed (injected)", retryable=False)
        broken = Outcome(verdict=verdict, stop=outcome.stop, usage=outcome.usage, stages_s=outcome.stages_s,
                         used=outcome.used, broke=Broken(cause=verdict.cause, stage="verify"))
        return attempt.model_copy(update={"outcome": broken})
