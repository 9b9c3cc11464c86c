"""Curriculum: which tasks to try next, by how often each was solved. Pure; the same history and seed draw the same.

A group whose attempts all end alike has no advantage and teaches nothing. Of n attempts at pass rate p the chance that
they do not is 1 - p^n - (1 - p)^n: highest at one half, nothing at 0 and at 1. A few attempts tell p only roughly, so
the expectation is taken over all that they leave possible, and a task that was never tried may be anything. What was
tried lately of others like it (of its template, say) tells a part, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_PRIOR = 1.0
"""Passed and failed attempts that are imagined before the first one (Laplace): every rate is as likely."""


FADING, FADING_ALIKE = 0.5, 0.9
"""With each group what earlier ones told counts so much: of a task itself, and of its kind. The model learns meanwhile,
and of a kind there are many more groups."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The valid attempts of one task, or of tasks alike. Later ones weigh more where they are told with ``after``."""

    passed: float = 0.0
    failed: float = 0.0
    groups: int = 0

    @property
    def rate(self) -> float | None:
        """The measured pass rate; None before the first valid attempt."""
        count = self.passed + self.failed
        return self.passed / count if count else None

    def after(self, passed: int, failed: int, *, fading: float = 1.0) -> Tried:
        """With one more group. What was known before fades by that factor, for the model has learnt since."""
        return Tried(self.passed * fading + passed, self.failed * fading + failed, self.groups + 1)


class Standing(StrEnum):
    """What a task is good for now, by what was measured of it."""

    UNSEEN = "unseen"
    NEVER = "never solved"
    ALWAYS = "always solved"
    INFORMATIVE = "informative"


def standing(tried: Tried) -> Standing:
    """Where a task stands."""
    if not tried.passed + tried.failed:
        return Standing.UNSEEN
    if not tried.passed:
        return Standing.NEVER
    return Standing.INFORMATIVE if tried.failed else Standing.ALWAYS


def mixed(rate: float, size: int) -> float:
    """The chance that of ``size`` attempts at this pass rate some pass and some fail."""
    return 1.0 - rate**size - (1.0 - rate) ** size


def informative(tried: Tried, size: int) -> float:
    """The expected chance that a group of ``size`` is mixed, over all rates that are possible after what was tried."""
    passed, failed = tried.passed + _PRIOR, tried.failed + _PRIOR
    return 1.0 - _power(passed, failed, size) - _power(failed, passed, size)


def _power(one: float, other: float, size: int) -> float:
    """The mean of x^size where x is of Beta(one, other): a product of fractions."""
    mean = 1.0
    for step in range(size):
        mean *= (one + step) / (one + other + step)
    return mean


@dataclass
class History:
    """What was tried of each task, and of each kind of tasks; what is not in them was not tried."""

    tasks: dict[str, Tried] = field(default_factory=dict)
    kinds: dict[str, Tried] = field(default_factory=dict)

    def add(self, task: str, kind: str, ended: Sequence[bool]) -> None:
        """One more group: whether each valid attempt passed. Groups are told in the order in which they ended."""
        if not ended:
            return
        passed, failed = sum(ended), len(ended) - sum(ended)
        self.tasks[task] = self.of(task).after(passed, failed, fading=FADING)
        self.kinds[kind] = self.kinds.get(kind, Tried()).after(passed, failed, fading=FADING_ALIKE)

    def of(self, task: str) -> Tried:
        """What was tried of ``task``."""
        return self.tasks.get(task, Tried())


@dataclass(frozen=True, slots=True)
class Curriculum:
    """How tasks are drawn. ``size`` is the attempts of a group.

    ``explore`` is the share of draws that go to any task, and so to those that are dropped: it finds out what has
    become of them. ``settled`` attempts that all ended alike drop a task. ``alike`` is how much an attempt at a task of
    the same kind tells of one, against one at itself.
    """

    size: int = 8
    explore: float = 0.1
    settled: int = 8
    alike: float = 0.25

    def choose(self, tasks: Mapping[str, str], history: History, *, count: int, seed: int) -> list[str]:
        """``count`` of ``tasks`` (by name, with the kind that each is of), in proportion to their :meth:`worths`.

        None is drawn twice while there are others. Raises ValueError where there is nothing to choose from.
        """
        if not tasks:
            raise ValueError("there are no tasks to choose from")
        dice, worths = random.Random(seed), self.worths(tasks, history)  # noqa: S311 (repeatable, nothing secret)
        chosen: list[str] = []
        while len(chosen) < count:
            left = _drawn(worths, dice)
            while left and len(chosen) < count:
                chosen.append(left.pop(dice.randrange(len(left)) if dice.random() < self.explore else 0))
        return chosen

    def worths(self, tasks: Mapping[str, str], history: History) -> dict[str, float]:
        """How much a group of each task is expected to teach, from 0 to 1; 0 for one that is dropped."""
        return {name: 0.0 if self.dropped(history.of(name)) else
                informative(self._known(name, kind, history), self.size) for name, kind in tasks.items()}

    def dropped(self, tried: Tried) -> bool:
        """So many attempts at it ended alike that it is not drawn but to look again."""
        return tried.passed + tried.failed >= self.settled and standing(tried) in (Standing.NEVER, Standing.ALWAYS)

    def _known(self, name: str, kind: str, history: History) -> Tried:
        """What is known of a task: what was tried of itself, and a part of what was tried of its kind."""
        own, alike = history.of(name), history.kinds.get(kind, Tried())
        return Tried(own.passed + self.alike * alike.passed, own.failed + self.alike * alike.failed, own.groups)


def _drawn(worths: Mapping[str, float], dice: random.Random) -> list[str]:
    """All of them, drawn one after another in proportion to their worths (Efraimidis and Spirakis 2006)."""
    keys = {name: -math.log(1.0 - dice.random()) / worth if worth else math.inf
            for name, worth in sorted(worths.items())}
    return sorted(keys, key=lambda name: (keys[name], name))
