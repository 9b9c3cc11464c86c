"""Source: what a finished run tells without any sandbox, for those who ask more of it later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from woodshed.errors import StoreFault, UsageError, VerifierFault
from woodshed.model import Attempt, AttemptState, ChangeSet, Event, EventKind, Run, Task, TestOutcome, Valid
from woodshed.model.calibration import Calibration
from woodshed.model.grade import Grade, Observed, Patch
from woodshed.model.rules import RuleSet
from woodshed.services.grading import evidence
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.tasks.load import load_task
from woodshed.verify.patch import Unknown, measured


class Source:
    """A run as the store and its task folders tell it. What is one task's own is looked up once.

    ``tasks`` are those whose folder is still what it was.
    """

    def __init__(self, home: Home, run: Run) -> None:
        self._home, self._run = home, run
        self.tasks: dict[str, Task] = {}
        self._lost = "its folder is gone, or has changed since the run"
        for folder in run.spec.tasks:
            try:
                task = load_task(Path(folder))
            except UsageError:
                continue
            if run.spec.digests.get(folder) == task.digest:
                self.tasks[task.id] = task
        self._references: dict[str, Patch | None] = {}
        self._starts: dict[str, tuple[str, ...] | None] = {}

    def evidence(self, attempt: Attempt, verdict: Valid, rules: RuleSet) -> Any:
        """What rules may look at, the verifier's own verdict in the place of one that other rules have graded."""
        events = history(self._home, attempt)
        grade, changes, task = grade_of(events), changes_of(events), self.tasks.get(attempt.task)
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
                found["patch"], found["weakened"] = self.patch(changes, task)
            except (Unknown, StoreFault, VerifierFault) as error:
                missing["patch"] = str(error)
        if "reference" in wanted and then.reference is None:
            found["reference"] = self.reference(attempt.task)
            missing.setdefault("reference", "no attempt of the reference at this task is in the store")
        if "start_tests" in wanted and then.start_tests is None:
            found["start_tests"] = self.start_tests(attempt.task)
            missing.setdefault("start_tests", "no attempt that changed nothing is in the store")
        return then.model_copy(update={**found, "missing": missing})

    def patch(self, changes: ChangeSet | None, task: Task | None) -> tuple[Patch, tuple[str, ...]]:
        """The patch of these changes, and how tests were weakened. Raises Unknown, StoreFault, VerifierFault."""
        if task is None:
            raise Unknown(f"the task's start is not here: {self._lost}")
        if task.steps:
            raise Unknown("a task of several steps has several starts")
        if changes is None:
            raise Unknown("the changes were never captured, or are more than an event holds")
        return measured(task, changes, self._home.blobs)

    def reference(self, task: str) -> Patch | None:
        """The patch of a reference's own attempt that passed, in this run or in that of the task's calibration."""
        if task not in self._references:
            self._references[task] = next(self._patches(task), None)
        return self._references[task]

    def _patches(self, task: str) -> Iterator[Patch]:
        for attempt, verdict in self._attempts(task, "oracle"):
            events = history(self._home, attempt)
            grade = grade_of(events)
            if grade is not None and grade.observed.reference is not None:
                yield grade.observed.reference
            if verdict.passed:
                try:
                    yield self.patch(changes_of(events), self.tasks.get(task))[0]
                except (Unknown, StoreFault, VerifierFault):
                    continue

    def start_tests(self, task: str) -> tuple[str, ...] | None:
        """The tests that pass on the untouched start; None where no attempt of the store tells."""
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
        task = self.tasks.get(name)
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


def grade_of(events: Sequence[Event]) -> Grade | None:
    """The grade that the run's own rules gave; None where it had none, or it is more than an event holds."""
    for event in reversed(events):
        if event.kind is EventKind.GRADE and "rules" in event.data:
            return Grade.model_validate(event.data)
    return None


def changes_of(events: Sequence[Event]) -> ChangeSet | None:
    """What was captured; None where it never was, or is more than an event holds."""
    for event in reversed(events):
        if event.kind is EventKind.CHANGES:
            return ChangeSet.model_validate(event.data) if "changes" in event.data else None
    return None
