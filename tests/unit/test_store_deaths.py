"""Deaths of workers are counted where they may be an attempt's doing; shared runs end when their time is over."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from queuekit import claimed, silence, submit
from woodshed.errors import UsageError
from woodshed.model import AttemptState, RunState
from woodshed.model.event import now
from woodshed.store import Store, clock, deaths
from woodshed.store.queue import Beat, Lane, Reaped, SubmissionState
from woodshed.store.tables import submissions, workers


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on either database, with the worker 'other'."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as store:
        store.queue.enlist("other", host="other", pid=1, slots=8)
        yield store


def begin(store: Store, name: str, host: str = "other") -> list[str]:
    """A worker begins, takes what there is, and works on it."""
    store.queue.enlist(name, host=host, pid=2, slots=8)
    had = claimed(store, name)
    for attempt in had:
        assert store.begin_execution(attempt, name, claimed=True)
    return had


def reap(store: Store, name: str) -> Reaped:
    silence(store, name)
    [reaped] = store.queue.reap(30)
    assert reaped.executor == name
    return reaped


def as_booted_before(store: Store, name: str) -> None:
    """As if its machine had been started anew since the worker began."""
    with store._engine.begin() as connection:
        connection.execute(sa.update(workers).where(workers.c.executor == name).values(boot="an-earlier-one"))


def test_a_death_of_a_worker_that_was_to_end_is_nobodys(shared: Store) -> None:
    """Told to drain and then killed, however often: its attempts are free again, and none of them is suspect."""
    submit(shared, 2)
    for name in ("one", "two", "three"):
        had = begin(shared, name)
        shared.queue.drain(name)
        reaped = reap(shared, name)
        assert (sorted(reaped.attempts), reaped.suspects) == (sorted(had), ())
    assert [shared.queue.deaths(attempt) for attempt in had] == [0, 0]
    killed = [reap(shared, name).suspects for name in ("four", "five") if begin(shared, name)]
    assert [len(suspects) for suspects in killed] == [0, 2], "undrained, two deaths make them suspect"


def test_a_death_with_the_whole_machine_is_nobodys(shared: Store) -> None:
    """A worker of this machine from before its last start went down with it; its attempts did nothing."""
    submit(shared, 2)
    for name in ("one", "two"):
        had = begin(shared, name, host=platform.node())
        as_booted_before(shared, name)
        assert reap(shared, name).suspects == ()
    assert [shared.queue.deaths(attempt) for attempt in had] == [0, 0]


@pytest.mark.skipif(not deaths.boot(), reason="this kernel does not tell its boot id (/proc/sys/kernel/random)")
def test_a_machine_that_comes_back_takes_the_blame_away(shared: Store) -> None:
    """Found silent by others, twice, attempts are suspect; a worker of the restarted machine frees them, once."""
    submit(shared, 1)
    for name in ("one", "two"):
        [had] = begin(shared, name, host="far")
        reaped = reap(shared, name)
    for name in ("one", "two"):
        as_booted_before(shared, name)
    assert (reaped.suspects, shared.queue.deaths(had)) == ((had,), 2)
    shared.queue.enlist("again", host="far", pid=3, slots=8)
    assert shared.queue.deaths(had) == 0
    assert claimed(shared, "other", lane=Lane.QUARANTINE) == []
    assert claimed(shared, "other") == [had]
    shared.queue.give_back(had, "other")
    [had] = begin(shared, "killed", host="far")
    reap(shared, "killed")
    shared.queue.enlist("and-again", host="far", pid=4, slots=8)
    assert shared.queue.deaths(had) == 1


def test_rows_of_workers_long_gone_are_deleted(shared: Store) -> None:
    """A day after its last beat the row of a reaped worker goes; those of the living and of the just dead stay."""
    for name in ("old", "young"):
        shared.queue.enlist(name, host="other", pid=5, slots=1)
        assert shared.queue.reap_one(name)
    with shared._engine.begin() as connection:
        for name in ("old", "other"):
            connection.execute(sa.update(workers).where(workers.c.executor == name)
                               .values(beat=workers.c.beat - 100_000))
    assert shared.queue.forget(86_400) == 1
    assert sorted(worker.executor for worker in shared.queue.workers()) == ["other", "young"]


def timed(store: Store, count: int) -> str:
    """A run that is yet to begin and has a minute; its id."""
    run = submit(store, count, run_s=60.0)
    store.set_run_state(run, RunState.QUEUED)
    return run


def over(store: Store, run: str) -> None:
    """As if the run's time were over."""
    with store._engine.begin() as connection:
        connection.execute(sa.update(submissions).where(submissions.c.run == run)
                           .values(timed_until=submissions.c.timed_at - 1))


def ends_at(store: Store, run: str) -> float:
    found = store.queue.submission(run)
    assert found is not None
    assert found.timed_until is not None
    return found.timed_until


def told(store: Store) -> float:
    """What the clock of deadlines says now."""
    with store._engine.connect() as connection:
        return clock.seconds(connection)


def test_a_run_whose_time_is_over_hands_out_nothing_and_calls_back_what_runs(shared: Store) -> None:
    """It is paused with the reason; what ran is free again and has no result; opened, it has its time once more."""
    run = timed(shared, 3)
    assert shared.queue.overdue() == []
    found = shared.queue.submission(run)
    assert found is not None
    assert found.timed_until is None, "its time begins with its first attempt"
    had = [attempt.id for attempt in shared.queue.claim("other", 2)]
    assert shared.begin_execution(had[0], "other", claimed=True) == 1
    assert told(shared) < ends_at(shared, run) <= told(shared) + 60
    assert shared.queue.overdue() == []
    over(shared, run)
    assert shared.queue.overdue() == [run]
    assert shared.queue.overdue() == []
    ended = shared.run(run)
    assert (ended.state, ended.reason) == (RunState.PAUSED, "the run's deadline of 60 s is over")
    assert claimed(shared, "other") == []
    beat = shared.queue.beat("other", slots=8, busy=2)
    assert beat is not None
    assert sorted(beat.off) == sorted(had)
    for attempt in had:
        shared.queue.called_off(attempt, "other")
    assert shared.queue.beat("other", slots=8, busy=0) == Beat()
    assert {attempt.outcome for attempt in shared.attempts(run)} == {None}
    shared.queue.turn(run, SubmissionState.OPEN)
    assert (shared.run(run).state, shared.run(run).reason) == (RunState.RUNNING, None)
    assert shared.queue.overdue() == []
    assert len(claimed(shared, "other")) == 3


def test_time_is_counted_from_the_runs_own_beginning(shared: Store) -> None:
    """A claim that begins another run leaves the end of one that runs already where it was."""
    first = timed(shared, 2)
    claimed(shared, "other", 1)
    over(shared, first)
    before = ends_at(shared, first)
    second = timed(shared, 1)
    assert len(claimed(shared, "other")) == 2
    assert ends_at(shared, first) == before
    assert ends_at(shared, second) > told(shared)


def test_a_clock_that_is_set_moves_no_deadline(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put forward or back, the wall clock ends no run and spares none: its minute is one of the other clock."""
    at, wall = [1000.0], now()
    monkeypatch.setattr(clock, "seconds", lambda connection: at[0])
    run = timed(shared, 1)
    claimed(shared, "other")
    for days in (1, -1, 400):
        for name, module in list(sys.modules.items()):
            if name.startswith("woodshed.store") and hasattr(module, "now"):
                monkeypatch.setattr(module, "now", lambda days=days: wall + timedelta(days=days))
        assert shared.queue.overdue() == []
    at[0] += 59
    assert shared.queue.overdue() == []
    at[0] += 1
    assert shared.queue.overdue() == [run]


def test_a_machine_started_anew_counts_a_runs_time_anew(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the clock of an earlier boot told is neither over at once nor without an end."""
    at = [5_000_000.0]
    monkeypatch.setattr(clock, "seconds", lambda connection: at[0])
    run = timed(shared, 1)
    claimed(shared, "other")
    at[0] = 20.0
    assert shared.queue.overdue() == []
    assert ends_at(shared, run) == 80.0
    at[0] = 80.0
    assert shared.queue.overdue() == [run]


def test_what_is_called_off_of_a_cancelled_run_waits_no_more(shared: Store) -> None:
    """A cancelled run's attempt leaves the queue when it was stopped; it is never opened again."""
    run = submit(shared, 1)
    [had] = claimed(shared, "other")
    shared.queue.turn(run, SubmissionState.CANCELLED)
    shared.queue.called_off(had, "other")
    assert shared.queue.left(run) == 0
    assert shared.attempt(had).state is AttemptState.PENDING
    with pytest.raises(UsageError):
        shared.queue.turn(run, SubmissionState.OPEN)
