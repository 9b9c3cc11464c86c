"""Cards: all measures of an attempt with one score a dimension, and what an agent's attempts come to. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from woodshed.measure.process import confirmed, control, craft, effort, focus, reliability, safety, satisfaction
from woodshed.measure.process.confirmed import Claimed
from woodshed.measure.process.facts import Facts
from woodshed.model import Record
from woodshed.model.process import Card, Dimension, Measure

_PARTS = (reliability, satisfaction, control, confirmed, focus, craft, safety, effort)
_MEANS: Mapping[Dimension, tuple[str, ...]] = {
    Dimension.SATISFACTION: ("accepted", "unasked", "unrepeated", "clear_statuses", "rating"),
    Dimension.CONTROLLABILITY: ("feedback_heeded",),
    Dimension.CONFIRMED: ("effective_verification", "claim_true"),
    Dimension.FOCUS: ("file_recall", "file_precision", "relevant_calls"),
    Dimension.CRAFT: ("relevant_lines", "reviewability", "recovered_tests"),
    Dimension.SAFETY: ("safe_actions",),
}
"""Dimensions whose score is the mean of those of these measures that apply."""
JUDGED = (Dimension.RELIABILITY, *_MEANS)
"""Dimensions that have a score; effort has figures alone."""


def card(facts: Facts) -> Card:
    """All measures of one attempt, and its scores."""
    measures = tuple(measure for part in _PARTS for measure in part.measured(facts))
    values = {measure.name: measure.value for measure in measures}
    scores = {dimension: _mean([values[name] for name in names]) for dimension, names in _MEANS.items()}
    return Card(measures=measures, scores={Dimension.RELIABILITY: _reliable(values), **scores})


def _reliable(values: Mapping[str, float | None]) -> float | None:
    """The share of calls that could run; one that could not and was put right counts half."""
    valid = values["valid_calls"]
    return None if valid is None else valid + (1 - valid) * (values["recovery"] or 0.0) / 2


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class Counted:
    """One valid attempt for :func:`by_agent`."""

    attempt: str
    agent: str
    task: str
    passed: bool
    cell: Claimed | None
    card: Card


class AgentCard(Record):
    """What an agent's valid attempts come to. Scores and measures are means over tasks of means over their attempts.

    ``claims`` is the calibration table; ``per_success`` what all its attempts used, for each that passed.
    """

    agent: str
    attempts: int
    passed: int
    scores: dict[Dimension, float | None]
    measures: dict[str, float | None]
    units: dict[str, str]
    claims: dict[Claimed, int]
    tokens_per_success: float | None
    micros_per_success: float | None


def by_agent(found: Sequence[Counted], spent: Mapping[str, tuple[int, int | None]]) -> list[AgentCard]:
    """One card for each agent, in the order they first appear. ``spent`` is (tokens, micros) of all its attempts,

    the invalid ones too: what broke was paid for.
    """
    names = list(dict.fromkeys(one.agent for one in found))
    return [_agent(name, [one for one in found if one.agent == name], spent.get(name, (0, None))) for name in names]


def _agent(name: str, mine: Sequence[Counted], spent: tuple[int, int | None]) -> AgentCard:
    passed = sum(one.passed for one in mine)
    first = mine[0].card.measures
    tokens, micros = spent
    return AgentCard(
        agent=name, attempts=len(mine), passed=passed,
        scores={dimension: _over_tasks(mine, _score_of(dimension)) for dimension in JUDGED},
        measures={measure.name: _over_tasks(mine, _value_of(measure)) for measure in first},
        units={measure.name: measure.unit for measure in first},
        claims=dict(sorted(Counter(one.cell for one in mine if one.cell is not None).items())),
        tokens_per_success=tokens / passed if passed and tokens else None,
        micros_per_success=micros / passed if passed and micros is not None else None,
    )


def _score_of(dimension: Dimension) -> Callable[[Card], float | None]:
    return lambda card: card.scores[dimension]


def _value_of(measure: Measure) -> Callable[[Card], float | None]:
    return lambda card: card.named(measure.name).value


def _over_tasks(mine: Sequence[Counted], value: Callable[[Card], float | None]) -> float | None:
    tasks: dict[str, list[float | None]] = {}
    for one in mine:
        tasks.setdefault(one.task, []).append(value(one.card))
    return _mean([_mean(values) for values in tasks.values()])
