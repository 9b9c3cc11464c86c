"""Schedules: every time is accounted for once, whatever clocks and workers do, and cron follows Debian's where clocks
change."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.engine import timetable
from woodshed.errors import UsageError
from woodshed.model import Agent
from woodshed.model.schedule import (
    MOST_WAITING,
    Cron,
    Firing,
    FiringState,
    Missed,
    Once,
    Overlap,
    Schedule,
    ScheduleState,
    Standing,
    Trigger,
    admit,
)

START = datetime(2026, 3, 28, tzinfo=UTC)
EXPRESSIONS = ["*/20 * * * *", "7 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 */2 * * *", "0 0 * * 1-5"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]


def schedule(trigger: Trigger, **fields: object) -> Schedule:
    """A schedule that has looked at nothing since START."""
    order = Standing(paths=("/tasks",), agents=(Agent(name="oracle", harness="oracle"),))
    return Schedule.model_validate({"id": "s-1", "name": "nightly", "trigger": trigger, "order": order,
                                    "cursor": START, "created_at": START, **fields})


def local(zone: str, *when: int, fold: int = 0) -> datetime:
    return datetime(*when, tzinfo=ZoneInfo(zone), fold=fold)  # type: ignore[arg-type, misc]  # year, month, day, …


def first(expression: str, zone: str, after: datetime, most: int) -> list[str]:
    """The first times after then, as the zone's own clocks show them."""
    found = islice(timetable.times(Cron(expression=expression, zone=zone), after), most)
    return [at.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes") for at in found]


def test_a_job_in_the_missing_hour_fires_once_the_hour_is_over() -> None:
    """At 02:30 on the day clocks go forward: at 03:00, once; the day after at 02:30 again."""
    assert first("30 2 * * *", "Europe/Berlin", local("Europe/Berlin", 2026, 3, 28, 12), 2) == [
        "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]
    assert first("*/30 * * * *", "Europe/Berlin", local("Europe/Berlin", 2026, 3, 29, 1), 3) == [
        "2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"]


def test_a_job_in_the_hour_that_comes_twice_fires_the_first_time() -> None:
    """At 02:30 on the day clocks go back: once, also when asked in between; a job of every half hour fires in both."""
    day = "Europe/Berlin", local("Europe/Berlin", 2026, 10, 24, 12)
    assert first("30 2 * * *", *day, 2) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]
    between = local("Europe/Berlin", 2026, 10, 25, 2, 10, fold=1)
    assert first("30 2 * * *", "Europe/Berlin", between, 1) == ["2026-10-26T02:30+01:00"]
    assert first("*/30 * * * *", "Europe/Berlin", local("Europe/Berlin", 2026, 10, 25, 2), 4) == [
        "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00", "2026-10-25T03:00+01:00"]


@cache
def looked_ahead(cron: Cron, day: datetime) -> list[datetime]:
    """Every time from the day before until a week after, in one look, ascending."""
    found = list(takewhile(lambda at: at < day + timedelta(days=7), timetable.times(cron, day - timedelta(days=1))))
    assert all(one < two for one, two in pairwise(found))
    return found


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), st.sampled_from([
    datetime(2026, 3, 7, tzinfo=UTC), datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 4, 4, tzinfo=UTC),
    datetime(2026, 10, 3, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 31, tzinfo=UTC),
]), st.integers(0, 48 * 60), st.integers(0, 59))
def test_the_next_time_does_not_depend_on_when_one_asks(
    expression: str, zone: str, day: datetime, minutes: int, seconds: int
) -> None:
    """Asked at any moment around a change of clocks, the next time is the one a long look ahead has next."""
    cron = Cron(expression=expression, zone=zone)
    asked = day + timedelta(minutes=minutes, seconds=seconds)
    ahead = looked_ahead(cron, day)
    assert next(timetable.times(cron, asked)) == ahead[bisect_right(ahead, asked)]


@pytest.mark.parametrize("bad", ["", "* * * *", "* * * * * *", "61 * * * *", "@daily", "0 0 31 2 *", "x * * * *"])
def test_an_expression_that_cron_does_not_know_is_refused(bad: str) -> None:
    """The message says what stands where; seconds are no cron's."""
    with pytest.raises(UsageError, match="cron: "):
        next(timetable.times(Cron(expression=bad), START))


@pytest.mark.parametrize("bad", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime", "Europe"])
def test_a_zone_that_is_none_is_refused(bad: str) -> None:
    """No path of a file passes for a zone either."""
    with pytest.raises(UsageError, match="zone: no time zone"):
        timetable.zone(bad)


TRIGGERS: st.SearchStrategy[Trigger] = st.one_of(
    st.builds(Cron, expression=st.sampled_from(["* * * * *", "*/20 * * * *", "30 2 * * *"]),
              zone=st.sampled_from(ZONES)),
    st.builds(Once, at=st.integers(1, 100_000).map(lambda s: START + timedelta(seconds=s))),
)
CLOCK = st.lists(st.one_of(st.integers(-7200, 7200), st.integers(0, 90), st.just(2 * 86_400)), max_size=30)


@given(TRIGGERS, st.sampled_from(Missed), st.floats(0, 300), st.floats(1, 600), CLOCK, st.integers(1, 50))
def test_every_time_is_accounted_for_once(
    trigger: Trigger, missed: Missed, jitter_s: float, grace_s: float, steps: list[int], most: int
) -> None:
    """Whatever the clock shows, forward or back: the times up to the cursor stand in exactly one firing each, in order;

    none comes before its time, and what was missed fires as the policy says.
    """
    one = schedule(trigger, missed=missed, jitter_s=jitter_s, grace_s=grace_s)
    clock, told, reached = START, list[Firing](), START
    for step in steps:
        clock += timedelta(seconds=step)
        reached = max(reached, clock)
        due = timetable.due(one, clock, most)
        assert due.cursor >= one.cursor
        for firing in due.firings:
            assert one.jittered(firing.due) <= clock
            late = one.is_late(firing.due, clock)
            assert late or firing.state is FiringState.PENDING  # what is in time is never given up
            assert not (late and missed is Missed.SKIP and firing.state is FiringState.PENDING)
            assert not (missed is Missed.ALL and firing.state is FiringState.MISSED)
        if missed is Missed.ONE:
            assert sum(one.is_late(f.due, clock) for f in due.firings if f.state is FiringState.PENDING) <= 1
        told += due.firings
        one = one.model_copy(update={"cursor": due.cursor,
                                     **({"state": ScheduleState.ENDED} if due.ended else {})})
    accounted = [at for at in timetable.times(trigger, START) if at <= one.cursor] if isinstance(trigger, Once) else \
        _until(trigger, one.cursor)
    covered = []
    for firing in told:
        span = [at for at in accounted if (firing.since or firing.due) <= at <= firing.due]
        assert len(span) == firing.count
        covered += span
    assert covered == accounted
    assert one.cursor <= reached


def _until(trigger: Trigger, end: datetime) -> list[datetime]:
    found = []
    for at in timetable.times(trigger, START):
        if at > end:
            break
        found.append(at)
    return found


@given(st.integers(1, 200), st.integers(1, 50), st.sampled_from(Missed))
def test_an_outage_is_caught_up_with_as_the_policy_says(minutes: int, most: int, missed: Missed) -> None:
    """After an outage, however many calls it takes: none fires, the latest one, or all; the rest are counted."""
    one, clock = schedule(Cron(expression="* * * * *"), missed=missed), START + timedelta(minutes=minutes, seconds=30)
    told = list[Firing]()
    while True:
        due = timetable.due(one, clock, most)
        told += due.firings
        one = one.model_copy(update={"cursor": due.cursor})
        if not due.more:
            break
    fired = [firing for firing in told if firing.state is FiringState.PENDING]
    late = [firing for firing in fired if one.is_late(firing.due, clock)]
    passed = minutes - (len(fired) - len(late))
    assert sum(firing.count for firing in told) == minutes
    assert len(late) == {Missed.SKIP: 0, Missed.ONE: min(passed, 1), Missed.ALL: passed}[missed]
    if missed is Missed.ONE and late:
        assert all(firing.due < late[0].due for firing in told if firing.state is FiringState.MISSED)


@given(st.integers(0, 10**9), st.floats(0, 86_400))
def test_jitter_is_the_same_for_whoever_asks_and_within_its_bound(second: int, jitter_s: float) -> None:
    """Two workers agree on when a time fires, without a word between them."""
    due = START + timedelta(seconds=second)
    one = schedule(Cron(expression="* * * * *"), jitter_s=jitter_s)
    other = schedule(Cron(expression="* * * * *"), jitter_s=jitter_s, name="renamed")
    assert one.jittered(due) == other.jittered(due.astimezone(ZoneInfo("Asia/Kathmandu")))
    assert due <= one.jittered(due) <= due + timedelta(seconds=jitter_s)


@given(st.sampled_from(Overlap), st.sampled_from([None, "r-1"]), st.integers(1, 2 * MOST_WAITING))
def test_an_overlap_is_allowed_refused_or_waited_for(overlap: Overlap, earlier: str | None, waiting: int) -> None:
    """With nothing before it a firing starts; else the policy decides, and a refusal names what it met."""
    state, reason = admit(overlap, earlier, waiting)
    if earlier is None or overlap is Overlap.ALLOW:
        assert (state, reason) == (FiringState.STARTING, None)
    elif overlap is Overlap.QUEUE and waiting <= MOST_WAITING:
        assert (state, reason) == (FiringState.PENDING, None)
    else:
        assert state is FiringState.SKIPPED
        assert reason is not None
        assert earlier in reason
