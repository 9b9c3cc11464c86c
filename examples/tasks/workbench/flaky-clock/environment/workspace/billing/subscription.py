"""A subscription and the dates on which it is due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True)
class Subscription:
    """Due every month from ``start`` on."""

    customer: str
    start: date

    def due_dates(self, count: int) -> list[date]:
        """The first ``count`` due dates; the first is ``start``."""
        dates = [self.start]
        while len(dates) < count:
            dates.append(_next_month(dates[-1]))
        return dates[:count]

    def is_due(self, day: date) -> bool:
        """Whether ``day`` is a due date."""
        return day >= self.start and day.day == self.start.day


def _next_month(day: date) -> date:
    if day.month == 12:
        return day.replace(year=day.year + 1, month=1)
    try:
        return day.replace(month=day.month + 1)
    except ValueError:  # no such day in that month
        return day.replace(month=day.month + 1, day=28)
