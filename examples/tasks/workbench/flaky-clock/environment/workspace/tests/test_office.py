from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from billing import Office, Subscription

BERLIN = ZoneInfo("Europe/Berlin")


def test_a_subscription_that_starts_today_is_due() -> None:
    office = Office([Subscription("ada", date.today())], BERLIN)
    assert [subscription.customer for subscription in office.due_today()] == ["ada"]


def test_a_subscription_of_last_month_is_due() -> None:
    month_ago = date.today() - timedelta(days=30)
    office = Office([Subscription("ada", month_ago.replace(day=date.today().day))], BERLIN)
    assert len(office.due_today()) == 1


def test_the_reminder_is_within_a_day() -> None:
    office = Office([], BERLIN)
    assert datetime.now(BERLIN) < office.next_reminder() <= datetime.now(BERLIN) + timedelta(days=1)


def test_the_summary_names_today() -> None:
    office = Office([], ZoneInfo("Pacific/Auckland"))
    assert office.summary().startswith(f"{date.today()}: 0 due")


def test_due_dates_follow_each_other() -> None:
    dates = Subscription("ada", date.today()).due_dates(13)
    assert dates[12] == date.today().replace(year=date.today().year + 1)
