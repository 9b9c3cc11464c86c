from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from billing import Office, Subscription

BERLIN = ZoneInfo("Europe/Berlin")


def late_on_31_may() -> datetime:
    """Still May in London, already June in Berlin."""
    return datetime(2025, 5, 31, 22, 30, tzinfo=UTC)


def test_a_subscription_that_starts_today_is_due() -> None:
    subscriptions = [Subscription("ada", date(2025, 6, 1)), Subscription("grace", date(2025, 5, 31))]
    assert Office(subscriptions, BERLIN, clock=late_on_31_may).due_today() == subscriptions[:1]


def test_a_subscription_of_an_earlier_month_is_due() -> None:
    office = Office([Subscription("ada", date(2025, 1, 31))], ZoneInfo("UTC"), clock=late_on_31_may)
    assert len(office.due_today()) == 1


def test_the_reminder_is_the_next_one() -> None:
    reminder = Office([], BERLIN, clock=late_on_31_may).next_reminder()
    assert reminder == datetime(2025, 6, 1, 7, tzinfo=UTC)


def test_the_summary_names_today() -> None:
    summary = Office([], BERLIN, clock=late_on_31_may).summary()
    assert summary == "2025-06-01: 0 due, next reminder 2025-06-01 09:00"


def test_due_dates_follow_each_other() -> None:
    dates = Subscription("ada", date(2025, 1, 31)).due_dates(13)
    assert dates[1] == date(2025, 2, 28)
    assert dates[12] == date(2026, 1, 31)
