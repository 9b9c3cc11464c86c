"""Rows of schedules: a time or a content fires once, whoever else is at it, on either database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.engine import timetable
from woodshed.errors import UsageError
from woodshed.model import Agent, Run, RunSpec, RunState
from woodshed.model.event import now
from woodshed.model.schedule import (
    Cron,
    Firing,
    FiringState,
    Missed,
    Overlap,
    Schedule,
    ScheduleState,
    Standing,
    Trace,
)
from woodshed.store import Store, new_run_id
from woodshed.store.ids import new_schedule_id

START = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on either database."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as store:
        yield store


def added(store: Store, name: str = "nightly", **fields: object) -> Schedule:
    """A schedule of every minute since START."""
    order = Standing(paths=("/tasks",), agents=(Agent(name="oracle", harness="oracle"),))
    schedule = Schedule.model_validate({
        "id": new_schedule_id(), "name": name, "trigger": Cron(expression="* * * * *"), "order": order,
        "cursor": START, "created_at": START, **fields})
    store.schedules.add(schedule)
    return schedule


def fired(store: Store, schedule: Schedule, minute: int) -> Firing:
    """A pending firing of this minute."""
    firing = Firing(schedule=schedule.id, due=START + timedelta(minutes=minute), created_at=START)
    told = store.schedules.fire(schedule, firing)
    assert told is not None
    return told


def begun(store: Store, firing: Firing, state: RunState = RunState.RUNNING) -> Run:
    """A run of the firing."""
    spec = RunSpec(tasks=("/tasks/a",), agents=(Agent(name="oracle", harness="oracle"),))
    run = Run(id=new_run_id(), spec=spec, state=state, created_at=now())
    store.create_run(run, [])
    store.schedules.fired(firing, run.id)
    return run


def together(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_schedule_reads_back_as_it_was_written(rows: Store) -> None:
    """By name and by id; a second one of the name is refused, and removed it is gone with its firings."""
    schedule = added(rows, missed=Missed.ALL, overlap=Overlap.QUEUE, jitter_s=7.5, reason="ü")
    assert rows.schedules.named("nightly") == rows.schedules.named(schedule.id) == schedule
    with pytest.raises(UsageError, match="there is a schedule 'nightly'"):
        added(rows)
    fired(rows, schedule, 1)
    rows.schedules.remove(schedule.id)
    assert rows.schedules.all() == []
    assert rows.schedules.firings(schedule.id) == []
    with pytest.raises(UsageError, match="no schedule 'nightly'"):
        rows.schedules.named("nightly")


def test_workers_that_look_at_once_record_each_time_once(rows: Store) -> None:
    """Eight that advance a schedule together, from what they have read: every minute has one row, and none is lost."""
    schedule, clock = added(rows, missed=Missed.ALL), START + timedelta(minutes=30)
    won: list[int] = []

    def work(_number: int) -> None:
        while (one := rows.schedules.named(schedule.id)).cursor < clock:
            due = timetable.due(one, clock, 3)
            if rows.schedules.advance(one, due.firings, due.cursor):
                won.append(len(due.firings))

    together(8, work)
    assert sum(won) == 30
    found = rows.schedules.firings(schedule.id, 100)
    assert [firing.due for firing in found] == [START + timedelta(minutes=n) for n in range(30, 0, -1)]
    assert rows.schedules.tally(schedule.id) == {"pending": 30}


def test_a_schedule_that_was_paused_since_it_was_read_does_not_advance(rows: Store) -> None:
    """Nothing is recorded after the pause, and what pends stays where it is until it is resumed, but for a hand's."""
    schedule = added(rows)
    due = timetable.due(schedule, START + timedelta(minutes=1, seconds=1))
    waits = fired(rows, schedule, 0)
    rows.schedules.turn(schedule.id, ScheduleState.PAUSED, "a holiday")
    assert not rows.schedules.advance(schedule, due.firings, due.cursor)
    assert rows.schedules.unsettled() == []
    hand = waits.model_copy(update={"due": START + timedelta(minutes=5), "by": "hand"})
    rows.schedules.fire(schedule, hand)
    assert rows.schedules.unsettled() == [hand]
    rows.schedules.turn(schedule.id, ScheduleState.ACTIVE, None, cursor=START + timedelta(hours=1))
    assert rows.schedules.unsettled() == [waits, hand]
    resumed = rows.schedules.named(schedule.id)
    assert (resumed.cursor, resumed.reason) == (START + timedelta(hours=1), None)


def test_of_two_firings_one_starts_whoever_decides(rows: Store) -> None:
    """Many that decide on two firings at once: with overlap skip one starts, the other is skipped and says why."""
    schedule = added(rows, overlap=Overlap.SKIP)
    both = [fired(rows, schedule, minute) for minute in (1, 2)]

    def work(_number: int) -> None:
        for firing in both:
            rows.schedules.decide(firing, schedule)

    together(8, work)
    second, first = rows.schedules.firings(schedule.id)
    assert (first.state, second.state) == (FiringState.STARTING, FiringState.SKIPPED)
    assert second.reason is not None
    assert "is not over" in second.reason


@pytest.mark.parametrize("end", [RunState.FINISHED, RunState.CANCELLED])
def test_a_queued_firing_starts_when_the_earlier_run_is_over(rows: Store, end: RunState) -> None:
    """It waits while the run is at work or paused, and not once it is finished or cancelled."""
    schedule = added(rows, overlap=Overlap.QUEUE)
    run = begun(rows, rows.schedules.decide(fired(rows, schedule, 1), schedule))
    waits = fired(rows, schedule, 2)
    for state in (RunState.RUNNING, RunState.PAUSED, RunState.QUEUED):
        rows.set_run_state(run.id, state)
        assert rows.schedules.decide(waits, schedule).state is FiringState.PENDING
    rows.set_run_state(run.id, end)
    assert rows.schedules.decide(waits, schedule).state is FiringState.STARTING


def test_failures_in_a_row_pause_a_schedule(rows: Store) -> None:
    """The third in a row does, with the last reason; a firing between that had its run begins the count anew."""
    schedule = added(rows, overlap=Overlap.ALLOW, most_failures=3)
    answers = []
    for minute in range(1, 7):
        firing = rows.schedules.decide(fired(rows, schedule, minute), schedule)
        if minute == 3:
            begun(rows, firing)
            continue
        answers.append(rows.schedules.failed(firing, f"no folder {minute}"))
        assert rows.schedules.failed(firing, "told twice") is None
    why = "3 firings failed in a row; the last: no folder 6"
    assert answers == [None, None, None, None, why]
    paused = rows.schedules.named(schedule.id)
    assert (paused.state, paused.reason, paused.failures) == (ScheduleState.PAUSED, why, 3)


def test_a_run_that_exists_outweighs_a_failure_told_of_it(rows: Store) -> None:
    """Of two workers at one firing the one that got the run is right, whichever speaks last."""
    schedule = added(rows)
    firing = rows.schedules.decide(fired(rows, schedule, 1), schedule)
    rows.schedules.failed(firing, "not on this machine")
    run = begun(rows, firing)
    rows.schedules.failed(firing, "not on this machine")
    [found] = rows.schedules.firings(schedule.id)
    assert (found.state, found.run, found.reason) == (FiringState.FIRED, run.id, None)
    assert rows.schedules.named(schedule.id).failures == 0


def test_a_content_fires_once(rows: Store) -> None:
    """Workers that see the same files at once make one firing; later only what is new is in it, and alike files are."""
    schedule = added(rows)
    files = tuple(Trace(path=path, sha256=digest * 64, size_bytes=1) for path, digest in
                  (("a", "a"), ("b", "b"), ("b-again", "b"), ("odd-\udcff", "c")))
    made: list[Firing] = []

    def work(number: int) -> None:
        told = Firing(schedule=schedule.id, due=START + timedelta(seconds=number), by="files", files=files,
                      created_at=START)
        if (firing := rows.schedules.fire(schedule, told)) is not None:
            made.append(firing)

    together(6, work)
    assert [firing.files for firing in made] == [files]
    assert rows.schedules.firings(schedule.id) == made
    assert rows.schedules.known(schedule.id, ["a" * 64, "d" * 64]) == {"a" * 64}
    more = (files[0], Trace(path="d", sha256="d" * 64, size_bytes=1))
    told = rows.schedules.fire(schedule, Firing(schedule=schedule.id, due=START + timedelta(hours=1), by="files",
                                                files=more, created_at=START))
    assert told is not None
    assert told.files == more[1:]


def test_one_worker_at_a_time_holds_the_lease(rows: Store) -> None:
    """Of many that ask at once one has it, and keeps it; given up, or run out, it is the next one's."""
    answers: dict[int, bool] = {}
    together(6, lambda number: answers.update({number: rows.schedules.lease(f"w{number}", 60)}))
    [holder] = [number for number, has in answers.items() if has]
    assert rows.schedules.lease(f"w{holder}", 60)
    assert not rows.schedules.lease("other", 60)
    rows.schedules.release(f"w{holder}")
    assert rows.schedules.lease("other", 1e-6)
    assert rows.schedules.lease("third", 60)
    assert rows.schedules.lease("fourth", 1)  # as after a boot: a lease longer than any is nobody's
    assert abs((rows.schedules.now() - now()).total_seconds()) < 3600
