"""Other rules over the same events: a run is graded once more from the store, without any sandbox."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from woodshed.errors import Cause
from woodshed.model import Attempt, AttemptState, Run, Valid
from woodshed.model.event import now
from woodshed.model.grade import Component, Regrade, Regraded
from woodshed.model.rules import RuleSet
from woodshed.model.stepwise import whole
from woodshed.services import rulesets
from woodshed.services.home import Home
from woodshed.services.source import Source
from woodshed.store.ids import new_regrade_id
from woodshed.verify.rules import Plugin, graded

Progress = Callable[[int, int], None]
"""Hears how many of how many attempts are graded."""


def regrade(home: Home, run: Run, rules: RuleSet, progress: Progress = lambda done, total: None) -> Regrade:
    """Apply ``rules`` to every finished attempt of ``run`` and record what they make of it, beside its verdicts.

    What the store does not tell (a check that never ran) leaves its component None, and the total with it. Invalid
    verdicts stay. Raises UsageError for a plugin that is not there, StoreFault.
    """
    finished = home.store.attempts(run.id, AttemptState.DONE)
    made = Regrade(id=new_regrade_id(), run=run.id, project=run.project, rules=rules, created_at=now())
    source, plugins = Source(home, run), rulesets.found(rules)
    verdicts: list[Regraded] = []
    for number, attempt in enumerate(finished, 1):
        assert attempt.outcome is not None
        verdict, components = attempt.outcome.verdict, tuple[Component, ...]()
        if isinstance(verdict, Valid):
            verdict, components = _regraded(source, attempt, verdict, rules, plugins)
        verdicts.append(Regraded(regrade=made.id, attempt=attempt.id, execution=attempt.executions, verdict=verdict,
                                 components=components))
        progress(number, len(finished))
    home.store.add_regrade(made, verdicts)
    return made


def _regraded(
    source: Source, attempt: Attempt, verdict: Valid, rules: RuleSet, plugins: Mapping[str, Plugin]
) -> tuple[Valid, tuple[Component, ...]]:
    """What the rules make of one attempt; components of a task of several steps are called ``STEP/NAME``."""
    steps = source.steps(attempt, rules)
    if not steps:
        grade = graded(rules, source.evidence(attempt, verdict, rules), plugins)
        return grade.applied(), grade.components
    judged, components = dict[str, Valid](), list[Component]()
    for step in steps:
        judged[step.name] = step.verdict
        if step.evidence is not None:
            grade = graded(rules, step.evidence, plugins)
            judged[step.name] = grade.applied()
            components += [one.model_copy(update={"name": f"{step.name}/{one.name}"}) for one in grade.components]
    task = source.tasks.get(attempt.task)
    if task is not None:
        return whole(judged, task), tuple(components)
    lost = "unknown: what its steps count, as the task's folder is gone, or has changed since the run"
    total = verdict.total if verdict.cause is Cause.TAMPER else None
    return verdict.model_copy(update={"total": total, "detail": lost}), tuple(components)


def told(home: Home, made: Regrade) -> dict[str, Any]:
    """A regrade beside its run: ``{"regrade", "run", "rules", "agents": […], "unknown": […], "results": […]}``.

    ``agents`` has totals before and after, means over those that are numbers; ``unknown`` the rules that could not be
    recomputed, for how many attempts, and why.
    """
    before = {attempt.id: attempt for attempt in home.store.attempts(made.run)}
    rows = [_row(before[after.attempt], after) for after in home.store.regraded(made.id)]
    unknown = Counter((part["name"], part["why"]) for row in rows for part in row["components"]
                      if part["value"] is None)
    names = list(dict.fromkeys(row["agent"] for row in rows))
    return {
        "regrade": made.id, "run": made.run, "rules": [rule.name for rule in made.rules.rules],
        "agents": [_agent(name, [row for row in rows if row["agent"] == name]) for name in names],
        "unknown": [{"rule": name, "attempts": count, "why": why} for (name, why), count in unknown.most_common()],
        "results": rows,
    }


def listing(home: Home, run: Run) -> list[dict[str, Any]]:
    """The regrades of a run, oldest first."""
    return [{"regrade": made.id, "rules": [rule.name for rule in made.rules.rules],
             "created_at": made.created_at.strftime("%Y-%m-%d %H:%M:%S")} for made in home.store.regrades(run.id)]


def _row(attempt: Attempt, after: Regraded) -> dict[str, Any]:
    assert attempt.outcome is not None
    first, second = attempt.outcome.verdict, after.verdict
    return {
        "attempt": attempt.id, "agent": attempt.agent, "task": attempt.task, "valid": isinstance(second, Valid),
        "passed": second.passed if isinstance(second, Valid) else None,
        "before": first.total if isinstance(first, Valid) else None,
        "after": second.total if isinstance(second, Valid) else None,
        "components": [part.to_json() for part in after.components],
    }


def _agent(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    valid = [row for row in rows if row["valid"]]
    return {
        "agent": name, "attempts": len(rows), "valid": len(valid), "passed": sum(bool(row["passed"]) for row in valid),
        "before": _mean(row["before"] for row in valid), "after": _mean(row["after"] for row in valid),
        "unknown": sum(row["after"] is None for row in valid),
        "changed": sum(row["after"] != row["before"] for row in valid),
    }


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
