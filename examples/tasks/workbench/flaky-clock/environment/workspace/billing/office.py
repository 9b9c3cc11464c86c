"""An office looks after subscriptions in its own time zone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from billing.subscription import Subscription


class Office:
    """``remind_at`` is the wall-clock time of ``zone`` at which reminders go out, every day."""

    def __init__(self, subscriptions: Iterable[Subscription], zone: ZoneInfo, remind_at: time = time(9)) -> None:
        self._subscriptions = list(subscriptions)
        self._zone = zone
        self._remind_at = remind_at

    def due_today(self) -> list[Subscription]:
        """The subscriptions that are due today, in their order."""
        return [subscription for subscription in self._subscriptions if subscription.is_due(date.today())]

    def next_reminder(self) -> datetime:
        """When the next reminder goes out."""
        today = datetime.combine(date.today(), self._remind_at, self._zone)
        return today if today > datetime.now(self._zone) else today + timedelta(days=1)

    def seconds_until_reminder(self) -> float:
        """How long a worker has to sleep until the next reminder."""
        return (self.next_reminder() - datetime.now(self._zone)).total_seconds()

    def summary(self) -> str:
        """One line for the dashboard."""
        reminder = self.next_reminder()
        return f"{date.today()}: {len(self.due_today())} due, next reminder {reminder:%Y-%m-%d %H:%M}"
