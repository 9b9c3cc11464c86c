"""Contest: agents on the same tasks, each by itself and each pair of them. Pure; invalid attempts are never zeros."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from woodshed.measure.compare.exact import clopper_pearson, holm, same_on_these, sign_flip, sign_test
from woodshed.measure.compare.power import Needed, needed, spread
from woodshed.measure.compare.resample import interval
from woodshed.measure.rates import all_of_k, interval_of_tasks, mean_of_tasks, pass_at_k
from woodshed.model import Record

_THOUSANDTHS = 1000
"""Scores are compared in steps of a thousandth: patterns of signs are counted over whole numbers."""
Counts = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Try:
    """One finished attempt. ``passed`` is None where it is invalid; ``cause`` says why then.

    ``values`` are figures to compare beside passing (scores of dimensions, tokens, seconds), by name.
    """

    agent: str
    task: str
    index: int
    passed: bool | None
    cause: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)


class Side(Record):
    """One agent by itself. Intervals are 95 %, or what alpha says; ``valid_low`` to ``valid_high`` is exact.

    ``at_k`` is the chance that one of k attempts passes, ``of_k`` that all do, by k: unbiased means over the tasks that
    have k valid attempts. ``values`` are means over tasks of valid attempts.
    """

    agent: str
    tasks: int
    attempts: int
    valid: int
    passed: int
    invalid: dict[str, int]
    valid_rate: float
    valid_low: float
    valid_high: float
    pass_rate: float | None
    pass_low: float | None
    pass_high: float | None
    at_k: dict[int, float]
    of_k: dict[int, float]
    values: dict[str, float | None]


class Score(Record):
    """One figure of a pair over the tasks that both have it for: a minus b, its interval, and p."""

    tasks: int
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None
    p: float


class Drop(Record):
    """A pair of attempts that was left out: one or both are invalid, or one is not there."""

    task: str
    index: int
    why: str


class Pair(Record):
    """Agent a against agent b. ``difference`` is a's pass rate less b's, over tasks.

    ``p`` is that of tasks like these (signs of tasks flipped), ``p_adjusted`` Holm's over all pairs, ``p_these`` that
    of these very tasks, ``p_sign`` that of wins against losses. ``decided`` is the better one, or noise.
    """

    a: str
    b: str
    tasks: int
    tries: int
    wins: int
    losses: int
    ties: int
    difference: float | None
    low: float | None
    high: float | None
    p: float
    p_adjusted: float
    p_these: float
    p_sign: float
    decided: Literal["a", "b", "noise"]
    more_attempts: int | None
    more_in_all: int | None
    more_tasks: int | None
    detectable: float | None
    values: dict[str, Score]
    dropped: tuple[Drop, ...]


class Contest(Record):
    """All agents and all pairs. ``rates`` has (passed, valid) by task and agent."""

    alpha: float
    power: float
    sides: tuple[Side, ...]
    pairs: tuple[Pair, ...]
    rates: dict[str, dict[str, tuple[int, int]]]


def contest(tries: Iterable[Try], *, alpha: float = 0.05, power: float = 0.8, seed: int = 0) -> Contest:
    """What ``tries`` tell. Two or more agents are compared by pairs, Holm's adjustment over all of them."""
    found = list(tries)
    names = list(dict.fromkeys(one.agent for one in found))
    by_agent = {name: [one for one in found if one.agent == name] for name in names}
    couples = list(combinations(names, 2))
    drafts = [_pair(by_agent[a], by_agent[b], a, b, alpha, seed) for a, b in couples]
    adjusted = holm([draft.p for draft in drafts])
    pairs = tuple(_decided(draft, p, alpha, power, len(couples)) for draft, p in zip(drafts, adjusted, strict=True))
    tasks = dict.fromkeys(one.task for one in found)
    rates = {task: {name: _count(one for one in by_agent[name] if one.task == task) for name in names}
             for task in tasks}
    return Contest(alpha=alpha, power=power, sides=tuple(_side(name, by_agent[name], alpha) for name in names),
                   pairs=pairs, rates=rates)


def _side(name: str, mine: Sequence[Try], alpha: float) -> Side:
    counts = list(_counts(mine).values())
    valid = sum(n for _, n in counts)
    low, high = clopper_pearson(valid, len(mine), alpha)
    k = max((n for _, n in counts), default=0)
    bounds = interval_of_tasks(counts) or (None, None)
    names = dict.fromkeys(name for one in mine for name in one.values)
    return Side(
        agent=name, tasks=len(counts), attempts=len(mine), valid=valid, passed=sum(c for c, _ in counts),
        invalid=dict(sorted(Counter(one.cause for one in mine if one.passed is None).items())),
        valid_rate=valid / len(mine), valid_low=low, valid_high=high,
        pass_rate=mean_of_tasks(counts), pass_low=bounds[0], pass_high=bounds[1],
        at_k={j: mean for j in range(1, k + 1) if (mean := _mean([pass_at_k(n, c, j) for c, n in counts if n >= j]))
              is not None},
        of_k={j: mean for j in range(1, k + 1) if (mean := _mean([all_of_k(n, c, j) for c, n in counts if n >= j]))
              is not None},
        values={value: _mean(list(_means(mine, value).values())) for value in names},
    )


@dataclass(frozen=True, slots=True)
class _Draft:
    """A pair before its p is adjusted."""

    a: str
    b: str
    counts: list[Counts]
    differences: list[float]
    p: float
    bounds: tuple[float | None, float | None]
    values: dict[str, Score]
    dropped: tuple[Drop, ...]


def _pair(left: Sequence[Try], right: Sequence[Try], a: str, b: str, alpha: float, seed: int) -> _Draft:
    first = {(one.task, one.index): one for one in left}
    second = {(one.task, one.index): one for one in right}
    common = {one.task for one in left} & {one.task for one in right}
    dropped, kept_a, kept_b = list[Drop](), list[Try](), list[Try]()
    for key in sorted(first.keys() | second.keys()):
        if key[0] not in common:
            continue
        one, other = first.get(key), second.get(key)
        if (why := _why_not(one, other, a, b)) is not None or one is None or other is None:
            dropped.append(Drop(task=key[0], index=key[1], why=why or ""))
        else:
            kept_a.append(one)
            kept_b.append(other)
    mine, theirs = _counts(kept_a), _counts(kept_b)
    counts = [(mine[task], theirs[task]) for task in mine]
    differences = [x / n - y / m for (x, n), (y, m) in counts]
    names = dict.fromkeys(name for one in (*kept_a, *kept_b) for name in one.values)
    values = {name: score for name in names
              if (score := _score(_means(kept_a, name), _means(kept_b, name), alpha, seed)) is not None}
    unit = math.lcm(*(n for (_, n), _ in counts)) if counts else 1
    return _Draft(a, b, counts, differences, sign_flip([round(d * unit) for d in differences]),
                  interval(differences, alpha=alpha, seed=seed) or (None, None), values, tuple(dropped))


def _why_not(one: Try | None, other: Try | None, a: str, b: str) -> str | None:
    """Why a pair of attempts does not count; None where it does."""
    whys = []
    for name, attempt in ((a, one), (b, other)):
        if attempt is None:
            whys.append(f"{name}: no such attempt")
        elif attempt.passed is None:
            whys.append(f"{name}: {attempt.cause or 'invalid'}")
    return "; ".join(whys) or None


def _decided(draft: _Draft, adjusted: float, alpha: float, power: float, pairs: int) -> Pair:
    difference = _mean(draft.differences)
    wins, losses = sum(d > 0 for d in draft.differences), sum(d < 0 for d in draft.differences)
    noise = adjusted > alpha or not difference
    seen = spread(draft.counts)
    more = needed(difference, seen, alpha=alpha / pairs, power=power) if seen and difference is not None else None
    attempts, in_all, tasks = _more(more, draft, least_tasks(alpha / pairs)) if noise else (None, None, None)
    return Pair(
        a=draft.a, b=draft.b, tasks=len(draft.counts), tries=sum(n for (_, n), _ in draft.counts), wins=wins,
        losses=losses, ties=len(draft.counts) - wins - losses, difference=difference, low=draft.bounds[0],
        high=draft.bounds[1], p=draft.p, p_adjusted=adjusted, p_these=same_on_these(draft.counts),
        p_sign=sign_test(wins, losses), decided="noise" if noise else "a" if (difference or 0) > 0 else "b",
        more_attempts=attempts, more_in_all=in_all, more_tasks=tasks, detectable=more.detectable if more else None,
        values=draft.values, dropped=draft.dropped,
    )


def least_tasks(alpha: float) -> int:
    """With fewer tasks that differ nothing is decided at ``alpha``: 2 of 2^n patterns of signs are the extremes."""
    return math.ceil(1 - math.log2(alpha) - 1e-9)


def _more(more: Needed | None, draft: _Draft, least: int) -> tuple[int | None, int | None, int | None]:
    """(attempts of each task by each agent, attempts in all, tasks) beyond what was seen; at least one.

    Of fewer than ``least`` tasks, no number of attempts decides.
    """
    if more is None:
        return None, None, None
    most, seen = max(n for (_, n), _ in draft.counts), len(draft.counts)
    attempts = max(1, more.attempts - most) if more.attempts is not None and seen >= least else None
    tasks = max(1, more.tasks - seen, least - seen) if more.tasks is not None else None
    return attempts, attempts * len(draft.counts) * 2 if attempts is not None else None, tasks


def _score(a: Mapping[str, float], b: Mapping[str, float], alpha: float, seed: int) -> Score | None:
    common = [task for task in a if task in b]
    if not common:
        return None
    differences = [a[task] - b[task] for task in common]
    low, high = interval(differences, alpha=alpha, seed=seed) or (None, None)
    scale = max((abs(d) for d in differences), default=0.0)
    steps = [round(d / scale * _THOUSANDTHS) for d in differences] if scale > 0 else []
    return Score(tasks=len(common), a=_mean([a[task] for task in common]) or 0.0,
                 b=_mean([b[task] for task in common]) or 0.0, difference=_mean(differences) or 0.0, low=low, high=high,
                 p=sign_flip(steps))


def _counts(tries: Iterable[Try]) -> dict[str, tuple[int, int]]:
    """(passed, valid) by task, of tasks with a valid attempt."""
    found: dict[str, list[bool]] = {}
    for one in tries:
        if one.passed is not None:
            found.setdefault(one.task, []).append(one.passed)
    return {task: (sum(passed), len(passed)) for task, passed in found.items()}


def _count(tries: Iterable[Try]) -> tuple[int, int]:
    passed = [one.passed for one in tries if one.passed is not None]
    return sum(passed), len(passed)


def _means(tries: Iterable[Try], name: str) -> dict[str, float]:
    """The mean of a figure by task, over valid attempts that have it."""
    found: dict[str, list[float]] = {}
    for one in tries:
        value = one.values.get(name)
        if one.passed is not None and value is not None:
            found.setdefault(one.task, []).append(value)
    return {task: math.fsum(values) / len(values) for task, values in found.items()}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
