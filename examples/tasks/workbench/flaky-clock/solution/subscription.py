"""A subscription and the dates on which it is due."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True)
class Subscription:
    """Due every month from ``start`` on, on its day or, where the month is too short, on the last one."""

    customer: str
    start: date

    def due_dates(self, count: int) -> list[date]:
        """The first ``count`` due dates; the first is ``start``."""
        first = self.start.year * 12 + self.start.month - 1
        return [self._due_in(*divmod(first + months, 12)) for months in range(count)]

    def is_due(self, day: date) -> bool:
        """Whether ``day`` is a due date."""
        return day >= self.start and day == self._due_in(day.year, day.month - 1)

    def _due_in(self, year: int, month0: int) -> date:
        """The due date in a month, counted from 0."""
        _, days = monthrange(year, month0 + 1)
        return date(year, month0 + 1, min(self.start.day, days))
