"""Groups: all attempts of a task by an agent in a run, complete together, and handed to consumers whole.

Training by group-relative advantages wants every attempt of a task at once. A group's row counts what is open; the
transaction that writes the result of its last attempt also gives it its ``place``: 1, 2, 3 … in the order of
completion within the run. Consumers take complete groups in that order, each by one of them: a take is a lease, an
acknowledgement ends it for good, and a lease that has run out gives the group to whoever takes next. Each delivery has
a number, so that who comes too late acknowledges nothing of another's.

Leases are told by the clock of :mod:`woodshed.store.clock`, which nobody sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from woodshed.model import Attempt, Record
from woodshed.model.event import now
from woodshed.store.clock import SKEW_S, seconds
from woodshed.store.tables import attempt_groups as groups
from woodshed.store.tables import attempts
from woodshed.store.text import stamp

Writing = Callable[[str], AbstractContextManager[sa.Connection]]
Key = tuple[str, str, str]
"""Run, task, agent."""


class GroupState(StrEnum):
    """PARTIAL has open attempts. COMPLETE may be taken, TAKEN is leased to a consumer, ACKED is done for good."""

    PARTIAL = "partial"
    COMPLETE = "complete"
    TAKEN = "taken"
    ACKED = "acked"


class Group(Record):
    """One group. ``place`` is None until it is complete; ``delivery`` counts how often it was taken."""

    run: str
    project: str
    task: str
    agent: str
    total: int
    open: int
    state: GroupState
    place: int | None = None
    completed_at: datetime | None = None
    consumer: str | None = None
    delivery: int = 0


class Groups:
    """See the module. Every method is synchronous, short and one transaction; it raises StoreFault like the store."""

    def __init__(self, engine: sa.Engine, writing: Writing, reading: Writing) -> None:
        self._write, self._read = writing, reading
        self._server = engine.dialect.name == "postgresql"

    def of(self, run_id: str) -> list[Group]:
        """Every group of the run: the complete ones in order of completion, then the others by task and agent."""
        query = sa.select(groups).where(groups.c.run == run_id)
        with self._read("reading groups") as connection:
            rows, at = connection.execute(query).mappings().all(), seconds(connection)
        found = [group(row, at) for row in rows]
        return sorted(found, key=lambda one: (one.place is None, one.place or 0, one.task, one.agent))

    def take(self, run_id: str, consumer: str, n: int = 1, *, lease_s: float) -> list[Group]:
        """At most ``n`` complete groups, the first ones to complete, leased to ``consumer``: nobody else gets them

        before ``lease_s`` have passed. Fewer, or none, where no more are complete and free.
        """
        with self._write("taking groups") as connection:
            at = seconds(connection)
            query = sa.select(groups).where(
                groups.c.run == run_id, groups.c.place.is_not(None), groups.c.acked_at.is_(None), free(at)
            ).order_by(groups.c.place).limit(n)
            if self._server:
                query = query.with_for_update(skip_locked=True)
            rows = [dict(row) for row in connection.execute(query).mappings()]
            for row in rows:
                row |= leased(connection, row, consumer, at, lease_s)
            return [group(row, at) for row in rows]

    def ack(self, run_id: str, place: int, delivery: int) -> bool:
        """The group is consumed: nobody gets it again. Idempotent.

        False where it was taken anew since, after this delivery's lease had run out: then it is another's.
        """
        with self._write("acknowledging a group") as connection:
            acked = sa.func.coalesce(groups.c.acked_at, stamp(now()))
            return self._held(connection, run_id, place, delivery, acked_at=acked)

    def ack_all(self, deliveries: Sequence[tuple[str, int, int]]) -> list[bool]:
        """As :meth:`ack` of each (run, place, delivery), all in one transaction, so that a crash leaves none half done.
        """
        with self._write("acknowledging groups") as connection:
            acked = sa.func.coalesce(groups.c.acked_at, stamp(now()))
            done = {one: self._held(connection, *one, acked_at=acked) for one in sorted(set(deliveries))}
        return [done[one] for one in deliveries]

    def give_back(self, run_id: str, place: int, delivery: int) -> bool:
        """The group is free again at once. False where it is not this delivery's any more, or acknowledged."""
        with self._write("giving a group back") as connection:
            return self._held(connection, run_id, place, delivery, acked=False, leased_at=None, lease_s=None)

    def renew(self, run_id: str, place: int, delivery: int, *, lease_s: float) -> bool:
        """The lease runs for ``lease_s`` from now on. False as of :meth:`give_back`."""
        with self._write("renewing a lease") as connection:
            return self._held(connection, run_id, place, delivery, acked=False, leased_at=seconds(connection),
                              lease_s=lease_s)

    def left(self, run_id: str) -> tuple[int, int]:
        """How many groups are not complete, and how many are complete and not acknowledged."""
        partial = sa.case((groups.c.place.is_(None), 1), else_=0)
        waiting = sa.case((sa.and_(groups.c.place.is_not(None), groups.c.acked_at.is_(None)), 1), else_=0)
        sums = [sa.func.coalesce(sa.func.sum(what), 0) for what in (partial, waiting)]
        with self._read("reading groups") as connection:
            incomplete, unacked = connection.execute(sa.select(*sums).where(groups.c.run == run_id)).one()
        return int(incomplete), int(unacked)

    def _held(
        self, connection: sa.Connection, run_id: str, place: int, delivery: int, *, acked: bool = True, **values: Any
    ) -> bool:
        change = sa.update(groups).where(_is(run_id, place), groups.c.delivery == delivery)
        if not acked:
            change = change.where(groups.c.acked_at.is_(None))
        return connection.execute(change.values(values)).rowcount == 1


def planned(connection: sa.Connection, further: Iterable[Attempt]) -> None:
    """Attempts were written with a run: their groups have as many open ones more.

    A complete group that gets more is partial again, and keeps no place; nobody has acknowledged it, or it stays so.
    """
    more = Counter((one.run, one.project, one.task, one.agent) for one in further)
    if not more:
        return
    runs = {run for run, *_ in more}
    known = {tuple(row) for row in connection.execute(
        sa.select(groups.c.run, groups.c.task, groups.c.agent).where(groups.c.run.in_(runs)))}
    fresh = []
    for (run, project, task, agent), count in more.items():
        if (run, task, agent) in known:
            connection.execute(sa.update(groups).where(_key(run, task, agent)).values(
                total=groups.c.total + count, open=groups.c.open + count,
                place=sa.case((groups.c.acked_at.is_(None), None), else_=groups.c.place)))
        else:
            fresh.append({"run": run, "project": project, "task": task, "agent": agent, "total": count, "open": count,
                          "delivery": 0})
    if fresh:
        connection.execute(sa.insert(groups), fresh)


def counted(connection: sa.Connection, attempt_id: str) -> None:
    """An attempt has got its result in this transaction; where it was the last of its group, that is complete.

    Whoever decrements holds the row until it commits, so of two that finish at once the second sees zero. Places are
    given one after another: SQLite has one writer, PostgreSQL an advisory lock for each run.
    """
    connection.execute(_LESS, {"this": attempt_id})
    row = connection.execute(_OPEN, {"this": attempt_id}).one_or_none()
    if row is None or row.open > 0:
        return
    if connection.dialect.name == "postgresql":
        lock = sa.func.pg_advisory_xact_lock(_PLACE_LOCK, sa.func.hashtext(row.run))
        connection.execute(sa.select(lock))
    last = sa.select(sa.func.coalesce(sa.func.max(groups.c.place), 0)).where(groups.c.run == row.run)
    connection.execute(
        sa.update(groups).where(_key(row.run, row.task, row.agent), groups.c.place.is_(None))
        .values(place=connection.execute(last).scalar_one() + 1, completed_at=stamp(now()))
    )


_PLACE_LOCK = 0x7767  # "wg": the class of PostgreSQL's advisory locks under which a run's places are given

_THIS = {
    column.name: sa.select(column).where(attempts.c.id == sa.bindparam("this", type_=sa.String)).scalar_subquery()
    for column in (attempts.c.run, attempts.c.task, attempts.c.agent)
}
_OF_THIS = sa.and_(*(groups.c[name] == value for name, value in _THIS.items()))
_LESS = sa.update(groups).where(_OF_THIS).values(open=groups.c.open - 1)
_OPEN = sa.select(groups.c.run, groups.c.task, groups.c.agent, groups.c.open).where(_OF_THIS)


def _key(run: str, task: str, agent: str) -> sa.ColumnElement[bool]:
    return sa.and_(groups.c.run == run, groups.c.task == task, groups.c.agent == agent)


def leased(
    connection: sa.Connection, row: Mapping[str, Any], consumer: str, at: float, lease_s: float
) -> dict[str, Any]:
    """Lease the group of ``row`` to a consumer, as one delivery more; what has changed of the row."""
    change = {"consumer": consumer, "leased_at": at, "lease_s": lease_s, "delivery": row["delivery"] + 1}
    connection.execute(sa.update(groups).where(_is(row["run"], row["place"])).values(change))
    return change


def _is(run: str, place: int) -> sa.ColumnElement[bool]:
    return sa.and_(groups.c.run == run, groups.c.place == place)


def free(at: float) -> sa.ColumnElement[bool]:
    """Nobody's: never leased, run out, or leased before the machine last started."""
    return sa.or_(groups.c.leased_at.is_(None), groups.c.leased_at + groups.c.lease_s <= at,
                  groups.c.leased_at > at + SKEW_S)


def group(row: Mapping[Any, Any], at: float) -> Group:
    """A group as it stands at this time of the clock."""
    loose = row["leased_at"] is None or row["leased_at"] + row["lease_s"] <= at or row["leased_at"] > at + SKEW_S
    state = GroupState.PARTIAL if row["place"] is None else GroupState.ACKED if row["acked_at"] else \
        GroupState.COMPLETE if loose else GroupState.TAKEN
    shown = {name: row[name] for name in Group.model_fields if name != "state"}
    if state is GroupState.COMPLETE:
        shown["consumer"] = None
    return Group(state=state, **shown)
