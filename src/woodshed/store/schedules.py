"""Schedules and their firings. A time, or what a file holds, is one row: whoever writes it first is who fires.

Intent comes before effect: a firing is a row (PENDING), then a decision (STARTING), then a run submitted with the
firing's own idempotency key, then FIRED. Whoever finds a firing at STARTING submits it again, and gets the same run.
A lease keeps all but one worker from looking; nothing depends on it.

Times are wall time: the database server's on PostgreSQL, so that workers agree; the machine's on SQLite.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from woodshed.errors import UsageError
from woodshed.model import RunState
from woodshed.model.event import now
from woodshed.model.schedule import Firing, FiringState, Schedule, ScheduleState, Trace, admit
from woodshed.store import rows
from woodshed.store.queue import Writing
from woodshed.store.tables import fired_files, firings, leases, runs, schedules
from woodshed.store.text import stamp

_LEASE = "schedules"
_OVER = (RunState.FINISHED.value, RunState.CANCELLED.value)
_OPEN = (FiringState.PENDING.value, FiringState.STARTING.value)


class Schedules:
    """See the module. Every method is synchronous, short and one transaction; it raises StoreFault like the store."""

    def __init__(self, engine: sa.Engine, writing: Writing, reading: Writing) -> None:
        self._write, self._read = writing, reading
        self._server = engine.dialect.name == "postgresql"

    # -- schedules -----------------------------------------------------------------------------------------------------

    def add(self, schedule: Schedule, known: Sequence[Trace] = ()) -> None:
        """Record a schedule, and the files that were there before it. Raises UsageError where its name is taken."""
        with self._write("adding the schedule") as connection:
            taken = sa.select(schedules.c.id).where(schedules.c.project == schedule.project,
                                                    schedules.c.name == schedule.name)
            if connection.execute(taken).scalar() is not None:
                raise UsageError(f"there is a schedule '{schedule.name}'", field="name",
                                 remedy=f"Take another name, or say: woodshed schedules remove {schedule.name}")
            connection.execute(sa.insert(schedules), rows.schedule_row(schedule))
            self._keep(connection, schedule, None, known)

    def named(self, name: str, project: str = "default") -> Schedule:
        """The schedule of this name, or with this id. Raises UsageError."""
        query = sa.select(schedules).where(sa.or_(
            schedules.c.id == name, sa.and_(schedules.c.project == project, schedules.c.name == name)))
        with self._read("reading the schedule") as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise UsageError(f"no schedule '{name}'", field="schedule", remedy="'woodshed schedules list' has them.")
        return rows.schedule(row)

    def all(self, *, active: bool = False) -> list[Schedule]:
        """Every schedule, oldest first; or those that are active."""
        query = sa.select(schedules).order_by(schedules.c.created_at, schedules.c.id)
        if active:
            query = query.where(schedules.c.state == ScheduleState.ACTIVE.value)
        with self._read("listing schedules") as connection:
            return [rows.schedule(row) for row in connection.execute(query).mappings()]

    def turn(self, schedule_id: str, state: ScheduleState, reason: str | None, cursor: datetime | None = None) -> None:
        """Pause or resume a schedule. With a ``cursor``, times up to it are let go, and failures are forgotten."""
        values: dict[str, Any] = {"state": state.value, "reason": reason}
        if cursor is not None:
            values |= {"cursor": stamp(cursor), "failures": 0}
        with self._write("changing the schedule") as connection:
            connection.execute(sa.update(schedules).where(schedules.c.id == schedule_id).values(values))

    def remove(self, schedule_id: str) -> None:
        """Forget a schedule and its firings. Runs that it began stay."""
        with self._write("removing the schedule") as connection:
            for table in (fired_files, firings):
                connection.execute(sa.delete(table).where(table.c.schedule == schedule_id))
            connection.execute(sa.delete(schedules).where(schedules.c.id == schedule_id))

    # -- firings -------------------------------------------------------------------------------------------------------

    def advance(self, schedule: Schedule, due: Sequence[Firing], cursor: datetime, *, ended: bool = False) -> bool:
        """Record what is due and move the cursor on, together. False, and nothing is written, where someone else did

        or the schedule was changed since it was read.
        """
        values = {"cursor": stamp(cursor), **({"state": ScheduleState.ENDED.value} if ended else {})}
        here = sa.and_(schedules.c.id == schedule.id, schedules.c.cursor == stamp(schedule.cursor),
                       schedules.c.state == ScheduleState.ACTIVE.value)
        with self._write("recording firings") as connection:
            if not connection.execute(sa.update(schedules).where(here).values(values)).rowcount:
                return False
            for firing in due:  # a time that has its row had it before the cursor was set back
                self._insert(connection, schedule, firing)
            return True

    def fire(self, schedule: Schedule, firing: Firing) -> Firing | None:
        """Record one firing by hand or by files; None where it has nothing new. Its files are those not fired before.

        Raises UsageError where the very moment is taken.
        """
        with self._write("recording a firing") as connection:
            if not self._there(connection, schedule.id):
                return None
            new = self._keep(connection, schedule, firing.due, firing.files)
            if firing.files and not new:
                return None
            told = firing.model_copy(update={"files": tuple(one for one in firing.files if one.sha256 in new)})
            if not self._insert(connection, schedule, told):
                raise UsageError("fired at this very moment", field="schedule", remedy="Say it again.")
            return told

    def decide(self, firing: Firing, schedule: Schedule) -> Firing:
        """What becomes of a pending firing now, all earlier ones decided; see :func:`woodshed.model.schedule.admit`."""
        mine = sa.and_(firings.c.schedule == firing.schedule, firings.c.due == stamp(firing.due))
        with self._write("deciding on a firing") as connection:
            self._there(connection, schedule.id)  # one decides at a time
            row = connection.execute(sa.select(firings).where(mine)).mappings().one_or_none()
            if row is None or row["state"] != FiringState.PENDING.value:
                return firing if row is None else rows.firing(row)
            state, reason = admit(schedule.overlap, *self._before(connection, firing))
            if state is FiringState.PENDING:
                return firing
            at = stamp(now()) if state is FiringState.SKIPPED else None
            connection.execute(sa.update(firings).where(mine).values(state=state.value, reason=reason, settled_at=at))
            return firing.model_copy(update={"state": state, "reason": reason})

    def _before(self, connection: sa.Connection, firing: Firing) -> tuple[str | None, int]:
        """A run of the schedule that is not over, or a firing whose run is about to be; and how many pend."""
        of = firings.c.schedule == firing.schedule
        opened = (sa.select(firings.c.run, firings.c.due).outerjoin(runs, runs.c.id == firings.c.run)
                  .where(of, firings.c.due != stamp(firing.due))
                  .where(sa.or_(firings.c.state == FiringState.STARTING.value,
                                sa.and_(firings.c.state == FiringState.FIRED.value, runs.c.state.not_in(_OVER))))
                  .order_by(firings.c.due).limit(1))
        found = connection.execute(opened).one_or_none()
        pending = sa.select(sa.func.count()).where(of, firings.c.state == FiringState.PENDING.value)
        earlier = None if found is None else found.run or f"the run of {found.due}"
        return earlier, connection.execute(pending).scalar_one()

    def fired(self, firing: Firing, run_id: str) -> None:
        """The firing has its run. Whatever else was said of it, the run exists."""
        with self._write("recording a firing") as connection:
            changed = connection.execute(
                sa.update(firings).where(firings.c.schedule == firing.schedule, firings.c.due == stamp(firing.due))
                .where(firings.c.run.is_(None))
                .values(state=FiringState.FIRED.value, run=run_id, reason=None, settled_at=stamp(now()))).rowcount
            if changed:
                connection.execute(sa.update(schedules).where(schedules.c.id == firing.schedule).values(failures=0))

    def failed(self, firing: Firing, reason: str) -> str | None:
        """The firing came to nothing. Why its schedule is paused, where that was one failure in a row too many."""
        mine = sa.and_(firings.c.schedule == firing.schedule, firings.c.due == stamp(firing.due),
                       firings.c.state == FiringState.STARTING.value)
        with self._write("recording a failure") as connection:
            if not connection.execute(sa.update(firings).where(mine).values(
                    state=FiringState.FAILED.value, reason=reason, settled_at=stamp(now()))).rowcount:
                return None
            of = schedules.c.id == firing.schedule
            connection.execute(sa.update(schedules).where(of).values(failures=schedules.c.failures + 1))
            row = connection.execute(sa.select(schedules).where(of)).mappings().one()
            schedule = rows.schedule(row)
            if schedule.state is not ScheduleState.ACTIVE or schedule.failures < schedule.most_failures:
                return None
            why = f"{schedule.failures} firings failed in a row; the last: {reason}"
            connection.execute(sa.update(schedules).where(of).values(state=ScheduleState.PAUSED.value, reason=why))
            return why

    def unsettled(self) -> list[Firing]:
        """Firings that are to be decided or submitted; of each schedule in the order of their times.

        What pends of a paused schedule stays where it is, unless it was fired by hand.
        """
        held = sa.and_(firings.c.state == FiringState.PENDING.value, firings.c.by != "hand",
                       schedules.c.state == ScheduleState.PAUSED.value)
        query = (sa.select(firings).join(schedules, schedules.c.id == firings.c.schedule)
                 .where(firings.c.state.in_(_OPEN), ~held)
                 .order_by(firings.c.due, firings.c.schedule).limit(1000))
        with self._read("reading firings") as connection:
            return [rows.firing(row) for row in connection.execute(query).mappings()]

    def firings(self, schedule_id: str, limit: int = 20) -> list[Firing]:
        """The newest firings of a schedule, newest first."""
        query = (sa.select(firings).where(firings.c.schedule == schedule_id)
                 .order_by(firings.c.due.desc()).limit(limit))
        with self._read("reading firings") as connection:
            return [rows.firing(row) for row in connection.execute(query).mappings()]

    def tally(self, schedule_id: str) -> dict[str, int]:
        """How many of its times came to what."""
        query = (sa.select(firings.c.state, sa.func.sum(firings.c.count)).where(firings.c.schedule == schedule_id)
                 .group_by(firings.c.state))
        with self._read("counting firings") as connection:
            return {str(state): int(count) for state, count in connection.execute(query)}

    def known(self, schedule_id: str, digests: Sequence[str]) -> set[str]:
        """Which of these contents the schedule has seen."""
        query = sa.select(fired_files.c.sha256).where(fired_files.c.schedule == schedule_id,
                                                      fired_files.c.sha256.in_(digests))
        with self._read("looking files up") as connection:
            return set(connection.execute(query).scalars())

    # -- who looks, and what time it is --------------------------------------------------------------------------------

    def lease(self, holder: str, for_s: float) -> bool:
        """Whether ``holder`` is who sees to the schedules for the next ``for_s`` seconds."""
        with self._read("reading a lease") as connection:
            at = self._steady(connection)
            row = connection.execute(sa.select(leases).where(leases.c.name == _LEASE)).one_or_none()
        free = row is None or not at < row.until <= at + 2 * for_s  # beyond: of an earlier boot
        if row is not None and not free and (row.holder != holder or row.until > at + for_s / 2):
            return bool(row.holder == holder)
        with self._write("taking a lease") as connection:
            at = self._steady(connection)
            mine = {"holder": holder, "until": at + for_s}
            if row is None:
                self._new(connection, leases, {"name": _LEASE, **mine})
            else:
                still = sa.and_(leases.c.name == _LEASE, leases.c.holder == row.holder, leases.c.until == row.until)
                connection.execute(sa.update(leases).where(still).values(mine))
            held = sa.select(leases.c.holder).where(leases.c.name == _LEASE)
            return connection.execute(held).scalar() == holder

    def release(self, holder: str) -> None:
        """Let another worker look at once."""
        with self._write("giving up a lease") as connection:
            connection.execute(sa.delete(leases).where(leases.c.name == _LEASE, leases.c.holder == holder))

    def now(self) -> datetime:
        """What time it is, for all workers."""
        if not self._server:
            return now()
        with self._read("reading the clock") as connection:
            at: datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        return at.astimezone(UTC)

    def _steady(self, connection: sa.Connection) -> float:
        if self._server:
            return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _there(self, connection: sa.Connection, schedule_id: str) -> bool:
        """Whether the schedule exists; it is this transaction's until the end."""
        query = sa.select(schedules.c.id).where(schedules.c.id == schedule_id).with_for_update()
        return connection.execute(query).scalar() is not None

    def _new(self, connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
        """Insert a row unless it is there."""
        insert = (postgresql.insert if self._server else sqlite.insert)(table)
        made = connection.execute(insert.values(**row).on_conflict_do_nothing(),
                                  execution_options={"preserve_rowcount": True})
        return made.rowcount == 1

    def _insert(self, connection: sa.Connection, schedule: Schedule, firing: Firing) -> bool:
        return self._new(connection, firings, rows.firing_row(schedule, firing))

    def _keep(
        self, connection: sa.Connection, schedule: Schedule, due: datetime | None, files: Sequence[Trace]
    ) -> set[str]:
        """Remember what files hold; the digests of contents that are new."""
        return {trace.sha256 for trace in files if self._new(connection, fired_files, {
            "schedule": schedule.id, "sha256": trace.sha256, "project": schedule.project,
            "path": json.dumps(trace.path), "due": stamp(due) if due else None,
        })}
