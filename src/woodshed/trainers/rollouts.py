"""Rollouts: an attempt, its verdict and its calls as one record for a trainer; and groups with their baseline. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from woodshed.model import Attempt, StopReason, Valid
from woodshed.model.rollout import CaptureLevel, Rollout
from woodshed.trainers.records import Calls
from woodshed.trainers.stitch import Stitched, stitch

_CUT_OFF = frozenset({StopReason.TURNS, StopReason.TOOL_CALLS, StopReason.TOKENS, StopReason.WALL, StopReason.CONTEXT})
"""With these an attempt may end while a call is being answered; nothing of that answer was used, so nothing is lost."""


def rollout(attempt: Attempt, calls: Calls, *, spoilt: Iterable[str] = ()) -> Rollout:
    """The rollout of a finished attempt. ``spoilt`` are further reasons why its tokens may not be learnt from.

    Rows are there only where every call of it can be relied upon; otherwise ``untrainable`` names each reason.
    Raises ValueError for an attempt without an outcome.
    """
    if attempt.outcome is None:
        raise ValueError(f"{attempt.id} has no outcome")
    verdict = attempt.outcome.verdict
    stitched = stitch(calls.records)
    lost = calls.lost if calls.cut is None or attempt.outcome.stop in _CUT_OFF else (*calls.lost, calls.cut)
    valid, reward = isinstance(verdict, Valid), verdict.total if isinstance(verdict, Valid) else None
    unrewarded = () if reward is not None else (f"it has no reward ({verdict.cause or 'unknown'})",)
    reasons = (*unrewarded, *_reasons(calls, lost, stitched), *spoilt)
    return Rollout(
        rollout=f"{attempt.id}-{attempt.executions}", attempt=attempt.id, execution=attempt.executions,
        task=attempt.task, agent=attempt.agent, index=attempt.index, seed=attempt.seed,
        reward=reward,
        rewards=dict(verdict.rewards) if isinstance(verdict, Valid) else {},
        valid=valid, passed=verdict.passed if isinstance(verdict, Valid) else None, cause=verdict.cause,
        flags=verdict.flags if isinstance(verdict, Valid) else (), stop=attempt.outcome.stop.value,
        trainable=not reasons, untrainable=reasons, capture_level=calls.capture_level, drift=stitched.drift,
        rows=() if reasons else stitched.rows,
    )


def _reasons(calls: Calls, lost: Iterable[str], stitched: Stitched) -> tuple[str, ...]:
    found = [f"call {name} has no answer to rely upon" for name in lost]
    found += [f"call {name} is recorded twice, and differently" for name in stitched.contradictions]
    found += [f"call {record.call}: {flaw}" for record in calls.records for flaw in record.flaws]
    text = [record.call for record in calls.records if record.capture_level is CaptureLevel.TEXT]
    if not calls.records:
        found.append("no model was called")
    elif len(text) == len(calls.records) and not any(record.flaws for record in calls.records):
        found.append("the server told no token ids (capture level text)")
    else:
        found += [f"call {name} has no token ids" for name in text]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What rewards of a group are measured against: those of its valid rollouts alone; None where there is none.

    ``deviation`` is that of the population, as GRPO divides by.
    """

    valid: int
    mean: float | None
    deviation: float | None

    def advantage(self, reward: float | None) -> float | None:
        """The reward over the mean, not divided; None for a rollout that has no reward."""
        return None if reward is None or self.mean is None else reward - self.mean


def baseline(group: Sequence[Rollout]) -> Baseline:
    """The baseline of a whole group. What is invalid, or has no reward, moves nothing."""
    rewards = [one.reward for one in group if one.valid and one.reward is not None]
    if not rewards:
        return Baseline(0, None, None)
    mean = math.fsum(rewards) / len(rewards)
    return Baseline(len(rewards), mean, math.sqrt(math.fsum((one - mean) ** 2 for one in rewards) / len(rewards)))
