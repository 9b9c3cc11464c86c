"""Preference pairs: of two attempts of one task, which went better, from where they part. Pure.

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
    """An attempt that may stand in a pair. ``stars`` is the mean of what people gave it; None where nobody did.

    ``digest`` is of the task as it was then, where that is known; ``parent`` the attempt from which it went on.
    """

    attempt: Attempt
    talk: list[Chat]
    tools: list[Any]
    total: float
    stars: float | None
    clean: bool
    digest: str | None = None
    parent: str | None = None


def candidate(
    attempt: Attempt, calls: Calls, stars: Sequence[int], rules: PreferenceRules, dropped: Counter[str], *,
    digest: str | None = None, parent: str | None = None,
) -> Candidate | None:  # fmt: skip
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
                         not flagged(verdict, rules.without_flags), digest, parent)
    return None


def pairs(group: Sequence[Candidate], rules: PreferenceRules, dropped: Counter[str]) -> list[dict[str, Any]]:
    """The pairs of one task, those that differ most first. Those that were dropped are counted by reason."""
    if len(group) == 1:
        dropped["groups: a single attempt, and nothing to pair it with"] += 1
    here = {one.attempt.id for one in group}
    dropped["forks: what they went on from is not among the runs"] += sum(
        one.parent is not None and one.parent not in here for one in group)
    found: list[tuple[tuple[float, float, str, str], dict[str, Any]]] = []
    for one, other in combinations(group, 2):
        made = _pair(one, other, rules)
        if isinstance(made, str):
            dropped[f"pairs: {made}"] += 1
        else:
            found.append(made)
    found.sort(key=lambda one: one[0])
    dropped["pairs: more than enough of one task"] += len(found[rules.most:])
    return [row for _, row in found[: rules.most]]


def _pair(
    one: Candidate, other: Candidate, rules: PreferenceRules
) -> tuple[tuple[float, float, str, str], dict[str, Any]] | str:
    """The row of a pair, and what it is sorted by; or why there is none."""
    if (why := _strangers(one, other, rules)) is not None:
        return why
    better = _better(one, other, rules)
    if isinstance(better, str):
        return better
    chosen, rejected, by = better
    if not chosen.clean:
        return "the better one is flagged"
    row = _row(chosen, rejected, by, rules)
    if isinstance(row, str):
        return row
    apart = (-(chosen.total - rejected.total), -((chosen.stars or 0) - (rejected.stars or 0)))
    return (*apart, chosen.attempt.id, rejected.attempt.id), row


def _strangers(one: Candidate, other: Candidate, rules: PreferenceRules) -> str | None:
    """Why these two are not compared at all. Whatever went on from one attempt is compared with it, and by itself."""
    if one.digest != other.digest:
        return "the task had changed between them"
    roots = [candidate.parent or candidate.attempt.id for candidate in (one, other)]
    if one.attempt.agent != other.attempt.agent and roots[0] != roots[1] and not rules.any_agent:
        return "of different agents (any_agent = true takes them)"
    return None


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


def _row(chosen: Candidate, rejected: Candidate, by: str, rules: PreferenceRules) -> dict[str, Any] | str:
    """The pair, from where the two part; or why there is none: that must be an answer of the model in both."""
    same = 0
    for left, right in zip(chosen.talk, rejected.talk, strict=False):
        if left != right:
            break
        same += 1
    ends = [candidate.talk[same: same + 1 if rules.step else None] for candidate in (chosen, rejected)]
    if not same:
        return "nothing in common"
    if not all(ends):
        return "no difference, or one is how the other began"
    if not all(end[0]["role"] == "assistant" for end in ends):
        return "they part in what they were told, and not in an answer"
    return {
        "prompt": chosen.talk[:same], "chosen": ends[0], "rejected": ends[1], "tools": chosen.tools or None,
        "task": chosen.attempt.task, "agent": chosen.attempt.agent, "rejected_agent": rejected.attempt.agent, "by": by,
        "chosen_attempt": chosen.attempt.id, "rejected_attempt": rejected.attempt.id,
        "chosen_total": chosen.total, "rejected_total": rejected.total,
        "chosen_stars": chosen.stars, "rejected_stars": rejected.stars,
    }
