"""Reward rules in a run: the events of an attempt are heard, what rules need is measured, the verdict is graded."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from woodshed.attempt.stages import Ledger
from woodshed.interfaces import BlobSink, Emit, SandboxEngine, Verifier
from woodshed.measure.resume import joined
from woodshed.measure.sections import newest
from woodshed.measure.trajectory import from_events
from woodshed.model import ChangeSet, Event, EventKind, StopReason, Task, TestOutcome, Trajectory, Valid, Verdict
from woodshed.model.event import now
from woodshed.model.grade import Observed, Patch
from woodshed.model.rules import RuleSet
from woodshed.services import rulesets
from woodshed.store.text import dump_data
from woodshed.verify.checks import checked
from woodshed.verify.control import reference_changes
from woodshed.verify.patch import patch_of
from woodshed.verify.rules import Evidence, Plugin, graded
from woodshed.verify.run import Case

HEARD = frozenset({EventKind.MESSAGE, EventKind.MODEL_RESULT, EventKind.TOOL_CALL, EventKind.TOOL_RESULT,
                   EventKind.POLICY, EventKind.STATE})
"""Kinds of events that rules look at."""


def evidence(
    events: Sequence[Event], verdict: Valid, changes: ChangeSet, task: Task | None, observed: Observed
) -> Evidence:
    """What rules may look at, from the events of one execution: the same while it runs and from the store later.

    Of a task of several steps all of it is one step's: ``task`` is that step (:meth:`Task.at`).
    """
    told = [event for event in events if event.kind in HEARD]
    nothing = Trajectory(attempt="", execution=0, task="", agent="")
    trajectory = from_events(told, task="", agent="") if told else nothing
    stops = [event.data.get("stop") for event in told if event.kind is EventKind.STATE and "stop" in event.data]
    return Evidence(
        verdict=verdict, changes=changes, trajectory=trajectory, task=task, observed=observed,
        policy=tuple(event.data for event in told if event.kind is EventKind.POLICY),
        stop=StopReason(stops[-1]) if stops and stops[-1] in set(StopReason) else None,
    )


class Grading:
    """The rules of one run, and what is measured once for all attempts at a task: its reference and its start."""

    def __init__(self, rules: RuleSet | None, verifier: Verifier, engine: SandboxEngine, blobs: BlobSink) -> None:
        self._rules, self._verifier, self._engine, self._blobs = rules, verifier, engine, blobs
        self._plugins: dict[str, dict[str, Plugin]] = {}
        self._known: dict[tuple[str, str, int], tuple[Any, str]] = {}
        self._locks: defaultdict[tuple[str, str, int], asyncio.Lock] = defaultdict(asyncio.Lock)

    def grader(
        self, task: Task, emit: Emit, *, execution: int = 1, earlier: Sequence[Event] = ()
    ) -> AttemptGrader | None:
        """The grader of one execution of an attempt at ``task``; None where neither the run nor the task has rules.

        ``earlier`` are the events of executions that this one may go on with.
        """
        rules = self._rules or task.rules
        if rules is None:
            return None
        if task.digest not in self._plugins:
            self._plugins[task.digest] = rulesets.found(rules)
        sandboxes = Ledger(self._engine)
        return AttemptGrader(self, rules, self._plugins[task.digest], emit, sandboxes, execution, list(earlier))

    async def observe(
        self, task: Task, changes: ChangeSet, verdict: Valid, rules: RuleSet, engine: SandboxEngine
    ) -> Observed:
        """What ``rules`` need beside the verdict and the events, in sandboxes of ``engine``. Engine faults pass."""
        if changes.over_limit is not None:
            why = f"the changes are over the declared {changes.over_limit}"
            return Observed(missing=dict.fromkeys(("patch", "checks"), why))
        case, wanted = Case(task, self._blobs, engine, _unheard), rules.wanted()
        found: dict[str, Any] = {}
        missing: dict[str, str] = {}
        if "patch" in wanted:
            found["patch"], found["weakened"] = await patch_of(case, changes)
        for need, measure in (("reference", _reference), ("start_tests", self._start_tests)):
            if need in wanted:
                value, why = await self._once(need, case, measure)
                found |= {need: value}
                missing |= {need: why} if value is None else {}
        found["checks"] = await checked(case, changes, rules.checks())
        return Observed(**found, missing=missing)

    async def _once(
        self, need: str, case: Case, measure: Callable[[Case], Awaitable[tuple[Any, str]]]
    ) -> tuple[Any, str]:
        key = (need, case.task.digest, case.task.step)
        async with self._locks[key]:
            if key not in self._known:
                self._known[key] = await measure(case)
        return self._known[key]

    async def _start_tests(self, case: Case) -> tuple[tuple[str, ...] | None, str]:
        if not case.task.verifier.expected_tests:
            return None, "the task names no tests"
        verdict = await self._verifier.verify(case.task, ChangeSet(), case.blobs, case.engine, _unheard)
        if not isinstance(verdict, Valid):
            return None, f"the untouched start gets no verdict: {verdict.detail}"
        return tuple(name for name, outcome in verdict.tests.items() if outcome is TestOutcome.PASSED), ""


async def _reference(case: Case) -> tuple[Patch | None, str]:
    """The patch of the reference solution, played in a fresh sandbox."""
    if case.task.solution is None:
        return None, "the task has no reference solution"
    changes = await reference_changes(case)
    if isinstance(changes, str):
        return None, changes
    return (await patch_of(case, changes))[0], ""


@dataclass(slots=True)
class AttemptGrader:
    """Hears one attempt's events and grades its verdict. Implements ``interfaces.Grader``."""

    grading: Grading
    rules: RuleSet
    plugins: Mapping[str, Plugin]
    tell: Emit
    sandboxes: Ledger
    """Of what is measured for it; what all attempts at a task share is paid for by the first that asks."""
    execution: int = 1
    _events: list[Event] = field(default_factory=list)

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        """Passes an event on, and keeps what rules look at as the store will have it."""
        self.tell(kind, data)
        if kind in HEARD or kind is EventKind.RESUME:
            attempt = self._events[0].attempt if self._events else ""
            self._events.append(Event(attempt=attempt, execution=self.execution, seq=len(self._events), kind=kind,
                                      at=now(), data=json.loads(dump_data(data))))

    async def grade(self, task: Task, changes: ChangeSet, verdict: Verdict) -> Verdict:
        """The verdict with the rules' rewards and total, and the grade among the events; an invalid one as it is."""
        if not isinstance(verdict, Valid):
            return verdict
        observed = await self.grading.observe(task, changes, verdict, self.rules, self.sandboxes.engine)
        events = newest(joined(self._events, self.execution))
        seen = evidence(events, verdict, changes, task, observed)
        grade = await asyncio.to_thread(graded, self.rules, seen, self.plugins)
        self.tell(EventKind.GRADE, grade.to_json())
        return grade.applied()


def _unheard(kind: EventKind, data: Mapping[str, Any]) -> None:
    """Runs of a task without its agent are told in the grade, not as events of the attempt."""
