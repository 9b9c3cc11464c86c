"""The closing table: what attempts came to, by agent and group of tasks.

Invalid attempts stand in their own columns and enter no pass figure, mean or interval. What is undefined is None, never
0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from woodshed.errors import Cause
from woodshed.measure.rates import interval_of_tasks, mean_of_tasks, pass_at_k
from woodshed.model import Attempt, Invalid, Outcome, Record, Valid


class Figures(Record):
    """One row. Counts are attempts; rates are in [0, 1]; ``seconds`` are wall seconds of all stages of an execution.

    ``done`` of the planned ``attempts`` have a verdict. ``pass_at_1`` is the mean over tasks of each task's pass rate,
    with its 95 % interval. ``pass_at_k`` is the mean over those ``k_tasks`` tasks that have at least k valid attempts,
    ``k`` the number planned of each task. ``tokens`` is what all done attempts used; means are over valid attempts.
    ``mean_total`` leaves out the ``unknown_totals``: no number stands for those.
    """

    agent: str
    group: str
    tasks: int
    attempts: int
    done: int
    valid: int
    passed: int
    failed: int
    tampered: int
    invalid: dict[Cause, int]
    valid_rate: float | None
    pass_at_1: float | None
    pass_at_1_low: float | None
    pass_at_1_high: float | None
    k: int
    k_tasks: int
    pass_at_k: float | None
    mean_turns: float | None
    tokens: int
    mean_tokens: float | None
    mean_seconds: float | None
    mean_total: float | None
    unknown_totals: int


def summary(attempts: Iterable[Attempt], groups: Mapping[str, str] | None = None) -> list[Figures]:
    """One row for each agent and group of tasks, in the order they first appear. ``groups`` maps task ids to groups.

    A task without an entry is in the group ``""``. All attempts should be of one run, or be comparable otherwise.
    """
    named = groups or {}
    return _rows(attempts, lambda attempt: (attempt.agent, named.get(attempt.task, "")))


def by_agent(attempts: Iterable[Attempt]) -> list[Figures]:
    """One row for each agent over all its tasks, in the order they first appear; ``group`` is empty."""
    return _rows(attempts, lambda attempt: (attempt.agent, ""))


def _rows(attempts: Iterable[Attempt], key: Callable[[Attempt], tuple[str, str]]) -> list[Figures]:
    parts: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in attempts:
        parts.setdefault(key(attempt), []).append(attempt)
    return [_figures(agent, group, part) for (agent, group), part in parts.items()]


def _figures(agent: str, group: str, attempts: Sequence[Attempt]) -> Figures:
    planned = Counter(attempt.task for attempt in attempts)
    outcomes = [attempt.outcome for attempt in attempts if attempt.outcome is not None]
    valid = [outcome for outcome in outcomes if isinstance(outcome.verdict, Valid)]
    counts = _by_task(attempts)
    totals = [outcome.verdict.total for outcome in valid if isinstance(outcome.verdict, Valid)]
    k = max(planned.values(), default=0)
    at_k = [pass_at_k(n, c, k) for c, n in counts if n >= k > 0]
    low, high = interval_of_tasks(counts) or (None, None)
    passed = sum(c for c, _ in counts)
    return Figures(
        agent=agent, group=group, tasks=len(planned), attempts=len(attempts), done=len(outcomes),
        valid=len(valid), passed=passed, failed=len(valid) - passed,
        tampered=sum(outcome.verdict.cause is Cause.TAMPER for outcome in valid),
        invalid=_causes(outcomes),
        valid_rate=len(valid) / len(outcomes) if outcomes else None,
        pass_at_1=mean_of_tasks(counts), pass_at_1_low=low, pass_at_1_high=high,
        k=k, k_tasks=len(at_k), pass_at_k=_mean(at_k),
        mean_turns=_mean([outcome.usage.turns for outcome in valid]),
        tokens=sum(_tokens(outcome) for outcome in outcomes),
        mean_tokens=_mean([_tokens(outcome) for outcome in valid]),
        mean_seconds=_mean([math.fsum(outcome.stages_s.values()) for outcome in valid]),
        mean_total=_mean([total for total in totals if total is not None]), unknown_totals=totals.count(None),
    )


def _by_task(attempts: Sequence[Attempt]) -> list[tuple[int, int]]:
    """(passed, valid) of each task."""
    counts: dict[str, tuple[int, int]] = {}
    for attempt in attempts:
        passed, valid = counts.get(attempt.task, (0, 0))
        if attempt.outcome is not None and isinstance(attempt.outcome.verdict, Valid):
            passed, valid = passed + attempt.outcome.verdict.passed, valid + 1
        counts[attempt.task] = passed, valid
    return list(counts.values())


def _causes(outcomes: Sequence[Outcome]) -> dict[Cause, int]:
    return dict(sorted(Counter(o.verdict.cause for o in outcomes if isinstance(o.verdict, Invalid)).items()))


def _tokens(outcome: Outcome) -> int:
    return outcome.usage.prompt_tokens + outcome.usage.completion_tokens


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
