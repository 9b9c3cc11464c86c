"""Other rules over the same events: a run is graded once more from the store, without any sandbox."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from woodshed.errors import StoreFault, UsageError, VerifierFault
from woodshed.model import Attempt, AttemptState, ChangeSet, Event, EventKind, Run, Task, TestOutcome, Valid
from woodshed.model.calibration import Calibration
from woodshed.model.event import now
from woodshed.model.grade import Component, Grade, Observed, Patch, Regrade, Regraded
from woodshed.model.rules import RuleSet
from woodshed.services import rulesets
from woodshed.services.grading import evidence
from woodshed.services.home import Home
from woodshed.store.ids import new_regrade_id
from woodshed.tasks.load import load_task
from woodshed.verify.patch import Unknown, measured
from woodshed.verify.rules import graded

Progress = Callable[[int, int], None]
"""Hears how many of how many attempts are graded."""


def regrade(home: Home, run: Run, rules: RuleSet, progress: Progress = lambda done, total: None) -> Regrade:
    """Apply ``rules`` to every finished attempt of ``run`` and record what they make of it, beside its verdicts.

    What the store does not tell (a check that never ran) leaves its component None, and the total with it. Invalid
    verdicts stay. Raises UsageError for a plugin that is not there, StoreFault.
    """
    finished = home.store.attempts(run.id, AttemptState.DONE)
    made = Regrade(id=new_regrade_id(), run=run.id, project=run.project, rules=rules, created_at=now())
    source, plugins = _Source(home, run), rulesets.found(rules)
    verdicts: list[Regraded] = []
    for number, attempt in enumerate(finished, 1):
        assert attempt.outcome is not None
        verdict, components = attempt.outcome.verdict, tuple[Component, ...]()
        if isinstance(verdict, Valid):
            grade = graded(rules, source.evidence(attempt, verdict, rules), plugins)
            verdict, components = grade.applied(), grade.components
        verdicts.append(Regraded(regrade=made.id, attempt=attempt.id, execution=attempt.executions, verdict=verdict,
                                 components=components))
        progress(number, len(finished))
    home.store.add_regrade(made, verdicts)
    return made


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


class _Source:
    """A run as the store and its task folders tell it. What is one task's own is looked up once."""

    def __init__(self, home: Home, run: Run) -> None:
        self._home, self._run = home, run
        self._tasks: dict[str, Task] = {}
        self._lost = "its folder is gone, or has changed since the run"
        for folder in run.spec.tasks:
            try:
                task = load_task(Path(folder))
            except UsageError:
                continue
            if run.spec.digests.get(folder) == task.digest:
                self._tasks[task.id] = task
        self._references: dict[str, Patch | None] = {}
        self._starts: dict[str, tuple[str, ...] | None] = {}

    def evidence(self, attempt: Attempt, verdict: Valid, rules: RuleSet) -> Any:
        """What rules may look at, the verifier's own verdict in the place of one that other rules have graded."""
        events = self._home.store.events(attempt.id, attempt.executions)
        grade, changes, task = _grade(events), _changes(events), self._tasks.get(attempt.task)
        if grade is not None:
            verdict = grade.verdict
        observed = self._observed(attempt, grade.observed if grade else Observed(), changes, task, rules)
        return evidence(events, verdict, changes or ChangeSet(), task, observed)

    def _observed(
        self, attempt: Attempt, then: Observed, changes: ChangeSet | None, task: Task | None, rules: RuleSet
    ) -> Observed:
        """What was measured then, and what can be told without a sandbox of what was not."""
        wanted, found, missing = rules.wanted(), dict[str, Any](), dict(then.missing)
        if "patch" in wanted and then.patch is None and "patch" not in missing:
            try:
                found["patch"], found["weakened"] = self._patch(changes, task)
            except (Unknown, StoreFault, VerifierFault) as error:
                missing["patch"] = str(error)
        if "reference" in wanted and then.reference is None:
            found["reference"] = self._reference(attempt.task)
            missing.setdefault("reference", "no attempt of the reference at this task is in the store")
        if "start_tests" in wanted and then.start_tests is None:
            found["start_tests"] = self._start_tests(attempt.task)
            missing.setdefault("start_tests", "no attempt that changed nothing is in the store")
        return then.model_copy(update={**found, "missing": missing})

    def _patch(self, changes: ChangeSet | None, task: Task | None) -> tuple[Patch, tuple[str, ...]]:
        if task is None:
            raise Unknown(f"the task's start is not here: {self._lost}")
        if task.steps:
            raise Unknown("a task of several steps has several starts")
        if changes is None:
            raise Unknown("the changes were never captured, or are more than an event holds")
        return measured(task, changes, self._home.blobs)

    def _reference(self, task: str) -> Patch | None:
        """The patch of a reference's own attempt that passed, in this run or in that of the task's calibration."""
        if task not in self._references:
            self._references[task] = next(self._patches(task), None)
        return self._references[task]

    def _patches(self, task: str) -> Iterator[Patch]:
        for attempt, verdict in self._attempts(task, "oracle"):
            events = self._home.store.events(attempt.id, attempt.executions)
            grade = _grade(events)
            if grade is not None and grade.observed.reference is not None:
                yield grade.observed.reference
            if verdict.passed:
                try:
                    yield self._patch(_changes(events), self._tasks.get(task))[0]
                except (Unknown, StoreFault, VerifierFault):
                    continue

    def _start_tests(self, task: str) -> tuple[str, ...] | None:
        if task not in self._starts:
            seen = (verdict.tests for _, verdict in self._attempts(task, "nop") if verdict.tests)
            tests = next(seen, None)
            self._starts[task] = None if tests is None else tuple(
                name for name, outcome in tests.items() if outcome is TestOutcome.PASSED)
        return self._starts[task]

    def _attempts(self, task: str, harness: str) -> Iterator[tuple[Attempt, Valid]]:
        """Valid attempts of ``task`` as it is by agents that are nothing but ``harness``."""
        for run in self._runs(task):
            names = {agent.name for agent in run.spec.agents if agent.harness == harness}
            for attempt in self._home.store.attempts(run.id, AttemptState.DONE):
                verdict = attempt.outcome.verdict if attempt.outcome else None
                if attempt.task == task and attempt.agent in names and isinstance(verdict, Valid):
                    yield attempt, verdict

    def _runs(self, name: str) -> Iterator[Run]:
        yield self._run
        task = self._tasks.get(name)
        calibration = _calibrated(task) if task is not None else None
        if task is not None and calibration is not None and calibration.run not in (None, self._run.id):
            try:
                run = self._home.store.run(str(calibration.run))
            except UsageError:
                return
            if run.spec.digests.get(str(task.folder)) == task.digest:
                yield run


def _calibrated(task: Task) -> Calibration | None:
    """The task's record, where it has one of its present digest."""
    file = task.folder / "calibration.json"
    try:
        record = Calibration.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    return record if record.digest == task.digest else None


def _grade(events: Sequence[Event]) -> Grade | None:
    """The grade that the run's own rules gave; None where it had none, or it is more than an event holds."""
    for event in reversed(events):
        if event.kind is EventKind.GRADE and "rules" in event.data:
            return Grade.model_validate(event.data)
    return None


def _changes(events: Sequence[Event]) -> ChangeSet | None:
    for event in reversed(events):
        if event.kind is EventKind.CHANGES:
            return ChangeSet.model_validate(event.data) if "changes" in event.data else None
    return None
