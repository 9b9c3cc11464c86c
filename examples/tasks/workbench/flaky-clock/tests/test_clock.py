"""The office answers by its clock, at the nastiest of moments."""

from __future__ import annotations

import time as machine
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from billing import Office, Subscription

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
AUCKLAND = ZoneInfo("Pacific/Auckland")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # puts the clock forward by half an hour


@pytest.fixture(autouse=True, params=["UTC", "Asia/Tokyo"], ids=["utc", "tokyo"])
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's own time zone must not matter."""
    monkeypatch.setenv("TZ", request.param)
    machine.tzset()
    yield
    monkeypatch.undo()
    machine.tzset()


def at(text: str) -> Callable[[], datetime]:
    """A clock that stands still at ``text``, in UTC."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return lambda: moment


def ticking(text: str, step: timedelta) -> Callable[[], datetime]:
    """A clock that moves on by ``step`` whenever it is read."""
    moments = iter(at(text)() + step * count for count in range(1000))
    return lambda: next(moments)


def due(zone: ZoneInfo, clock: Callable[[], datetime], *starts: date) -> list[date]:
    office = Office([Subscription(f"of {start}", start) for start in starts], zone, clock=clock)
    return [subscription.start for subscription in office.due_today()]


def reminder(zone: ZoneInfo, now: str, remind_at: time = time(9)) -> str:
    """When the next reminder is due, in UTC; checks that the sleep ends exactly then."""
    office = Office([], zone, remind_at, clock=at(now))
    found = office.next_reminder()
    assert found.utcoffset() == found.astimezone(UTC).astimezone(zone).utcoffset()
    moment = found.astimezone(UTC)
    assert office.seconds_until_reminder() == (moment - at(now)()).total_seconds() > 0
    return moment.strftime("%Y-%m-%d %H:%M")


def test_today_is_the_offices_day() -> None:
    """At one moment it is three different days."""
    clock = at("2025-05-10 11:30")
    assert due(AUCKLAND, clock, date(2025, 4, 10), date(2025, 4, 9), date(2025, 4, 11)) == [date(2025, 4, 10)]
    clock = at("2025-05-10 23:30")
    assert due(AUCKLAND, clock, date(2025, 4, 10), date(2025, 4, 11)) == [date(2025, 4, 11)]
    assert due(BERLIN, clock, date(2025, 4, 10), date(2025, 4, 11)) == [date(2025, 4, 11)]
    assert due(NEW_YORK, clock, date(2025, 4, 10), date(2025, 4, 11)) == [date(2025, 4, 10)]


def test_short_months_have_due_dates_too() -> None:
    """On the last day of a short month, everything is due that is due on a later day elsewhere."""
    starts = [date(2024, 12, 28), date(2024, 12, 29), date(2024, 12, 30), date(2024, 12, 31)]
    assert due(BERLIN, at("2025-02-28 12:00"), *starts) == starts
    assert due(BERLIN, at("2025-02-27 12:00"), *starts) == []
    assert due(BERLIN, at("2025-04-30 12:00"), *starts) == starts[2:]
    assert due(BERLIN, at("2025-05-31 12:00"), *starts) == starts[3:]
    assert due(BERLIN, at("2028-02-29 12:00"), *starts) == starts[1:]
    assert due(BERLIN, at("2028-02-28 12:00"), *starts) == starts[:1]


def test_nothing_is_due_before_it_starts() -> None:
    """The start is the first due date."""
    assert due(BERLIN, at("2025-05-10 12:00"), date(2025, 5, 10), date(2025, 6, 10)) == [date(2025, 5, 10)]
    assert due(BERLIN, at("2025-02-28 12:00"), date(2025, 3, 28), date(2025, 3, 31)) == []


def test_due_dates_do_not_drift() -> None:
    """After a short month the day is the old one again."""
    dates = Subscription("ada", date(2027, 10, 31)).due_dates(7)
    assert [f"{day:%m-%d}" for day in dates] == ["10-31", "11-30", "12-31", "01-31", "02-29", "03-31", "04-30"]
    leap = Subscription("grace", date(2028, 2, 29)).due_dates(49)
    found = [str(leap[month]) for month in (0, 1, 12, 24, 48)]
    assert found == ["2028-02-29", "2028-03-29", "2029-02-28", "2030-02-28", "2032-02-29"]


def test_due_dates_and_is_due_agree() -> None:
    """Day by day over three years."""
    for start in (date(2025, 1, 1), date(2025, 1, 28), date(2025, 1, 29), date(2025, 1, 30), date(2025, 1, 31)):
        subscription = Subscription("ada", start)
        days = [start + timedelta(days=count) for count in range(-40, 1095)]
        assert [day for day in days if subscription.is_due(day)] == subscription.due_dates(36)


def test_few_due_dates() -> None:
    """None, one, and December."""
    subscription = Subscription("ada", date(2025, 12, 15))
    assert subscription.due_dates(0) == []
    assert subscription.due_dates(1) == [date(2025, 12, 15)]
    assert subscription.due_dates(2) == [date(2025, 12, 15), date(2026, 1, 15)]


def test_the_reminder_is_the_next_one() -> None:
    """Before, at and after the time of the day, in the office's zone."""
    assert reminder(BERLIN, "2025-06-10 06:59:59") == "2025-06-10 07:00"
    assert reminder(BERLIN, "2025-06-10 07:00:00") == "2025-06-11 07:00"
    assert reminder(BERLIN, "2025-06-10 07:00:01") == "2025-06-11 07:00"
    assert reminder(AUCKLAND, "2025-06-09 20:59") == "2025-06-09 21:00"
    assert reminder(AUCKLAND, "2025-06-09 23:00") == "2025-06-10 21:00"
    assert reminder(NEW_YORK, "2025-12-31 23:00") == "2026-01-01 14:00"


def test_the_day_of_a_change_has_not_24_hours() -> None:
    """Nine o'clock stays nine o'clock when the clocks change in the night before."""
    assert reminder(BERLIN, "2025-03-29 08:00") == "2025-03-30 07:00"
    assert reminder(BERLIN, "2025-10-25 07:00") == "2025-10-26 08:00"
    assert reminder(NEW_YORK, "2025-03-08 14:00") == "2025-03-09 13:00"


def test_a_time_that_is_skipped_is_the_moment_of_the_change() -> None:
    """At 02:00 the clocks go to 03:00 (Lord Howe: 02:30): a reminder in between goes out then, and only once."""
    for minute in (0, 1, 30, 59):
        assert reminder(BERLIN, "2025-03-29 12:00", time(2, minute)) == "2025-03-30 01:00"
        assert reminder(BERLIN, "2025-03-30 00:59", time(2, minute)) == "2025-03-30 01:00"
        assert reminder(BERLIN, "2025-03-30 01:00", time(2, minute)) == f"2025-03-31 00:{minute:02}"
    assert reminder(LORD_HOWE, "2025-10-04 12:00", time(2, 15)) == "2025-10-04 15:30"
    office = Office([], BERLIN, time(2, 30), clock=at("2025-03-29 12:00"))
    assert f"{office.next_reminder():%d %H:%M}" == "30 03:00"


def test_a_time_that_comes_twice_counts_once() -> None:
    """At 03:00 the clocks go back to 02:00: only the first 02:30 is a reminder."""
    assert reminder(BERLIN, "2025-10-25 12:00", time(2, 30)) == "2025-10-26 00:30"
    assert reminder(BERLIN, "2025-10-26 00:29", time(2, 30)) == "2025-10-26 00:30"
    assert reminder(BERLIN, "2025-10-26 00:30", time(2, 30)) == "2025-10-27 01:30"
    assert reminder(BERLIN, "2025-10-26 01:15", time(2, 30)) == "2025-10-27 01:30"


def test_the_summary_is_of_one_moment() -> None:
    """Midnight between two looks at the clock does not mix two days."""
    starts = [Subscription("ada", date(2025, 1, 31)), Subscription("grace", date(2025, 2, 1))]
    for step in (timedelta(seconds=2), timedelta(hours=20)):
        office = Office(starts, BERLIN, time(0), clock=ticking("2025-05-31 21:59:59", step))
        assert office.summary() == "2025-05-31: 1 due, next reminder 2025-06-01 00:00"


def test_the_sleep_is_of_one_moment() -> None:
    """The reminder and the time until it are worked out from the same look at the clock."""
    office = Office([], BERLIN, clock=ticking("2025-06-10 06:59:59", timedelta(seconds=2)))
    assert office.seconds_until_reminder() == 1.0
    office = Office([], BERLIN, clock=ticking("2025-06-10 06:00:00", timedelta(minutes=40)))
    assert office.seconds_until_reminder() == 3600.0


def test_due_today_is_of_one_moment() -> None:
    """All subscriptions are asked about the same day."""
    subscriptions = [Subscription(str(number), date(2025, 1, 31)) for number in range(100)]
    office = Office(subscriptions, BERLIN, clock=ticking("2025-05-31 21:59:30", timedelta(seconds=1)))
    assert office.due_today() == subscriptions


def test_the_machines_clock_is_the_default() -> None:
    """Without a clock, the office works in the present."""
    office = Office([], BERLIN)
    before = datetime.now(UTC)
    found = office.next_reminder()
    assert before < found <= datetime.now(UTC) + timedelta(hours=26)
