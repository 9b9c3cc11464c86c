"""Preference pairs: of two attempts of one task by one agent, which went better, from where they part. Pure.

Columns are those of TRL's conversational preference sets: ``prompt``, ``chosen``, ``rejected``, ``tools``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from woodshed.model import Attempt, Valid
from woodshed.trainers.chat import Chat, whole
from woodshed.trainers.records import Calls
from woodshed.trainers.rules import PreferenceRules, flagged


@dataclass(frozen=True, slots=True)
class Candidate:
    """An attempt that may stand in a pair. ``stars`` is the mean of what people gave it; None where nobody did."""

    attempt: Attempt
    talk: list[Chat]
    tools: list[Any]
    total: float
    stars: float | None
    clean: bool


def candidate(
    attempt: Attempt, calls: Calls, stars: Sequence[int], rules: PreferenceRules, dropped: Counter[str]
) -> Candidate | None:
    """The attempt as it may stand in pairs; None where it may not, which is counted in ``dropped``."""
    verdict = attempt.outcome.verdict if attempt.outcome else None
    if not isinstance(verdict, Valid):
        dropped["attempts: not valid"] += 1
    elif verdict.total is None:
        dropped["attempts: total unknown"] += 1
    elif (talk := whole(calls.records)) is None:
        dropped["attempts: no single conversation (compacted, or no model)"] += 1
    else:
        mean = sum(stars) / len(stars) if stars and rules.ratings else None
        return Candidate(attempt, talk, list(calls.records[0].tools), verdict.total, mean,
                         not flagged(verdict, rules.without_flags))
    return None


def pairs(group: Sequence[Candidate], rules: PreferenceRules, dropped: Counter[str]) -> list[dict[str, Any]]:
    """The pairs of one group, those that differ most first. Those that were dropped are counted by reason."""
    if len(group) == 1:
        dropped["groups: a single attempt, and nothing to pair it with"] += 1
    found: list[tuple[tuple[float, float, str, str], dict[str, Any]]] = []
    for one, other in combinations(group, 2):
        better = _better(one, other, rules)
        if isinstance(better, str):
            dropped[f"pairs: {better}"] += 1
            continue
        chosen, rejected, by = better
        if not chosen.clean:
            dropped["pairs: the better one is flagged"] += 1
            continue
        row = _row(chosen, rejected, by, rules)
        if row is None:
            dropped["pairs: nothing in common, or no difference"] += 1
            continue
        apart = (-(chosen.total - rejected.total), -((chosen.stars or 0) - (rejected.stars or 0)))
        found.append(((*apart, chosen.attempt.id, rejected.attempt.id), row))
    found.sort(key=lambda one: one[0])
    dropped["pairs: more than enough of one task"] += len(found[rules.most:])
    return [row for _, row in found[: rules.most]]


def _better(one: Candidate, other: Candidate, rules: PreferenceRules) -> tuple[Candidate, Candidate, str] | str:
    """Better, worse, and by what; or why neither is."""
    apart = one.total - other.total
    rated = None if one.stars is None or other.stars is None else one.stars - other.stars
    if abs(apart) > rules.margin:
        if rated is not None and abs(rated) >= rules.stars and (rated > 0) != (apart > 0):
            return "ratings contradict rewards"
        return (one, other, "reward") if apart > 0 else (other, one, "reward")
    if rated is not None and abs(rated) >= rules.stars:
        return (one, other, "rating") if rated > 0 else (other, one, "rating")
    return "ties"


def _row(chosen: Candidate, rejected: Candidate, by: str, rules: PreferenceRules) -> dict[str, Any] | None:
    """The pair, from where the two part; None where that is no answer of the model in both."""
    same = 0
    for left, right in zip(chosen.talk, rejected.talk, strict=False):
        if left != right:
            break
        same += 1
    ends = [candidate.talk[same: same + 1 if rules.step else None] for candidate in (chosen, rejected)]
    if not same or not all(end and end[0]["role"] == "assistant" for end in ends):
        return None
    return {
        "prompt": chosen.talk[:same], "chosen": ends[0], "rejected": ends[1], "tools": chosen.tools or None,
        "task": chosen.attempt.task, "agent": chosen.attempt.agent, "by": by,
        "chosen_attempt": chosen.attempt.id, "rejected_attempt": rejected.attempt.id,
        "chosen_total": chosen.total, "rejected_total": rejected.total,
        "chosen_stars": chosen.stars, "rejected_stars": rejected.stars,
    }
