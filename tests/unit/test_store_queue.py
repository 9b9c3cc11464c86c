"""The queue of shared runs: whatever workers do or suffer, an attempt is one worker's at a time, and none is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from queuekit import claimed, silence, submit
from woodshed.errors import UsageError
from woodshed.model import AttemptState
from woodshed.model.event import now
from woodshed.store import ExecutionState, Store, attempt_id, clock, queue
from woodshed.store.queue import Beat, Lane, SubmissionState
from woodshed.store.tables import workers


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on either database, with two workers, 'one' and 'two'."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as store:
        for name in ("one", "two"):
            store.queue.enlist(name, host="here", pid=1, slots=8)
        yield store


def test_each_attempt_is_one_workers(shared: Store) -> None:
    """Two workers that claim at once, from many threads, get every attempt once, in order of its number."""
    run, got = submit(shared, 40), dict[str, list[str]]()

    def take(worker: str) -> None:
        while found := claimed(shared, worker, 3):
            got.setdefault(worker, []).extend(found)

    threads = [threading.Thread(target=take, args=[name]) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for names in got.values() for name in names) == sorted(attempt_id(run, n) for n in range(1, 41))
    for names in got.values():
        assert names == sorted(names, key=lambda name: int(name.rpartition(".")[2]))


def test_a_higher_priority_goes_first_and_projects_share_evenly(shared: Store) -> None:
    """Urgent runs first; then the project with the least at work, so that a large one does not starve a small one."""
    large = submit(shared, 10, project="large")
    small = submit(shared, 3, project="small")
    urgent = submit(shared, 2, project="large", priority=5)
    assert [name.rpartition(".")[0] for name in claimed(shared, "one", 2)] == [urgent, urgent]
    following = Counter(name.rpartition(".")[0] for name in claimed(shared, "one", 6))
    assert following == {small: 3, large: 3}


def test_bounds_hold_for_runs_projects_and_endpoints(shared: Store) -> None:
    """No more at once than a run, its project or its endpoint allows, whatever workers offer; bounds can be lifted."""
    run = submit(shared, 9, slots=4, project="p", endpoint="http://model")
    shared.limits.set("endpoint:http://model", slots=3)
    shared.limits.set("project:p", slots=2)
    first = claimed(shared, "one")
    assert len(first) == 2
    shared.limits.set("project:p")
    assert len(claimed(shared, "two")) == 1
    shared.limits.set("endpoint:http://model")
    assert len(claimed(shared, "two")) == 1
    assert claimed(shared, "two") == []
    shared.queue.done(first[0])
    assert len(claimed(shared, "one")) == 1
    assert shared.queue.left(run) == 8


def test_a_rate_lets_so_many_begin_a_minute(shared: Store) -> None:
    """At one an hour a second one does not begin; what is held does not begin though its bucket has filled."""
    submit(shared, 20, endpoint="e")
    shared.limits.set("endpoint:e", per_minute=1 / 60)
    assert len(claimed(shared, "one")) == 1
    assert claimed(shared, "one") == []
    shared.limits.set("endpoint:e", per_minute=60)
    assert len(claimed(shared, "one")) == 1
    shared.limits.hold("endpoint:e", 3600)
    time.sleep(1.05)
    assert claimed(shared, "one") == []  # its bucket has filled, but it is held


def test_an_endpoint_that_asks_for_patience_gets_it(shared: Store) -> None:
    """Held for a while nothing of it begins, what loads other endpoints does, and then it goes on."""
    held, other = submit(shared, 2, endpoint="e"), submit(shared, 1, endpoint="f")
    shared.limits.hold("endpoint:e", 0.4)
    assert claimed(shared, "one") == [attempt_id(other, 1)]
    time.sleep(0.45)
    assert claimed(shared, "one") == [attempt_id(held, 1), attempt_id(held, 2)]


def test_an_idempotency_key_is_used_once(shared: Store) -> None:
    """The same key in the same project names the run that was submitted first; another project's is another's."""
    first = submit(shared, key="nightly")
    assert submit(shared, key="nightly") == first
    assert submit(shared, key="nightly", project="other") != first
    assert shared.queue.find("default", "nightly") == first
    assert shared.queue.find("default", "hourly") is None


def test_a_delayed_run_waits_and_a_paused_one_hands_out_nothing(shared: Store) -> None:
    """Before its time, while paused and once cancelled nothing of a run is handed out; opened again it goes on."""
    submit(shared, not_before=now() + timedelta(hours=1))
    run = submit(shared, 3)
    assert shared.queue.depth().model_dump() == {"ready": 3, "delayed": 3, "running": 0, "quarantined": 0}
    shared.queue.turn(run, SubmissionState.PAUSED, "only 1 of the last 20 executions were valid")
    assert claimed(shared, "one") == []
    paused = shared.queue.submission(run)
    assert paused is not None
    assert paused.reason == "only 1 of the last 20 executions were valid"
    shared.queue.turn(run, SubmissionState.OPEN)
    assert len(claimed(shared, "one", 2)) == 2
    shared.queue.turn(run, SubmissionState.CANCELLED)
    assert claimed(shared, "two") == []
    assert shared.queue.beat("two", slots=8, busy=0) == Beat()
    off = shared.queue.beat("one", slots=8, busy=2)
    assert off is not None
    assert len(off.off) == 2
    with pytest.raises(UsageError, match="is cancelled"):
        shared.queue.turn(run, SubmissionState.OPEN)
    with pytest.raises(UsageError, match="not shared"):
        shared.queue.turn("r-none", SubmissionState.PAUSED)


def test_what_a_dead_worker_had_is_free_again_and_its_late_word_does_not_count(shared: Store) -> None:
    """A silent worker is reaped once: its executions are lost, its attempts others', and it may claim no more."""
    run = submit(shared, 2)
    had = claimed(shared, "one")
    number = shared.begin_execution(had[0], "one")
    assert number == 1
    silence(shared, "one")
    [reaped] = shared.queue.reap(30)
    assert (reaped.executor, sorted(reaped.attempts), reaped.suspects) == ("one", sorted(had), ())
    assert shared.queue.reap(30) == []
    assert shared.executions(had[0])[0].state is ExecutionState.LOST
    assert {attempt.state for attempt in shared.attempts(run)} == {AttemptState.PENDING}
    assert shared.queue.beat("one", slots=8, busy=2) is None
    assert claimed(shared, "one") == []
    assert sorted(claimed(shared, "two")) == sorted(had)
    assert not shared.queue.give_back(had[0], "one")
    assert shared.begin_execution(had[0], "two") == 2


def test_who_was_there_at_two_deaths_runs_alone(shared: Store) -> None:
    """The second death sends what was running into quarantine, where one attempt runs at a time; done ones leave it."""
    submit(shared, 2)
    for name in ("dies", "dies-too"):
        shared.queue.enlist(name, host="here", pid=2, slots=8)
        assert len(claimed(shared, name)) == 2
        reaped = shared.queue.reap_one(name)
        assert reaped is not None
        suspects = reaped.suspects
    assert len(suspects) == 2
    assert shared.queue.reap_one("dies") is None
    assert claimed(shared, "one") == []
    [alone] = claimed(shared, "one", lane=Lane.QUARANTINE)
    assert shared.queue.deaths(alone) == 2
    assert claimed(shared, "two", lane=Lane.QUARANTINE) == []
    assert shared.queue.depth().quarantined == 2
    shared.queue.done(alone)
    assert len(claimed(shared, "two", lane=Lane.QUARANTINE)) == 1


def test_a_worker_that_drains_takes_nothing_and_one_that_leaves_is_no_death(shared: Store) -> None:
    """Draining keeps what it has and takes no more; leaving gives back without counting a death."""
    submit(shared, 3)
    had = claimed(shared, "one", 1)
    shared.queue.drain("one")
    assert claimed(shared, "one") == []
    assert shared.queue.beat("one", slots=8, busy=1) == Beat()
    shared.queue.leave("one")
    assert [worker.executor for worker in shared.queue.workers()] == ["two"]
    assert had[0] in claimed(shared, "two")
    assert shared.queue.deaths(had[0]) == 0


def test_a_retry_waits_for_its_time(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that is given back for later is nobody's until then, and others go before it."""
    told = [1000.0]
    monkeypatch.setattr(clock, "seconds", lambda connection: told[0])
    submit(shared, 2)
    first, second = claimed(shared, "one")
    assert shared.queue.give_back(first, "one", after_s=0.3)
    assert shared.queue.give_back(second, "one")
    assert claimed(shared, "two") == [second]
    told[0] += 0.35
    assert claimed(shared, "two") == [first]


def test_no_clock_that_is_set_moves_a_delay(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day forth or back is nothing to a retry's wait, and a machine started anew does not wait by its old time."""
    submit(shared, 1)
    [only], told, wall = claimed(shared, "one"), [1000.0], now()
    monkeypatch.setattr(clock, "seconds", lambda connection: told[0])
    for days in (1, -1):
        monkeypatch.setattr(queue, "now", lambda days=days: wall + timedelta(days=days))
        assert shared.queue.give_back(only, "one", after_s=60)
        monkeypatch.setattr(queue, "now", lambda days=days: wall - timedelta(days=days))
        told[0] += 59
        assert (claimed(shared, "one"), shared.queue.depth().delayed) == ([], 1)
        told[0] += 1
        assert claimed(shared, "one") == [only]
    assert shared.queue.give_back(only, "one", after_s=60)
    told[0] = 20.0
    assert claimed(shared, "one") == [only]


def test_a_machine_started_anew_holds_nothing_by_its_old_time(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty bucket and an endpoint's patience, told by the clock of an earlier boot, keep nothing from beginning."""
    told = [5_000_000.0]
    monkeypatch.setattr(clock, "seconds", lambda connection: told[0])
    submit(shared, 3, endpoint="e")
    shared.limits.set("endpoint:e", per_minute=1)
    assert len(claimed(shared, "one")) == 1
    shared.limits.hold("endpoint:e", 3600)
    assert claimed(shared, "one") == []
    told[0] = 100.0
    assert [limit.held_s for limit in shared.limits.all()] == [None]
    assert len(claimed(shared, "one")) == 1
    assert claimed(shared, "one") == []  # the bucket is empty now, by this boot's clock
    shared.limits.hold("endpoint:e", 90)
    told[0] += 60.0
    assert claimed(shared, "one") == []  # filled, and held
    told[0] += 30.0
    assert len(claimed(shared, "one")) == 1


def test_a_pool_takes_its_own_runs_alone(shared: Store) -> None:
    """Workers of a pool take that pool's runs, workers of none those of none; depth and suspicion are told by pool."""
    shared.queue.enlist("gpu", host="here", pid=1, slots=8, pool="gpu")
    labelled, plain = submit(shared, 2, pool="gpu"), submit(shared, 1)
    assert [shared.queue.depth(pool).ready for pool in ("gpu", "", "other", None)] == [2, 1, 0, 3]
    assert claimed(shared, "one") == [attempt_id(plain, 1)]
    assert claimed(shared, "two") == []
    assert sorted(claimed(shared, "gpu")) == [attempt_id(labelled, n) for n in (1, 2)]
    for _ in range(2):
        shared.queue.enlist("dies", host="here", pid=1, slots=8, pool="gpu")
        shared.queue.leave("gpu")
        claimed(shared, "dies")
        shared.queue.reap_one("dies")
        with shared._engine.begin() as connection:
            connection.execute(sa.delete(workers).where(workers.c.executor == "dies"))
    assert (shared.queue.suspected("gpu"), shared.queue.suspected()) == (True, False)
    assert claimed(shared, "one", lane=Lane.QUARANTINE) == []


def test_new_bounds_leave_a_hold_and_a_longer_hold_a_shorter_one(shared: Store) -> None:
    """What an endpoint asked for is neither lifted nor shortened by what is said of its bounds, or another 429."""
    submit(shared, 2, endpoint="e", project="p")
    shared.limits.hold("endpoint:e", 3600)
    shared.limits.set("endpoint:e", slots=1)
    shared.limits.hold("endpoint:e", 0.0)
    shared.limits.set("project:p", per_minute=30)
    assert claimed(shared, "one") == []
    held, rated = shared.limits.all()
    assert (held.scope, held.slots, held.busy) == ("endpoint:e", 1, 0)
    assert held.held_s is not None
    assert held.held_s > 3000
    assert (rated.scope, rated.per_minute, rated.held_s) == ("project:p", 30, None)
    shared.limits.set("project:p")
    assert [one.scope for one in shared.limits.all()] == ["endpoint:e"]


def test_an_endpoint_may_be_held_by_many_at_once(shared: Store) -> None:
    """Workers that are told to wait in the same moment do not fail by it, and the longest wait stands."""
    waits = [10.0, 3600.0, 20.0, 30.0]
    threads = [threading.Thread(target=shared.limits.hold, args=("endpoint:e", wait)) for wait in waits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [held] = shared.limits.all()
    assert held.held_s is not None
    assert held.held_s > 3000
