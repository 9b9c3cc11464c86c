"""The store: what is counted, what is kept, and what the database itself refuses. On SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.errors import Cause, StoreFault, UsageError
from woodshed.model import (
    Agent,
    Assurance,
    Attempt,
    AttemptState,
    Event,
    EventKind,
    Invalid,
    Outcome,
    Run,
    RunSpec,
    RunState,
    StopReason,
    Valid,
)
from woodshed.model.event import now
from woodshed.store import EventLog, ExecutionState, Store, attempt_id, new_run_id, run_of

PASSED = Outcome(
    verdict=Valid(rewards={"total": 1.0}, total=1.0, assurance=Assurance.CANARY, detail="file \udce9 kept"),
    stop=StopReason.FINISHED,
    stages_s={"act": 0.25},
)
BROKEN = Outcome(verdict=Invalid(cause=Cause.ENVIRONMENT, detail="died", retryable=True), stop=StopReason.ERROR)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as opened:
        yield opened


def make_run(store: Store, attempts: int = 2, **fields: object) -> Run:
    run_id = new_run_id()
    spec = RunSpec(tasks=("/tasks/a",), agents=(Agent(name="oracle", harness="oracle"),), attempts=attempts)
    run = Run.model_validate({"id": run_id, "spec": spec, "executor": "h-one", "created_at": now(), **fields})
    store.create_run(run, [
        Attempt(id=attempt_id(run_id, n), run=run_id, project=run.project, task="a", agent="oracle", index=n - 1,
                seed=2**63 + n)
        for n in range(1, attempts + 1)
    ])
    return run


def fact(attempt: str, execution: int, seq: int, **data: object) -> Event:
    return Event(attempt=attempt, execution=execution, seq=seq, kind=EventKind.NOTE, at=now(), data=data)


def test_a_run_reads_back_as_it_was_written(store: Store) -> None:
    """Run and attempts are equal to what was put in, large seeds included, in planned order."""
    run = make_run(store, attempts=12)
    assert store.run(run.id) == run
    assert [a.id for a in store.attempts(run.id)] == [attempt_id(run.id, n) for n in range(1, 13)]
    assert store.attempts(run.id)[0].seed == 2**63 + 1
    assert run_of(store.attempts(run.id)[0].id) == run.id


def test_last_names_the_newest_run(store: Store) -> None:
    """'last' is the run created last; an unknown name is the user's error and says how to see the runs."""
    with pytest.raises(UsageError, match="no run yet"):
        store.run("last")
    make_run(store)
    newest = make_run(store)
    assert store.run("last") == store.newest_run() == newest
    assert next(run.id for run in store.runs()) == newest.id
    with pytest.raises(UsageError, match="no run 'r-none'"):
        store.run("r-none")
    with pytest.raises(UsageError, match="no attempt"):
        store.attempt("r-none.1")
    with pytest.raises(UsageError, match="no attempt"):
        store.begin_execution("r-none.1", "h-one")


def test_runs_are_scoped_by_project(store: Store) -> None:
    """A project sees its own runs; the project stands on every row, executions and events too."""
    make_run(store, project="other")
    mine = make_run(store, project="mine")
    assert [run.id for run in store.runs("mine")] == [mine.id]
    found = store.newest_run("other")
    assert found is not None
    assert found.project == "other"
    first = attempt_id(mine.id, 1)
    execution = store.begin_execution(first, "h-one")
    assert execution == 1
    store.append([fact(first, 1, 0)])
    with store._engine.connect() as connection:
        for table in ("attempts", "executions", "events"):
            rows = connection.execute(sa.text(f"SELECT project FROM {table} WHERE project = 'mine'")).all()
            assert rows, table


def test_an_attempt_is_counted_once(store: Store) -> None:
    """The first result counts; a second of the same execution does not, and changes nothing."""
    run = make_run(store)
    first = attempt_id(run.id, 1)
    execution = store.begin_execution(first, "h-one")
    assert execution == 1
    assert store.attempt(first).state is AttemptState.RUNNING
    assert store.finish_attempt(first, 1, PASSED)
    assert not store.finish_attempt(first, 1, BROKEN)
    done = store.attempt(first)
    assert (done.state, done.outcome, done.executions) == (AttemptState.DONE, PASSED, 1)
    assert done.started_at is not None
    assert done.finished_at is not None
    assert [(e.state, e.outcome) for e in store.executions(first)] == [(ExecutionState.DONE, PASSED)]
    assert [a.id for a in store.attempts(run.id, AttemptState.DONE)] == [first]


def test_a_done_attempt_begins_no_more_executions(store: Store) -> None:
    """Beginning again after the result answers None."""
    first = attempt_id(make_run(store).id, 1)
    store.begin_execution(first, "h-one")
    store.finish_attempt(first, 1, PASSED)
    assert store.begin_execution(first, "h-two") is None
    assert len(store.executions(first)) == 1


def test_a_late_result_is_fenced_and_kept(store: Store) -> None:
    """When a newer execution has begun, the older one's result is evidence on its row and never the attempt's."""
    first = attempt_id(make_run(store).id, 1)
    store.begin_execution(first, "h-one")
    store.append([fact(first, 1, 0, text="old")])
    assert store.begin_execution(first, "h-two") == 2
    assert not store.finish_attempt(first, 1, BROKEN, [fact(first, 1, 1, text="late")])
    assert store.attempt(first).state is AttemptState.RUNNING
    assert store.finish_attempt(first, 2, PASSED, [fact(first, 2, 0, text="new")])
    old, new = store.executions(first)
    assert (old.state, old.outcome, old.executor) == (ExecutionState.FENCED, BROKEN, "h-one")
    assert (new.state, new.outcome, new.executor) == (ExecutionState.DONE, PASSED, "h-two")
    assert [e.data["text"] for e in store.events(first)] == ["old", "late", "new"]
    assert [e.data["text"] for e in store.events(first, 2)] == ["new"]


def test_a_lost_execution_keeps_its_events(store: Store) -> None:
    """An execution that never finished is marked lost when the next begins; what it wrote stays."""
    first = attempt_id(make_run(store).id, 1)
    store.begin_execution(first, "h-one")
    store.append([fact(first, 1, 0)])
    store.begin_execution(first, "h-two")
    lost = store.executions(first)[0]
    assert (lost.state, lost.outcome) == (ExecutionState.LOST, None)
    assert lost.finished_at is not None
    assert len(store.events(first, 1)) == 1


def test_a_result_set_aside_leaves_the_attempt_to_be_tried_again(store: Store) -> None:
    """A retried execution keeps its outcome and events, and the attempt is pending with the next number."""
    first = attempt_id(make_run(store).id, 1)
    store.begin_execution(first, "h-one")
    store.set_aside(first, 1, BROKEN, [fact(first, 1, 0)])
    assert store.attempt(first).state is AttemptState.PENDING
    assert store.executions(first)[0].state is ExecutionState.SET_ASIDE
    assert store.begin_execution(first, "h-one") == 2
    assert store.finish_attempt(first, 2, PASSED)
    assert [e.state for e in store.executions(first)] == [ExecutionState.SET_ASIDE, ExecutionState.DONE]


def test_events_are_unique(store: Store) -> None:
    """A second event of the same attempt, execution and number is refused, with all that came along."""
    first = attempt_id(make_run(store).id, 1)
    store.begin_execution(first, "h-one")
    store.append([fact(first, 1, 0)])
    with pytest.raises(StoreFault, match="appending events"):
        store.append([fact(first, 1, 1), fact(first, 1, 0)])
    assert [e.seq for e in store.events(first)] == [0]


def test_events_need_their_execution(store: Store) -> None:
    """Nothing can be appended to an execution that was not begun."""
    first = attempt_id(make_run(store).id, 1)
    with pytest.raises(StoreFault):
        store.append([fact(first, 1, 0)])


@pytest.mark.parametrize("change", ["UPDATE events SET data = '{}'", "DELETE FROM events"])
def test_the_database_refuses_to_change_an_event(store: Store, change: str) -> None:
    """Update and delete fail in the database itself, whoever asks."""
    first = attempt_id(make_run(store).id, 1)
    store.begin_execution(first, "h-one")
    store.append([fact(first, 1, 0, text="kept")])
    with pytest.raises(sa.exc.DBAPIError, match="append-only"), store._engine.begin() as connection:
        connection.execute(sa.text(change))
    assert store.events(first)[0].data == {"text": "kept"}


def test_taking_over_marks_what_was_lost_and_happens_once(store: Store) -> None:
    """The new owner's name stands on the run, open executions are lost, and a second taker is told so."""
    run = make_run(store, attempts=3)
    ids = [attempt_id(run.id, n) for n in (1, 2, 3)]
    store.begin_execution(ids[0], "h-one")
    store.begin_execution(ids[1], "h-one")
    store.finish_attempt(ids[1], 1, PASSED)
    store.set_run_state(run.id, RunState.INTERRUPTED)
    assert store.take_over(run.id, "h-two", expected="h-one")
    assert not store.take_over(run.id, "h-three", expected="h-one")
    taken = store.run(run.id)
    assert (taken.executor, taken.state) == ("h-two", RunState.RUNNING)
    states = [a.state for a in store.attempts(run.id)]
    assert states == [AttemptState.PENDING, AttemptState.DONE, AttemptState.PENDING]
    assert store.executions(ids[0])[0].state is ExecutionState.LOST
    assert store.executions(ids[1])[0].state is ExecutionState.DONE


def test_a_run_without_owner_can_be_taken(store: Store) -> None:
    """None is an owner like any other for the comparison."""
    run = make_run(store, executor=None)
    assert not store.take_over(run.id, "h-two", expected="h-one")
    assert store.take_over(run.id, "h-two", expected=None)


def test_finishing_a_run_records_when_once(store: Store) -> None:
    """The first FINISHED sets the time; setting it again keeps it; running again clears it."""
    run = make_run(store)
    store.set_run_state(run.id, RunState.FINISHED)
    finished = store.run(run.id).finished_at
    assert finished is not None
    store.set_run_state(run.id, RunState.FINISHED)
    assert store.run(run.id).finished_at == finished
    store.set_run_state(run.id, RunState.RUNNING)
    assert store.run(run.id).finished_at is None


def test_unfinished_runs_can_be_listed_alone(store: Store) -> None:
    """Running and interrupted ones are unfinished, newest first."""
    made = [make_run(store) for _ in range(3)]
    store.set_run_state(made[0].id, RunState.INTERRUPTED)
    store.set_run_state(made[1].id, RunState.FINISHED)
    assert [run.id for run in store.runs(unfinished=True)] == [made[2].id, made[0].id]
    assert len(store.runs()) == 3


def test_two_runs_cannot_share_an_id(store: Store) -> None:
    """The second is refused and leaves nothing of itself."""
    run = make_run(store, attempts=1)
    with pytest.raises(StoreFault, match="creating the run"):
        store.create_run(run, [])
    assert len(store.runs()) == 1


def test_of_many_threads_that_finish_one_attempt_exactly_one_counts(store: Store) -> None:
    """Eight threads begin and finish the same attempt at once: one result counts, and every number is used once."""
    first = attempt_id(make_run(store).id, 1)
    counted: list[bool] = []
    failures: list[BaseException] = []
    gate = threading.Barrier(8)

    def work(name: str) -> None:
        try:
            gate.wait()
            execution = store.begin_execution(first, name)
            if execution is not None:
                counted.append(store.finish_attempt(first, execution, PASSED))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"h-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert counted.count(True) == 1
    numbers = [e.number for e in store.executions(first)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [e.state for e in store.executions(first)].count(ExecutionState.DONE) == 1


def test_an_event_log_writes_its_events_with_the_result(store: Store) -> None:
    """Numbers count from 0 without gaps; before the result nothing need be written, afterwards everything is."""
    first = attempt_id(make_run(store).id, 1)
    log = EventLog(store, first, store.begin_execution(first, "h-one") or 0)
    for n in range(5):
        log.emit(EventKind.NOTE, {"text": str(n)})
    assert store.events(first) == []
    assert log.finish(PASSED)
    assert [(e.seq, e.data["text"]) for e in store.events(first)] == [(n, str(n)) for n in range(5)]


def test_an_event_log_flushes_when_told_and_when_full(store: Store) -> None:
    """flush() writes at once; without it, a full buffer is written by the event that fills it."""
    first = attempt_id(make_run(store).id, 1)
    log = EventLog(store, first, store.begin_execution(first, "h-one") or 0)
    log.emit(EventKind.NOTE, {})
    log.flush()
    assert len(store.events(first)) == 1
    for _ in range(300):
        log.emit(EventKind.NOTE, {})
    assert 256 <= len(store.events(first)) < 301
    log.set_aside(BROKEN)
    assert [e.seq for e in store.events(first)] == list(range(301))


def test_a_fenced_log_says_so_and_keeps_its_events(store: Store) -> None:
    """finish() is False after a newer execution began, and the late events are there all the same."""
    first = attempt_id(make_run(store).id, 1)
    log = EventLog(store, first, store.begin_execution(first, "h-one") or 0)
    log.emit(EventKind.NOTE, {"text": "late"})
    store.begin_execution(first, "h-two")
    assert not log.finish(PASSED)
    assert [e.data for e in store.events(first, 1)] == [{"text": "late"}]
