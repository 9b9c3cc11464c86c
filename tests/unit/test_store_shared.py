"""What workers ask of the store besides claiming: runs shared in one piece, begun by their holder alone, and closed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.errors import Cancelled, Cause
from woodshed.model import Agent, Assurance, Attempt, Invalid, Outcome, Run, RunSpec, RunState, StopReason, Valid
from woodshed.model.event import now
from woodshed.store import ExecutionState, Store, attempt_id, new_run_id
from woodshed.store.queue import Beat, Lane, Submission, SubmissionState


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on either database, with two workers, 'one' and 'two'."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as store:
        for name in ("one", "two"):
            store.queue.enlist(name, host="here", pid=1, slots=8)
        yield store


def share(store: Store, count: int = 1, key: str | None = None) -> str:
    """A run of so many attempts, left to workers; the id of the run that holds the key."""
    run_id, agent = new_run_id(), Agent(name="oracle", harness="oracle")
    spec = RunSpec(tasks=("/tasks/a",), agents=(agent,), attempts=count)
    planned = [Attempt(id=attempt_id(run_id, n), run=run_id, task="a", agent="oracle", index=n - 1, seed=n)
               for n in range(1, count + 1)]
    run = Run(id=run_id, spec=spec, state=RunState.QUEUED, created_at=now())
    return store.create_shared(run, planned, Submission(run=run_id, key=key), {})


def test_a_key_given_again_writes_nothing(store: Store) -> None:
    """The earlier run is named, and no second one stands in the list of runs."""
    first = share(store, 2, "night")
    assert share(store, 2, "night") == first
    assert [run.id for run in store.runs()] == [first]
    assert store.queue.left(first) == 2


def test_who_lost_a_claim_can_begin_nothing(store: Store) -> None:
    """A worker that was reaped neither begins its attempt nor gets a result counted, whoever has it now."""
    run = share(store)
    [attempt] = store.queue.claim("one", 1)
    assert store.run(run).state is RunState.RUNNING
    assert store.begin_execution(attempt.id, "one", claimed=True) == 1
    store.queue.reap_one("one")
    with pytest.raises(Cancelled, match="no longer"):
        store.begin_execution(attempt.id, "one", claimed=True)
    good = Outcome(verdict=Valid(rewards={}, total=1.0, assurance=Assurance.CANARY), stop=StopReason.FINISHED)
    assert not store.finish_attempt(attempt.id, 1, good)  # before anyone has begun it anew
    assert [one.id for one in store.queue.claim("two", 1)] == [attempt.id]
    assert store.begin_execution(attempt.id, "two", claimed=True) == 2
    assert not store.queue.give_back(attempt.id, "one")
    assert not store.finish_attempt(attempt.id, 1, good)
    assert store.finish_attempt(attempt.id, 2, good)
    states = [execution.state for execution in store.executions(attempt.id)]
    assert states[1] is ExecutionState.DONE
    assert states[0] in (ExecutionState.FENCED, ExecutionState.LOST)


def test_where_a_run_stands_follows_its_submission(store: Store) -> None:
    """Queued, paused with a reason, open again as it was, running, finished once nothing is left; or cancelled."""
    run = share(store)
    assert store.run(run).state is RunState.QUEUED
    store.queue.turn(run, SubmissionState.PAUSED, "lunch")
    assert (store.run(run).state, store.run(run).reason) == (RunState.PAUSED, "lunch")
    store.queue.turn(run, SubmissionState.OPEN)
    assert (store.run(run).state, store.run(run).reason) == (RunState.QUEUED, None)
    [attempt] = store.queue.claim("one", 1)
    assert store.queue.close_exhausted() == []
    store.queue.done(attempt.id)
    assert store.queue.close_exhausted() == [run]
    assert store.queue.close_exhausted() == []
    finished = store.run(run)
    assert finished.state is RunState.FINISHED
    assert finished.finished_at is not None
    other = share(store, 2)
    [held] = store.queue.claim("one", 1)
    store.queue.turn(other, SubmissionState.CANCELLED)
    assert store.run(other).state is RunState.CANCELLED
    assert store.queue.beat("one", slots=1, busy=1) == Beat(off=(held.id,))
    assert store.queue.left(other) == 1


def test_the_last_verdicts_are_those_that_executions_ended_with(store: Store) -> None:
    """Of a run, since a time, at most so many, oldest first; lost executions have none."""
    run, start = share(store, 3), now()
    broken = Outcome(verdict=Invalid(cause=Cause.HARNESS, detail="x"), stop=StopReason.ERROR)
    good = Outcome(verdict=Valid(rewards={}, total=1.0, assurance=Assurance.CANARY), stop=StopReason.FINISHED)
    first, second, third = (attempt.id for attempt in store.queue.claim("one", 3))
    for attempt in (first, second, third):
        store.begin_execution(attempt, "one", claimed=True)
    store.set_aside(first, 1, broken)
    store.finish_attempt(second, 1, good)
    store.queue.reap_one("one")
    assert [verdict.kind for verdict in store.last_verdicts(run, start, 10)] == ["invalid", "valid"]
    assert [verdict.kind for verdict in store.last_verdicts(run, start, 1)] == ["valid"]
    assert store.last_verdicts(run, now() + timedelta(hours=1), 10) == []


def test_quarantine_wants_someone_only_while_nobody_works_there(store: Store) -> None:
    """Suspects wait for a worker of their own; while one of them runs, no other is wanted."""
    share(store, 2)
    assert not store.queue.suspected()
    for name in ("one", "two"):
        store.queue.claim(name, 2)
        store.queue.reap_one(name)
    assert store.queue.suspected()
    store.queue.enlist("three", host="here", pid=1, slots=1)
    [held] = store.queue.claim("three", 1, Lane.QUARANTINE)
    assert not store.queue.suspected()
    store.queue.give_back(held.id, "three", after_s=60)
    [other] = store.queue.claim("three", 1, Lane.QUARANTINE)
    store.queue.give_back(other.id, "three", after_s=60)
    assert not store.queue.suspected()  # both wait for their time
