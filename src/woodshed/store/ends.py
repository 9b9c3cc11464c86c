"""Deadlines of shared runs: counted from their first attempt, and anew each time that a run is opened again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa

from woodshed.model.event import now
from woodshed.store.tables import queued, submissions
from woodshed.store.text import stamp


def begin(connection: sa.Connection, runs: Sequence[str]) -> None:
    """The time of these runs begins now, where it had not begun."""
    timed = sa.select(submissions.c.run, submissions.c.run_s).where(
        submissions.c.run.in_(runs), submissions.c.run_s.is_not(None), submissions.c.ends_at.is_(None))
    for run, run_s in connection.execute(timed).all():
        end = stamp(now() + timedelta(seconds=run_s))
        connection.execute(sa.update(submissions).where(submissions.c.run == run).values(ends_at=end))


def over(connection: sa.Connection) -> list[tuple[str, float]]:
    """Open runs whose time is over though something of them is left, each with the seconds that it had."""
    left = sa.exists().where(queued.c.run == submissions.c.run)
    query = sa.select(submissions.c.run, submissions.c.run_s).where(
        submissions.c.state == "open", submissions.c.ends_at <= stamp(now()), left)
    return [(run, float(run_s)) for run, run_s in connection.execute(query)]
