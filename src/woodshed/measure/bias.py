"""Selection bias: whether what broke differs from what was left, by task, by length and by reward. Pure arithmetic.

Invalid attempts are in no baseline and no figure, which is fair as long as faults strike whatever comes. Where they
strike long attempts or some tasks more, those that are left are others than those that were sampled. Formulas, their
sources and what they assume stand in docs/measures.md.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

ALPHA = 0.01
"""The chance of a warning where nothing depends on anything, of all that is looked at in a run together."""
TASK_EFFECT = 0.1
"""The least association with tasks that is told: Cohen's "small" (1988) for a contingency table."""
LENGTH_SHIFT = 0.05
"""The least shift of the mean length that is told, as a share of the mean of what was sampled."""
REWARD_SHIFT = 0.02
"""The least shift of the mean reward that is told."""
LEAST, LEAST_BROKEN = 20, 5
"""Of fewer executions, or broken ones, nothing is told."""
_TESTS = 3
_LEVELS = 32
_PARTS = 4
_EXTREME = 20
"""So many draws as extreme as what was seen, and no more are made (Besag and Clifford 1991)."""


class End(StrEnum):
    """How an execution ended: with a valid verdict, or broken before, while or after its agent acted."""

    VALID = "valid"
    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Tried:
    """One execution. ``length`` is how far the agent came, None where nobody knows; ``reward`` of a valid one alone."""

    attempt: str
    task: str
    end: End
    length: float | None = None
    reward: float | None = None

    @property
    def broke(self) -> bool:
        """Whether it has no valid verdict."""
        return self.end is not End.VALID


@dataclass(frozen=True, slots=True)
class Finding:
    """What is compared: ``raw`` of those that are left, ``whole`` of what was sampled, and how much it weighs.

    ``effect`` is in the measure's own unit, and ``p`` the chance of one as large by luck: None where it is too small
    to matter, and was not asked. ``warns`` where it is both material and significant. ``interval`` is of the shift,
    95 %.
    """

    effect: float
    material: bool
    p: float | None = None
    warns: bool = False
    raw: float | None = None
    whole: float | None = None
    interval: tuple[float, float] | None = None
    beyond: float = 0.0
    """The share of what was sampled that went further than anything that is left did."""
    most: tuple[tuple[str, int, int], ...] = ()
    """Tasks that broke most, each with broken executions and all."""

    def told(self) -> dict[str, Any]:
        """As JSON values, rounded."""
        def rounded(value: float | None) -> float | None:
            return None if value is None else round(value, 4)

        interval = None if self.interval is None else [rounded(one) for one in self.interval]
        told = {"effect": rounded(self.effect), "material": self.material, "p": rounded(self.p), "warns": self.warns,
                "raw": rounded(self.raw), "whole": rounded(self.whole), "interval": interval,
                "beyond": rounded(self.beyond) or None,
                "most": [{"task": task, "broken": broken, "executions": all_} for task, broken, all_ in self.most]}
        return {name: value for name, value in told.items() if value not in (None, [])}


@dataclass(frozen=True, slots=True)
class Bias:
    """What was found of one agent's executions; None of a finding where it cannot be looked at."""

    executions: int
    broken: Mapping[str, int]
    task: Finding | None
    length: Finding | None
    reward: Finding | None

    @property
    def warns(self) -> bool:
        """Whether anything is to be warned of."""
        return any(one is not None and one.warns for one in (self.task, self.length, self.reward))

    def told(self) -> dict[str, Any]:
        """As JSON values."""
        found = {name: one.told() for name, one in (("task", self.task), ("length", self.length),
                                                    ("reward", self.reward)) if one is not None}
        return {"executions": self.executions, "broken": dict(self.broken), **found}


def bias(tried: Sequence[Tried], *, agents: int = 1, seed: int = 0) -> Bias | None:
    """How what broke differs from what is left; None where too little broke, or too little was tried, to tell.

    ``tried`` is every execution of one agent, those that were tried again included. Of ``agents`` agents in a run
    each gets its share of ``ALPHA``. The draws follow ``seed``.
    """
    broken = Counter(one.end.value for one in tried if one.broke)
    if len(tried) < LEAST or broken.total() < LEAST_BROKEN:
        return None
    level = ALPHA / (_TESTS * max(1, agents))
    dice = random.Random(seed)  # noqa: S311 (repeatable, nothing secret)
    length, reward = _by_length(tried, level, dice)
    return Bias(len(tried), dict(sorted(broken.items())), _by_task(tried, level, dice), length, reward)


# -- by task -----------------------------------------------------------------------------------------------------------


def _by_task(tried: Sequence[Tried], level: float, dice: random.Random) -> Finding | None:
    """Breaks of an attempt, permuted over attempts: how often one is tried again does not matter then."""
    breaks: Counter[str] = Counter()
    tasks: dict[str, str] = {}
    for one in tried:
        tasks[one.attempt] = one.task
        breaks[one.attempt] += one.broke
    attempts = sorted(tasks, key=lambda attempt: (tasks[attempt], attempt))
    values, sizes = [breaks[one] for one in attempts], list(Counter(tasks[one] for one in attempts).values())
    spread = _spread(values)
    if len(sizes) < 2 or len(values) <= len(sizes) or not spread:
        return None
    seen = _between(values, sizes)
    within = (spread - seen) / (len(values) - len(sizes))
    effect = math.sqrt(max(0.0, (seen - (len(sizes) - 1) * within) / spread))
    if effect < TASK_EFFECT:
        return Finding(effect, material=False)

    def drawn() -> float:
        dice.shuffle(values)
        return _between(values, sizes)

    p = _chance(seen, drawn, round(10 / level))
    return Finding(effect, material=True, p=p, warns=p <= level, most=_most(tried))


def _spread(values: Sequence[int]) -> float:
    mean = sum(values) / len(values)
    return math.fsum((one - mean) ** 2 for one in values)


def _between(values: Sequence[int], sizes: Sequence[int]) -> float:
    """The sum of squares between parts of these sizes. For 0 and 1 it is Pearson's chi-square, but for a factor."""
    start, squares = 0, 0.0
    for size in sizes:
        squares += sum(values[start:start + size]) ** 2 / size
        start += size
    return squares - sum(values) ** 2 / len(values)


def _chance(seen: float, drawn: Callable[[], float], most: int) -> float:
    """The share of draws at least as extreme; drawing ends where it is plain that they are no rarity."""
    extreme = 0
    for number in range(1, most + 1):
        extreme += drawn() >= seen - 1e-9
        if extreme == _EXTREME:
            return extreme / number
    return (extreme + 1) / (most + 1)


def _most(tried: Sequence[Tried]) -> tuple[tuple[str, int, int], ...]:
    """The tasks that broke most beyond their share, at most five."""
    all_, broken = Counter(one.task for one in tried), Counter(one.task for one in tried if one.broke)
    rate = broken.total() / len(tried)
    beyond = sorted(broken, key=lambda task: (rate * all_[task] - broken[task], task))
    return tuple((task, broken[task], all_[task]) for task in beyond[:5] if broken[task] > rate * all_[task])


# -- by length ---------------------------------------------------------------------------------------------------------

Cell = tuple[float, End, float | None]


@dataclass(frozen=True, slots=True)
class _Shift:
    raw: float
    whole: float
    beyond: float
    raw_reward: float | None
    whole_reward: float | None

    @property
    def length(self) -> float:
        return self.whole - self.raw

    @property
    def reward(self) -> float | None:
        return None if self.raw_reward is None or self.whole_reward is None else self.whole_reward - self.raw_reward


def _by_length(
    tried: Sequence[Tried], level: float, dice: random.Random
) -> tuple[Finding | None, Finding | None]:
    cells = _cells(tried)
    ends = Counter[End]()
    for (_, end, _), count in cells.items():
        ends[end] += count
    if ends[End.VALID] < LEAST_BROKEN or ends[End.DURING] + ends[End.AFTER] < LEAST_BROKEN:
        return None, None
    seen = shifted(cells)
    if seen is None:
        return None, None
    by_length = abs(seen.length) >= LENGTH_SHIFT * seen.whole
    by_reward = seen.reward is not None and abs(seen.reward) >= REWARD_SHIFT
    drawn = list(_resampled(cells, dice, round(10 / level))) if by_length or by_reward else []
    length = _finding(seen.length, by_length, [one.length for one in drawn], level, seen.raw, seen.whole, seen.beyond)
    if seen.reward is None:
        return length, None
    rewards = [one.reward for one in drawn if one.reward is not None]
    return length, _finding(seen.reward, by_reward, rewards, level, seen.raw_reward, seen.whole_reward, seen.beyond)


def _finding(
    effect: float, material: bool, drawn: list[float], level: float, raw: float | None, whole: float | None,
    beyond: float,
) -> Finding:
    if not material or not drawn:
        return Finding(effect, material=material, raw=raw, whole=whole, beyond=beyond)
    drawn.sort()
    wrong = sum(one <= 1e-12 for one in drawn) if effect > 0 else sum(one >= -1e-12 for one in drawn)
    p = min(1.0, 2 * (wrong + 1) / (len(drawn) + 1))
    interval = (drawn[int(0.025 * (len(drawn) - 1))], drawn[math.ceil(0.975 * (len(drawn) - 1))])
    return Finding(effect, material=True, p=p, warns=p <= level, raw=raw, whole=whole, interval=interval,
                   beyond=beyond)


def _cells(tried: Iterable[Tried]) -> Counter[Cell]:
    """Executions that acted, counted by length, end and reward; lengths in at most so many levels."""
    acted = [one for one in tried if one.length is not None and one.end is not End.BEFORE]
    known = sorted(one.length for one in acted if one.length is not None)
    levels = sorted(set(known))
    if len(levels) > _LEVELS:
        levels = sorted({known[(len(known) - 1) * (number + 1) // _LEVELS] for number in range(_LEVELS)})
    return Counter((levels[bisect_left(levels, one.length or 0.0)], one.end,
                    None if one.reward is None else round(one.reward, 2)) for one in acted)


def shifted(cells: Mapping[Cell, int]) -> _Shift | None:
    """Mean length and reward of the valid, and of all that acted as far as it can be known; None without valid ones.

    What broke while acting had come so far at least. Weights are 1 / G(length-), G the Kaplan-Meier estimate of not
    being broken; what is left over, as the furthest broke, lies at the furthest that was seen (Efron 1967).
    """
    weights = _weights(cells)
    valid = {cell: count for cell, count in cells.items() if cell[1] is End.VALID}
    ended = {cell: count for cell, count in cells.items() if cell[1] is not End.DURING}
    if not valid:
        return None
    acted = sum(cells.values())
    placed = math.fsum(count * weights[cell[0]] for cell, count in ended.items()) / acted
    beyond = max(0.0, 1.0 - placed)
    whole = math.fsum(count * weights[cell[0]] * cell[0] for cell, count in ended.items()) / acted
    whole += beyond * max(cell[0] for cell in cells)
    raw = math.fsum(count * cell[0] for cell, count in valid.items()) / sum(valid.values())
    stayed = _stayed(ended)
    rewarded = [(count, weights[length] / stayed[length], reward)
                for (length, _, reward), count in valid.items() if reward is not None]
    if not rewarded:
        return _Shift(raw, whole, beyond, None, None)
    plain = math.fsum(count * reward for count, _, reward in rewarded) / sum(count for count, _, _ in rewarded)
    weighed = math.fsum(count * weight * reward for count, weight, reward in rewarded) \
        / math.fsum(count * weight for count, weight, _ in rewarded)
    return _Shift(raw, whole, beyond, plain, weighed)


def _weights(cells: Mapping[Cell, int]) -> dict[float, float]:
    """1 / G(length-) by length. What ends at a length does so before what breaks there, which would have gone on."""
    ended, broken = Counter[float](), Counter[float]()
    for (length, end, _), count in cells.items():
        (broken if end is End.DURING else ended)[length] += count
    at_risk, kept, weights = sum(cells.values()), 1.0, dict[float, float]()
    for length in sorted(ended.keys() | broken.keys()):
        weights[length] = 1.0 / kept if kept else 0.0
        going_on = at_risk - ended[length]
        if broken[length]:
            kept *= 1.0 - broken[length] / going_on
        at_risk = going_on - broken[length]
    return weights


def _stayed(ended: Mapping[Cell, int]) -> dict[float, float]:
    """The valid share of those that acted to their end, by length: of quarters, so that no share is of a few."""
    lengths: dict[float, list[int]] = {}
    for (length, end, _), count in ended.items():
        both = lengths.setdefault(length, [0, 0])
        both[0] += count * (end is End.VALID)
        both[1] += count
    total, before, parts = sum(both[1] for both in lengths.values()), 0, dict[float, int]()
    sums = [[0, 0] for _ in range(_PARTS)]
    for length, (valid, all_) in sorted(lengths.items()):
        parts[length] = min(_PARTS - 1, _PARTS * before // total)
        sums[parts[length]][0] += valid
        sums[parts[length]][1] += all_
        before += all_
    return {length: sums[part][0] / sums[part][1] for length, part in parts.items() if sums[part][0]}


def _resampled(cells: Mapping[Cell, int], dice: random.Random, times: int) -> Iterator[_Shift]:
    """Poisson bootstrap: each cell counts as often as chance would have it."""
    for _ in range(times):
        drawn = {cell: many for cell, count in cells.items() if (many := _poisson(count, dice))}
        found = shifted(drawn)
        if found is not None:
            yield found


def _poisson(mean: float, dice: random.Random) -> int:
    """Knuth's product of uniforms; the rounded normal where the mean is large."""
    if mean > 30:
        return max(0, round(dice.gauss(mean, math.sqrt(mean))))
    bound, product, number = math.exp(-mean), dice.random(), 0
    while product > bound:
        product *= dice.random()
        number += 1
    return number
