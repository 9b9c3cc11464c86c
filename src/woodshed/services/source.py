"""Source: what a finished run tells without any sandbox, for those who ask more of it later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.errors import StoreFault, UsageError, VerifierFault
from woodshed.measure.sections import Section, sections
from woodshed.model import Attempt, AttemptState, ChangeSet, Event, EventKind, Run, Task, TestOutcome, Valid
from woodshed.model.calibration import Calibration
from woodshed.model.grade import Grade, Observed, Patch
from woodshed.model.rules import RuleSet
from woodshed.model.stepwise import whole
from woodshed.services.grading import evidence
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.tasks.load import load_task
from woodshed.verify.patch import Unknown, measured
from woodshed.verify.rules import Evidence


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """One step of an attempt: the verifier's own verdict, and what rules may look at, where they say anything."""

    name: str
    verdict: Valid
    evidence: Evidence | None = None


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
        self._references: dict[tuple[str, int | None], Patch | None] = {}
        self._starts: dict[tuple[str, int | None], tuple[str, ...] | None] = {}

    def evidence(self, attempt: Attempt, verdict: Valid, rules: RuleSet) -> Evidence:
        """What rules may look at, the verifier's own verdict in the place of one that other rules have graded."""
        return self._evidence(attempt, None, history(self._home, attempt), verdict, rules)

    def steps(self, attempt: Attempt, rules: RuleSet) -> list[JudgedStep]:
        """The same of each step that was reached, in order; nothing of an attempt at a task that has none.

        Upon a step that was never acted in, as it did not begin, no rule says anything.
        """
        found = list[JudgedStep]()
        for index, (section, verdict) in enumerate(judged(history(self._home, attempt))):
            name = str(section.step)
            if any(event.kind is EventKind.CHANGES for event in section.events):
                seen = self._evidence(attempt, index, section.events, verdict, rules)
                found.append(JudgedStep(name, seen.verdict, seen))
            else:
                found.append(JudgedStep(name, verdict))
        return found

    def _evidence(
        self, attempt: Attempt, step: int | None, events: Sequence[Event], verdict: Valid, rules: RuleSet
    ) -> Evidence:
        grade, changes, task = grade_of(events), changes_of(events), self._task(attempt.task, step)
        if grade is not None:
            verdict = grade.verdict
        observed = self._observed(attempt, step, grade.observed if grade else Observed(), changes, task, rules)
        return evidence(events, verdict, changes or ChangeSet(), task, observed)

    def _task(self, name: str, step: int | None) -> Task | None:
        task = self.tasks.get(name)
        return task if task is None or step is None else task.at(step)

    def _observed(
        self, attempt: Attempt, step: int | None, then: Observed, changes: ChangeSet | None, task: Task | None,
        rules: RuleSet,
    ) -> Observed:
        """What was measured then, and what can be told without a sandbox of what was not."""
        wanted, found, missing = rules.wanted(), dict[str, Any](), dict(then.missing)
        if "patch" in wanted and then.patch is None and "patch" not in missing:
            try:
                found["patch"], found["weakened"] = self.patch(changes, task)
            except (Unknown, StoreFault, VerifierFault) as error:
                missing["patch"] = str(error)
        if "reference" in wanted and then.reference is None:
            found["reference"] = self.reference(attempt.task, step)
            missing.setdefault("reference", "no attempt of the reference at this task is in the store")
        if "start_tests" in wanted and then.start_tests is None:
            found["start_tests"] = self.start_tests(attempt.task, step)
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

    def reference(self, task: str, step: int | None = None) -> Patch | None:
        """The patch of a reference's own attempt that passed, in this run or in that of the task's calibration."""
        if (task, step) not in self._references:
            self._references[task, step] = next(self._patches(task, step), None)
        return self._references[task, step]

    def _patches(self, task: str, step: int | None) -> Iterator[Patch]:
        for attempt, verdict in self._attempts(task, "oracle"):
            for events, own in self._parts(attempt, verdict, step):
                grade = grade_of(events)
                if grade is not None and grade.observed.reference is not None:
                    yield grade.observed.reference
                if own.passed:
                    try:
                        yield self.patch(changes_of(events), self._task(task, step))[0]
                    except (Unknown, StoreFault, VerifierFault):
                        continue

    def start_tests(self, task: str, step: int | None = None) -> tuple[str, ...] | None:
        """The tests that pass on the untouched start; None where no attempt of the store tells."""
        if (task, step) not in self._starts:
            seen = (own.tests for attempt, verdict in self._attempts(task, "nop")
                    for _, own in self._parts(attempt, verdict, step) if own.tests)
            tests = next(seen, None)
            self._starts[task, step] = None if tests is None else tuple(
                name for name, outcome in tests.items() if outcome is TestOutcome.PASSED)
        return self._starts[task, step]

    def _parts(
        self, attempt: Attempt, verdict: Valid, step: int | None
    ) -> Iterator[tuple[Sequence[Event], Valid]]:
        """The attempt's events and verdict, or those of one step where it was reached."""
        events = history(self._home, attempt)
        if step is None:
            yield events, verdict
            return
        for section, own in judged(events)[step : step + 1]:
            yield section.events, own

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


def judged(events: Sequence[Event]) -> list[tuple[Section, Valid]]:
    """The steps that were reached and judged, in order, each with the verdict that counted."""
    found = [(section, section.verdict or section.unbegun) for section in sections(events) if section.step is not None]
    return [(section, verdict) for section, verdict in found if verdict is not None]


def own_verdict(events: Sequence[Event], verdict: Valid, task: Task) -> Valid:
    """The verifier's own, from before any rules, where they were applied."""
    if not task.steps:
        grade = grade_of(events)
        return grade.verdict if grade is not None else verdict
    steps = [(section, grade_of(section.events), own) for section, own in judged(events)]
    if not any(grade for _, grade, _ in steps):
        return verdict
    return whole({str(section.step): grade.verdict if grade else own for section, grade, own in steps}, task)


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
