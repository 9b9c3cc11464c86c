"""Deadlines of shared runs: counted from their first attempt, and anew each time that a run is opened again.

They are told by the clock that heartbeats are told by (:mod:`~woodshed.store.clock`), which nobody sets. One that was
told by the clock of an earlier boot of the machine begins anew: what of it had passed is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from woodshed.store import clock
from woodshed.store.tables import queued, submissions

NONE: dict[str, Any] = {"timed_at": None, "timed_until": None}
"""The values of a run whose time has not begun, or counts no more."""
_CLOCK = sa.bindparam("clock", type_=sa.Float)
_OF_AN_EARLIER_BOOT = submissions.c.timed_at > _CLOCK + clock.SKEW_S
_LEFT = sa.exists().where(queued.c.run == submissions.c.run)
_OVER = (
    sa.select(submissions.c.run, submissions.c.run_s, submissions.c.timed_until)
    .where(submissions.c.state == "open", _LEFT,
           sa.or_(submissions.c.timed_until <= _CLOCK, _OF_AN_EARLIER_BOOT))
)
_BEGIN = (
    sa.update(submissions)
    .where(submissions.c.run.in_(sa.bindparam("these", expanding=True)), submissions.c.run_s.is_not(None))
    .where(sa.or_(submissions.c.timed_until.is_(None), _OF_AN_EARLIER_BOOT))
    .values(timed_at=_CLOCK, timed_until=_CLOCK + submissions.c.run_s)
)


def begin(connection: sa.Connection, runs: Sequence[str]) -> None:
    """The time of these runs begins now, where it had not begun in this boot of the machine."""
    connection.execute(_BEGIN, {"these": list(runs), "clock": clock.seconds(connection)})


def over(connection: sa.Connection) -> tuple[list[tuple[str, float]], list[str]]:
    """Open runs of which something is left: those whose time is over, with the seconds that they had, and those

    whose time was told by the clock of an earlier boot.
    """
    at = clock.seconds(connection)
    found = connection.execute(_OVER, {"clock": at}).all()
    return ([(row.run, float(row.run_s)) for row in found if row.timed_until <= at],
            [row.run for row in found if row.timed_until > at])
