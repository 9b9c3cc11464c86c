"""An office looks after subscriptions in its own time zone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from billing.subscription import Subscription

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The machine's clock."""
    return datetime.now(UTC)


class Office:
    """``remind_at`` is the wall-clock time of ``zone`` at which reminders go out, every day.

    ``clock`` returns the present moment, aware, in UTC. Each public method reads it once.
    """

    def __init__(
        self,
        subscriptions: Iterable[Subscription],
        zone: ZoneInfo,
        remind_at: time = time(9),
        clock: Clock = utc_now,
    ) -> None:
        self._subscriptions = list(subscriptions)
        self._zone = zone
        self._remind_at = remind_at
        self._clock = clock

    def due_today(self) -> list[Subscription]:
        """The subscriptions that are due today, in their order."""
        return self._due_on(self._today(self._clock()))

    def next_reminder(self) -> datetime:
        """When the next reminder goes out, in the office's zone."""
        return self._reminder_after(self._clock()).astimezone(self._zone)

    def seconds_until_reminder(self) -> float:
        """How long a worker has to sleep until the next reminder."""
        now = self._clock()
        return (self._reminder_after(now) - now).total_seconds()

    def summary(self) -> str:
        """One line for the dashboard."""
        now = self._clock()
        today = self._today(now)
        reminder = self._reminder_after(now).astimezone(self._zone)
        return f"{today}: {len(self._due_on(today))} due, next reminder {reminder:%Y-%m-%d %H:%M}"

    def _today(self, now: datetime) -> date:
        return now.astimezone(self._zone).date()

    def _due_on(self, day: date) -> list[Subscription]:
        return [subscription for subscription in self._subscriptions if subscription.is_due(day)]

    def _reminder_after(self, now: datetime) -> datetime:
        """In UTC. Subtracting datetimes of one zone would count wall-clock time."""
        today = self._today(now)
        moments = (self._reminder_on(today + timedelta(days=days)) for days in range(3))
        return next(moment for moment in moments if moment > now)

    def _reminder_on(self, day: date) -> datetime:
        """The moment of a day's reminder, in UTC.

        Fold 0 is the first of two; in a gap it is as far after the change as if the clock had gone on as before.
        """
        wall = datetime.combine(day, self._remind_at, self._zone)
        moment = wall.astimezone(UTC)
        if moment.astimezone(self._zone).replace(tzinfo=None) == wall.replace(tzinfo=None):
            return moment
        return self._change_before(moment)

    def _change_before(self, moment: datetime) -> datetime:
        """The second, within a day before ``moment``, at which the zone's offset became what it is then."""
        offset = moment.astimezone(self._zone).utcoffset()
        before, after = moment - timedelta(days=1), moment
        while after - before > timedelta(seconds=1):
            middle = (before + (after - before) / 2).replace(microsecond=0)
            if middle.astimezone(self._zone).utcoffset() == offset:
                after = middle
            else:
                before = middle
        return after
