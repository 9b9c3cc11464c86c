"""Limits: how many attempts of a project, or that load an endpoint, are at work at once, and begin in a minute.

A scope is ``project:NAME`` or ``endpoint:URL``. A rate is a bucket of tokens that fills by the second and never holds
more than one second's worth, or one. An endpoint that asked for patience is held: nothing of it begins until then. All
of it is read and written where claims are made, one at a time. Readings of the clock that are of an earlier boot of the
machine hold nothing: the bucket is full, the patience over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from woodshed.model import Record
from woodshed.store import clock
from woodshed.store.sharing import Waiting
from woodshed.store.tables import limits, queued

Writing = Callable[[str], AbstractContextManager[sa.Connection]]
CLAIM_LOCK = 0x77636C6D  # "wclm": the key of PostgreSQL's advisory lock around claims and what they heed


class Limit(Record):
    """What bounds a scope, how many of it are at work, and for how many more seconds it is held."""

    scope: str
    slots: int | None = None
    per_minute: float | None = None
    busy: int = 0
    held_s: float | None = None


class Limits:
    """See the module. Every method is synchronous, short and one transaction; it raises StoreFault like the store."""

    def __init__(self, writing: Writing, reading: Writing) -> None:
        self._write, self._read = writing, reading

    def set(self, scope: str, *, slots: int | None = None, per_minute: float | None = None) -> None:
        """Bound a scope: so many at once, so many begun a minute. Neither lifts its bounds; a hold stays."""
        with self._write("setting a limit") as connection:
            alone(connection)
            bounds = {"slots": slots, "per_minute": per_minute, "tokens": 1.0 if per_minute else 0.0,
                      "filled": clock.seconds(connection)}
            if not connection.execute(sa.update(limits).where(limits.c.scope == scope).values(bounds)).rowcount:
                connection.execute(sa.insert(limits), {"scope": scope, **bounds})

    def hold(self, scope: str, seconds: float) -> None:
        """Nothing of ``scope`` begins for so long: an endpoint asked for patience (Retry-After). Keeps its bounds.

        A hold that lasts longer stays as it is.
        """
        with self._write("holding a queue") as connection:
            alone(connection)
            at = clock.seconds(connection)
            held = {"held_at": at, "held_until": at + seconds}
            there = connection.execute(sa.select(limits).where(limits.c.scope == scope)).one_or_none()
            if there is None:
                connection.execute(sa.insert(limits), {"scope": scope, "tokens": 0.0, "filled": 0.0, **held})
            elif _held_s(there, at) < seconds:
                connection.execute(sa.update(limits).where(limits.c.scope == scope).values(held))

    def all(self) -> list[Limit]:
        """Every scope that is bounded or held now, by name."""
        with self._read("reading limits") as connection:
            rows = connection.execute(sa.select(limits).order_by(limits.c.scope)).all()
            busy, at = _busy(at_work(connection)), clock.seconds(connection)
        found = [Limit(scope=row.scope, slots=row.slots, per_minute=row.per_minute, busy=busy[row.scope],
                       held_s=round(_held_s(row, at), 1) or None)
                 for row in rows]
        return [one for one in found if (one.slots, one.per_minute, one.held_s) != (None, None, None)]


def alone(connection: sa.Connection) -> None:
    """Nobody else claims, or changes what claims heed, until the transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CLAIM_LOCK)))


def at_work(connection: sa.Connection) -> Sequence[Any]:
    """How many attempts are at work, a row for each run, project and endpoint."""
    return connection.execute(_AT_WORK).all()


def room(connection: sa.Connection, groups: Sequence[Waiting], running: Sequence[Any]) -> dict[str, int]:
    """How many more may begin, by scope; a scope without bounds is absent. ``running`` is what :func:`at_work` says."""
    busy, standing = _busy(running), connection.execute(_STANDING).all()
    found = {f"run:{group.run}": group.slots - busy[f"run:{group.run}"] for group in groups if group.slots is not None}
    at = clock.seconds(connection) if standing else 0.0
    for row in standing:
        bounds = [] if row.slots is None else [row.slots - busy[row.scope]]
        if row.per_minute is not None:
            bounds.append(int(_tokens(row, at)))
        if _held_s(row, at):
            bounds.append(0)
        if bounds:
            found[row.scope] = max(0, min(bounds))
    return found


def spend(
    connection: sa.Connection, chosen: Mapping[tuple[str, str], int], groups: Sequence[Waiting]
) -> None:
    """So many of each (run, endpoint) begin: the tokens of their scopes are used up."""
    rated = connection.execute(_RATED).all()
    if not rated or not chosen:
        return
    at, begun = clock.seconds(connection), Counter[str]()
    projects = {group.run: group.project for group in groups}
    for (run, endpoint), count in chosen.items():
        begun[f"project:{projects[run]}"] += count
        begun[f"endpoint:{endpoint}"] += count
    for row in rated:
        connection.execute(sa.update(limits).where(limits.c.scope == row.scope)
                           .values(tokens=_tokens(row, at) - begun[row.scope], filled=at))


def _busy(running: Sequence[Any]) -> Counter[str]:
    """Attempts at work, by scope."""
    busy: Counter[str] = Counter()
    for row in running:
        for scope in (f"run:{row.run}", f"project:{row.project}", f"endpoint:{row.endpoint}"):
            busy[scope] += row.many
    return busy


_STANDING = sa.select(limits)
_RATED = sa.select(limits).where(limits.c.per_minute.is_not(None))
_AT_WORK = (
    sa.select(queued.c.run, queued.c.project, queued.c.endpoint, sa.func.count().label("many"))
    .where(queued.c.worker.is_not(None)).group_by(queued.c.run, queued.c.project, queued.c.endpoint)
)


def _tokens(row: Any, at: float) -> float:
    """What a bucket holds now: it fills with the rate, and never beyond one second's worth, or one."""
    rate = float(row.per_minute) / 60.0
    most = max(1.0, rate)
    if _of_an_earlier_boot(row.filled, at):
        return most
    return float(min(most, row.tokens + max(0.0, at - row.filled) * rate))


def _held_s(row: Any, at: float) -> float:
    """For how many more seconds the scope is held."""
    if row.held_at is None or row.held_until is None or _of_an_earlier_boot(row.held_at, at):
        return 0.0
    return max(0.0, float(row.held_until - at))


def _of_an_earlier_boot(reading: float, at: float) -> bool:
    return reading > at + clock.SKEW_S
