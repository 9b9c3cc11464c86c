"""Closing: a shared run is finished once all its attempts have their results, however it was turned meanwhile.

A result may come in while its run is being paused or cancelled, and what runs of a paused run goes on to its end. So it
is not the state a run was put into that says whether it is over, but what is left of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from woodshed.model import AttemptState, RunState
from woodshed.model.event import now
from woodshed.store import ends
from woodshed.store.tables import attempts, queued, runs, submissions
from woodshed.store.text import stamp

OPEN, PAUSED, CANCELLED, OVERDUE, CLOSED = "open", "paused", "cancelled", "overdue", "closed"
_STATES = {PAUSED: RunState.PAUSED, OVERDUE: RunState.PAUSED, CANCELLED: RunState.CANCELLED}


def standing(run_id: str, state: str, reason: str | None) -> sa.Update:
    """Where a run stands whose submission is turned."""
    values: dict[str, Any] = {"reason": reason}
    begun = sa.exists().where(attempts.c.run == run_id, attempts.c.executions > 0)
    match state:
        case "open":
            values["state"] = sa.case((begun, RunState.RUNNING.value), else_=RunState.QUEUED.value)
        case "closed":
            values |= {"state": RunState.FINISHED.value, "finished_at": sa.func.coalesce(runs.c.finished_at,
                                                                                         stamp(now()))}
        case _:
            values["state"] = _STATES[state].value
    return sa.update(runs).where(runs.c.id == run_id).values(values)


def spent(connection: sa.Connection) -> Sequence[str]:
    """Runs that are not known to be over and of which nothing is left that anybody has, or may take."""
    return connection.execute(_SPENT).scalars().all()


def close(connection: sa.Connection, run_id: str) -> bool:
    """Finish a run all of whose attempts have their results; whether it was this call that did.

    One that was cancelled before they had is over now if nobody has anything of it any more.
    """
    if connection.execute(_LEFT.where(queued.c.run == run_id)).scalar_one():
        return False
    state = connection.execute(
        sa.select(submissions.c.state).where(submissions.c.run == run_id).with_for_update()).scalar()
    if state in (None, CLOSED):
        return False
    if state == CANCELLED and connection.execute(_WITHOUT_RESULT, {"this": run_id}).scalar_one():
        connection.execute(sa.update(runs).where(runs.c.id == run_id).values(
            finished_at=sa.func.coalesce(runs.c.finished_at, stamp(now()))))
        return False
    connection.execute(sa.update(submissions).where(submissions.c.run == run_id)
                       .values(state=CLOSED, reason=None, **ends.NONE))
    connection.execute(standing(run_id, CLOSED, None))
    return True


def clear(connection: sa.Connection, run_id: str) -> None:
    """Nothing of a cancelled run waits any more."""
    connection.execute(sa.delete(queued).where(queued.c.run == run_id, queued.c.worker.is_(None)))


_LEFT = sa.select(sa.func.count()).select_from(queued)
_WITHOUT_RESULT = sa.select(sa.func.count()).select_from(attempts).where(
    attempts.c.run == sa.bindparam("this", type_=sa.String), attempts.c.state != AttemptState.DONE.value)
_SPENT = (
    sa.select(submissions.c.run).join(runs, runs.c.id == submissions.c.run)
    .where(submissions.c.state != CLOSED, runs.c.finished_at.is_(None))
    .where(~sa.exists().where(queued.c.run == submissions.c.run,
                              sa.or_(submissions.c.state != CANCELLED, queued.c.worker.is_not(None))))
)
