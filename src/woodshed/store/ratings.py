"""Ratings: what people thought of attempts, beside them. They add up; none is changed or replaced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import sqlalchemy as sa

from woodshed.model.process import Rating
from woodshed.store import rows
from woodshed.store.tables import attempts, ratings
from woodshed.store.text import stamp

Opened = Callable[[str], AbstractContextManager[sa.Connection]]


class Ratings:
    """The ratings of one database. Made by :attr:`Store.ratings`; raises StoreFault as the store does."""

    def __init__(self, write: Opened, read: Opened) -> None:
        self._write, self._read = write, read

    def add(self, rating: Rating) -> None:
        """Write one more. Raises StoreFault where there is no such attempt."""
        project = sa.select(attempts.c.project).where(attempts.c.id == rating.attempt).scalar_subquery()
        with self._write("recording the rating") as connection:
            connection.execute(sa.insert(ratings).values(
                attempt=rating.attempt, project=project, stars=rating.stars, note=rating.note, by=rating.by,
                at=stamp(rating.at)))

    def of(self, run_id: str) -> dict[str, list[Rating]]:
        """Those of a run by attempt, oldest first."""
        query = (
            sa.select(ratings.c.attempt, ratings.c.stars, ratings.c.note, ratings.c.by, ratings.c.at)
            .join(attempts, attempts.c.id == ratings.c.attempt).where(attempts.c.run == run_id)
            .order_by(ratings.c.number)
        )
        found: dict[str, list[Rating]] = {}
        with self._read("reading ratings") as connection:
            for row in connection.execute(query).mappings():
                found.setdefault(row["attempt"], []).append(
                    rows.record(Rating, f"a rating of {row['attempt']}", row))
        return found
