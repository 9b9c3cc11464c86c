"""Grid: harness and model as factors, where the agents given are all pairs of some of both. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from woodshed.measure.compare.exact import holm, sign_flip
from woodshed.measure.compare.resample import interval
from woodshed.model import Record


class Effect(Record):
    """One level of a factor against another, the other factor averaged over, task by task."""

    factor: str
    a: str
    b: str
    tasks: int
    difference: float
    low: float | None
    high: float | None
    p: float
    p_adjusted: float


class Grid(Record):
    """Pass rates by harness and model (None: nothing valid), and the effects of either."""

    harnesses: tuple[str, ...]
    models: tuple[str, ...]
    rates: dict[str, dict[str, float | None]]
    effects: tuple[Effect, ...]


def grid(
    agents: Mapping[str, tuple[str, str]], rates: Mapping[str, Mapping[str, tuple[int, int]]], *,
    alpha: float = 0.05, seed: int = 0,
) -> Grid | None:
    """The two-way table of ``agents`` (label → harness, model) from ``rates`` (task → label → passed, valid).

    None unless every harness is there with every model, at least two of each.
    """
    harnesses, models = (list(dict.fromkeys(pair[axis] for pair in agents.values())) for axis in (0, 1))
    at = {pair: label for label, pair in agents.items()}
    if len(harnesses) < 2 or len(models) < 2 or len(agents) != len(at) or len(at) != len(harnesses) * len(models):
        return None
    share = {label: {task: row[label][0] / row[label][1] for task, row in rates.items() if row[label][1]}
             for label in agents}
    drafts = [_effect("harness", a, b, [(share[at[a, m]], share[at[b, m]]) for m in models], alpha, seed)
              for a, b in combinations(harnesses, 2)]
    drafts += [_effect("model", a, b, [(share[at[h, a]], share[at[h, b]]) for h in harnesses], alpha, seed)
               for a, b in combinations(models, 2)]
    adjusted = holm([draft.p for draft in drafts])
    return Grid(
        harnesses=tuple(harnesses), models=tuple(models),
        rates={h: {m: _mean(list(share[at[h, m]].values())) for m in models} for h in harnesses},
        effects=tuple(draft.model_copy(update={"p_adjusted": p}) for draft, p in zip(drafts, adjusted, strict=True)),
    )


def _effect(
    factor: str, a: str, b: str, sides: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], alpha: float,
    seed: int,
) -> Effect:
    common = [task for task in sides[0][0] if all(task in one and task in other for one, other in sides)]
    differences = [math.fsum(one[task] - other[task] for one, other in sides) / len(sides) for task in common]
    low, high = interval(differences, alpha=alpha, seed=seed) or (None, None)
    p = sign_flip([round(difference * 10_000) for difference in differences])
    return Effect(factor=factor, a=a, b=b, tasks=len(common), difference=_mean(differences) or 0.0, low=low, high=high,
                  p=p, p_adjusted=p)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
