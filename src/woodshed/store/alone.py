"""Alone: a run that one process works on by itself, steered from any other. All SQL of it is here.

Whoever cancels or pauses such a run marks its row; the process that has it looks at the mark again and again. Where no
process has it any more, the mark is all there is to do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import sqlalchemy as sa

from woodshed.errors import UsageError
from woodshed.model import AttemptState, RunState
from woodshed.model.event import now
from woodshed.store.tables import attempts, executions, runs
from woodshed.store.text import stamp

Opened = Callable[[str], AbstractContextManager[sa.Connection]]

_FROM = {
    RunState.CANCELLED: (RunState.RUNNING, RunState.INTERRUPTED, RunState.PAUSED, RunState.CANCELLED),
    RunState.PAUSED: (RunState.RUNNING, RunState.PAUSED),
}


class Mark(NamedTuple):
    """How a run stands, and why."""

    state: RunState
    reason: str | None


class Alone:
    """Made by :attr:`Store.alone`; raises StoreFault as the store does."""

    def __init__(self, write: Opened, read: Opened) -> None:
        self._write, self._read = write, read

    def mark(self, run_id: str, state: RunState, reason: str | None) -> None:
        """CANCELLED or PAUSED, for the process that has the run to heed. Raises UsageError where it is over, or open.

        A run that is cancelled while nothing of it is at work is over at once.
        """
        at_work = sa.exists().where(attempts.c.run == run_id, attempts.c.state == AttemptState.RUNNING.value)
        values = {"state": state.value, "reason": reason}
        change = sa.update(runs).where(runs.c.id == run_id, runs.c.state.in_([one.value for one in _FROM[state]]))
        with self._write("steering a run") as connection:
            there = connection.execute(sa.select(runs.c.state).where(runs.c.id == run_id)).scalar()
            if connection.execute(change.values(values)).rowcount:
                if state is RunState.CANCELLED:
                    connection.execute(_over(run_id).where(~at_work))
                return
        raise UsageError(f"{run_id} is {there}" if there else f"no run '{run_id}'", field="run",
                         remedy="'woodshed show' lists the runs and how they stand.")

    def of(self, run_id: str) -> Mark | None:
        """How the run stands; None before it is recorded."""
        with self._read("looking how a run stands") as connection:
            row = connection.execute(_STANDS, {"this": run_id}).one_or_none()
        return None if row is None else Mark(RunState(row.state), row.reason)

    def end(self, run_id: str) -> None:
        """A cancelled run whose process has died is over: what it had open is lost, its attempts wait for nobody."""
        of = sa.select(attempts.c.id).where(attempts.c.run == run_id)
        with self._write("ending a cancelled run") as connection:
            if connection.execute(_STANDS, {"this": run_id}).one().state != RunState.CANCELLED.value:
                return
            connection.execute(
                sa.update(executions).where(executions.c.attempt.in_(of), executions.c.state == "open")
                .values(state="lost", finished_at=stamp(now())))
            connection.execute(
                sa.update(attempts).where(attempts.c.run == run_id, attempts.c.state == AttemptState.RUNNING.value)
                .values(state=AttemptState.PENDING.value))
            connection.execute(_over(run_id))


def _over(run_id: str) -> sa.Update:
    return sa.update(runs).where(runs.c.id == run_id).values(
        finished_at=sa.func.coalesce(runs.c.finished_at, stamp(now())))


_STANDS = sa.select(runs.c.state, runs.c.reason).where(runs.c.id == sa.bindparam("this", type_=sa.String))
"""Asked again and again while a run lasts, so it is made once."""
