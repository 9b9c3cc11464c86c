"""Gathering: the attempts of some runs, agents under labels that tell them apart, tasks that are the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from woodshed.errors import UsageError
from woodshed.measure.compare import Try
from woodshed.measure.process import AgentCard, Counted
from woodshed.model import Agent, Attempt, Invalid, Run, RunState
from woodshed.model.counted import counted
from woodshed.model.prices import PriceBook
from woodshed.services import naming, process
from woodshed.services.home import Home


@dataclass(slots=True)
class Gathered:
    """What is to be compared. ``agents`` is by label: harness, and the model's name or ``""``.

    ``cards`` are process measures by label; ``left_out`` are sentences about what is not compared.
    """

    runs: list[Run]
    tries: list[Try]
    agents: dict[str, tuple[str, str]]
    cards: dict[str, AgentCard]
    left_out: list[str] = field(default_factory=list)
    currency: str = ""


def gathered(
    home: Home, names: Sequence[str], prices: PriceBook | None = None, only: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Gathered:
    """The attempts of the runs named; ``only`` some agents, by label or by the name that they have in their run.

    Raises UsageError for a run that is not there, and where there are fewer than two agents to compare.
    """
    runs = list({run.id: run for run in (naming.run(home, name) for name in names)}.values())
    labels = _labels(runs)
    chosen = {key: label for key, label in labels.items() if not only or label in only or key[1] in only}
    if missing := [name for name in only if name not in chosen.values() and name not in {key[1] for key in chosen}]:
        raise UsageError(f"no agent '{missing[0]}' in these runs", field="--agent",
                         remedy=f"There are: {', '.join(labels.values())}.")
    if len(chosen) < 2:
        raise UsageError("fewer than two agents to compare", field="RUN",
                         remedy="Name another run, or a run of several agents.")
    found = Gathered(runs, [], {}, {}, currency=prices.currency if prices else "")
    changed = _changed(runs)
    for run in runs:
        _take(home, run, chosen, changed, prices, found, progress)
    return found


def _take(
    home: Home, run: Run, chosen: dict[tuple[str, str], str], changed: set[str], prices: PriceBook | None,
    found: Gathered, progress: Callable[[int, int], None],
) -> None:
    """Add what one run has."""
    measured = process.measured(home, run, prices, progress)
    cards = {one.attempt: one for one in measured.counted}
    for agent in run.spec.agents:
        if (label := chosen.get((run.id, agent.name))) is not None:
            found.agents[label] = (agent.harness, agent.model.name if agent.model else "")
            found.cards.update((label, card) for card in measured.agents if card.agent == agent.name)
    open_attempts, left = 0, Counter[str]()
    for attempt in home.store.attempts(run.id):
        label = chosen.get((run.id, attempt.agent))
        if label is None:
            continue
        if attempt.outcome is None:
            open_attempts += 1
        elif attempt.task in changed:
            left[attempt.task] += 1
        else:
            found.tries.append(_try(attempt, label, cards.get(attempt.id)))
    if open_attempts or run.state is not RunState.FINISHED:
        still = counted(open_attempts, "attempt")
        found.left_out.append(f"{run.id} is {run.state.value}: {still} without a result yet")
    found.left_out += [f"{task} is not the same in all runs: {counted(count, 'attempt')} of {run.id} not compared"
                       for task, count in left.items()]


def _try(attempt: Attempt, label: str, card: Counted | None) -> Try:
    assert attempt.outcome is not None
    verdict, usage = attempt.outcome.verdict, attempt.outcome.usage
    if isinstance(verdict, Invalid):
        return Try(label, attempt.task, attempt.index, None, verdict.cause.value)
    values: dict[str, float | None] = {}
    if card is not None:
        values = {dimension.value: score for dimension, score in card.card.scores.items()}
        values["cost"] = card.card.named("cost").value
    values["tokens"] = float(usage.prompt_tokens + usage.completion_tokens)
    values["seconds"] = math.fsum(attempt.outcome.stages_s.values())
    return Try(label, attempt.task, attempt.index, verdict.passed, values=values)


def _labels(runs: Sequence[Run]) -> dict[tuple[str, str], str]:
    """(run, agent) → a label; model and run stand in it where the name alone does not tell agents apart."""
    agents = [(run.id, agent) for run in runs for agent in run.spec.agents]
    names = {(run, agent.name): agent.name for run, agent in agents}
    for more in (_model, lambda run, agent: run):
        twice = {name for name, count in Counter(names.values()).items() if count > 1}
        names = {(run, agent.name): f"{names[run, agent.name]} · {more(run, agent)}" if names[run, agent.name] in twice
                 and more(run, agent) else names[run, agent.name] for run, agent in agents}
    return names


def _model(run: str, agent: Agent) -> str:
    return agent.model.name if agent.model else ""


def _changed(runs: Sequence[Run]) -> set[str]:
    """Ids of tasks that have not the same digest in all runs that have them."""
    seen: dict[str, set[str]] = {}
    for run in runs:
        for name, folder in zip(run.spec.groups, run.spec.tasks, strict=False):
            if (digest := run.spec.digests.get(folder)) is not None:
                seen.setdefault(name, set()).add(digest)
    return {name for name, digests in seen.items() if len(digests) > 1}
