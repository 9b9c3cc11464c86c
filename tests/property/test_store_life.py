"""Whatever happens to attempts in whatever order, each is counted at most once and nothing recorded disappears."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from woodshed.model import (
    Agent,
    Assurance,
    Attempt,
    AttemptState,
    EventKind,
    Outcome,
    Run,
    RunSpec,
    StopReason,
    Valid,
)
from woodshed.model.event import now
from woodshed.store import EventLog, ExecutionState, Store, attempt_id, new_run_id, run_of
from woodshed.store.text import dump_data


def outcome(mark: int) -> Outcome:
    verdict = Valid(rewards={}, total=0.0, assurance=Assurance.CANARY, detail=str(mark))
    return Outcome(verdict=verdict, stop=StopReason.FINISHED)


class Life(RuleBasedStateMachine):
    """Begin, write, finish, set aside, take over: any order, any number of executors, late ones too."""

    logs = Bundle("logs")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(None, Path(self.folder.name))
        self.run_id, self.owner, self.marks = new_run_id(), "h-0", 0
        self.counted: dict[str, Outcome] = {}
        self.written: dict[tuple[str, int], int] = {}
        spec = RunSpec(tasks=("/t",), agents=(Agent(name="nop", harness="nop"),))
        self.ids = [attempt_id(self.run_id, n) for n in (1, 2)]
        self.store.create_run(
            Run(id=self.run_id, spec=spec, executor=self.owner, created_at=now()),
            [Attempt(id=i, run=self.run_id, task="t", agent="nop", index=n, seed=0) for n, i in enumerate(self.ids)],
        )

    @rule(target=logs, which=st.integers(0, 1))
    def begin(self, which: int) -> EventLog | None:
        attempt = self.ids[which]
        execution = self.store.begin_execution(attempt, self.owner)
        assert (execution is None) == (attempt in self.counted)
        return None if execution is None else EventLog(self.store, attempt, execution)

    @rule(log=logs, flush=st.booleans())
    def write(self, log: EventLog | None, flush: bool) -> None:
        if log is not None:
            log.emit(EventKind.NOTE, {"n": 1})
            key = log.attempt, log.execution
            self.written[key] = self.written.get(key, 0) + 1
            if flush:
                log.flush()

    @rule(log=logs)
    def finish(self, log: EventLog | None) -> None:
        if log is None:
            return
        self.marks += 1
        attempt = self.store.attempt(log.attempt)
        current = attempt.state is AttemptState.RUNNING and attempt.executions == log.execution
        assert log.finish(outcome(self.marks)) == current
        if current:
            assert log.attempt not in self.counted
            self.counted[log.attempt] = outcome(self.marks)

    @rule(log=logs)
    def set_aside(self, log: EventLog | None) -> None:
        if log is not None:
            self.marks += 1
            log.set_aside(outcome(self.marks))

    @rule()
    def take_over(self) -> None:
        successor = f"h-{int(self.owner[2:]) + 1}"
        assert self.store.take_over(self.run_id, successor, expected=self.owner)
        assert not self.store.take_over(self.run_id, "h-late", expected=self.owner)
        self.owner = successor

    @invariant()
    def counted_results_stay(self) -> None:
        for attempt in self.store.attempts(self.run_id):
            assert attempt.outcome == self.counted.get(attempt.id)
            executions = self.store.executions(attempt.id)
            assert [e.number for e in executions] == list(range(1, attempt.executions + 1))
            done = [e.outcome for e in executions if e.state is ExecutionState.DONE]
            assert done == ([attempt.outcome] if attempt.outcome else [])
            assert sum(e.state is ExecutionState.OPEN for e in executions) == (attempt.state is AttemptState.RUNNING)

    def teardown(self) -> None:
        for attempt in self.ids:
            for execution in self.store.executions(attempt):
                seqs = [e.seq for e in self.store.events(attempt, execution.number)]
                assert seqs == list(range(len(seqs)))
                assert len(seqs) <= self.written.get((attempt, execution.number), 0)
        self.store.close()
        self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

ESCAPES = st.sampled_from([chr(0xDC00 + byte) for byte in range(128, 256)])
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]) | ESCAPES)
"""What Python decodes from any bytes: NUL, and surrogate escapes for what is not UTF-8, too."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)
STRANGE = st.recursive(
    st.floats() | st.binary() | st.datetimes() | st.sets(st.integers()) | st.complex_numbers() | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.binary() | st.none(), inner),
    max_leaves=8,
)


@given(st.dictionaries(ANY_TEXT, JSON, max_size=5))
def test_event_data_in_json_types_reads_back_equal(data: dict[str, Any]) -> None:
    """Names of files that are not UTF-8, NUL and huge integers included; the text itself is plain ASCII."""
    text = dump_data(data)
    assert text.isascii()
    assert "\0" not in text
    assert json.loads(text) == data


@given(st.dictionaries(ANY_TEXT, JSON | STRANGE, max_size=5))
def test_event_data_of_any_type_is_kept_as_some_json_object(data: dict[str, Any]) -> None:
    """NaN, bytes, odd keys and live objects are described; the result is strict JSON and never an error."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    kept = json.loads(dump_data(data), parse_constant=refuse)
    assert isinstance(kept, dict)
    assert len(kept) == len(data)


@given(st.datetimes())
def test_run_ids_sort_by_age(at: Any) -> None:
    """An id made a second later sorts after, and an attempt's id leads back to its run."""
    from datetime import UTC, timedelta

    earlier = new_run_id(at.replace(year=2000 + at.year % 900, tzinfo=UTC))
    later = new_run_id(at.replace(year=2000 + at.year % 900, tzinfo=UTC) + timedelta(seconds=1))
    assert earlier < later
    assert run_of(attempt_id(earlier, 12)) == earlier
