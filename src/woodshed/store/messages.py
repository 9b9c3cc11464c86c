"""Messages: what is sent to attempts, wherever they run. All SQL of it is here.

An attempt's box outlives whoever executes it. That a message was heard is an event of the execution that heard it; the
row's mark is written with that event, in one transaction. A mark of an earlier execution counts for nothing: one that
goes on with it says which messages came along (:meth:`Messages.carry`), one that begins anew hears them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from woodshed.errors import UsageError
from woodshed.model import AttemptState, EventKind
from woodshed.model.event import now
from woodshed.model.sent import MessageKind, SentMessage
from woodshed.store import rows
from woodshed.store.tables import attempts, messages
from woodshed.store.text import dump_data, stamp

Opened = Callable[[str], AbstractContextManager[sa.Connection]]

_FEEDBACK = EventKind.FEEDBACK.value
OPEN = sa.and_(attempts.c.id == messages.c.attempt, attempts.c.state != AttemptState.DONE.value,
               sa.or_(messages.c.execution.is_(None), messages.c.execution < attempts.c.executions))
"""A message, joined to its attempt, that the attempt has yet to hear."""


class Messages:
    """The messages of one database. Made by :attr:`Store.messages`; raises StoreFault as the store does."""

    def __init__(self, engine: sa.Engine, write: Opened, read: Opened) -> None:
        self._write, self._read = write, read
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert

    def send(
        self, to: Sequence[str], kind: MessageKind, data: Mapping[str, Any], key: str | None = None
    ) -> list[SentMessage]:
        """Put a message into the box of each of these attempts that is not over, together; those that it has.

        With a ``key`` that an attempt was sent before, its message is the earlier one, and nothing is added to its box.
        Raises UsageError where the key was used for another message, and where all attempts are over.
        """
        text, at = dump_data(data), stamp(now())
        with self._write("sending a message") as connection:
            known = {} if key is None else {
                row["attempt"]: row for row in connection.execute(sa.select(messages).where(
                    messages.c.attempt.in_(to), messages.c.key == key)).mappings()}
            if any((row["kind"], row["data"]) != (kind.value, text) for row in known.values()):
                raise UsageError(f"the key '{key}' was given to another message", field="key",
                                 remedy="Take another key.")
            found = connection.execute(
                sa.select(attempts.c.id, attempts.c.run, attempts.c.project).order_by(attempts.c.number)
                .where(attempts.c.id.in_(to), attempts.c.state != AttemptState.DONE.value)).all()
            for row in found:
                if row.id not in known:
                    self._put(connection, {"attempt": row.id, "run": row.run, "project": row.project, "key": key,
                                           "kind": kind.value, "data": text, "sent_at": at}, known)
        if not known:
            raise UsageError(f"{to[0] if len(to) == 1 else 'every attempt'} is over, and hears nothing any more",
                             field="attempt", remedy="'woodshed show' tells how attempts stand.")
        return sorted((_record(row) for row in known.values()), key=lambda message: message.number)

    def _put(self, connection: sa.Connection, row: dict[str, Any], known: dict[str, Any]) -> None:
        put = self._insert(messages).values(**row).on_conflict_do_nothing().returning(messages)
        made = connection.execute(put).mappings().one_or_none()
        if made is None:  # another sender with this key was faster
            made = connection.execute(sa.select(messages).where(
                messages.c.attempt == row["attempt"], messages.c.key == row["key"])).mappings().one()
        known[row["attempt"]] = made

    def of(self, attempt_id: str) -> list[SentMessage]:
        """All that was ever sent to an attempt, oldest first."""
        query = sa.select(messages).where(messages.c.attempt == attempt_id).order_by(messages.c.number)
        with self._read("reading messages") as connection:
            return [_record(row) for row in connection.execute(query).mappings()]

    def unheard(self, attempt_id: str, execution: int, kind: MessageKind) -> list[SentMessage]:
        """What of a kind this execution of an attempt has yet to hear, oldest first."""
        asked = {"this": attempt_id, "which": execution, "kind": kind.value}
        with self._read("reading messages") as connection:
            found = connection.execute(_UNHEARD, asked).mappings().all()
        return [_record(row) for row in found]

    def waiting(self, run_id: str) -> list[str]:
        """The attempts of a run that have something to hear."""
        with self._read("looking for messages") as connection:
            return list(connection.execute(_WAITING, {"this": run_id}).scalars())

    def carry(self, attempt_id: str, numbers: Iterable[int], execution: int) -> None:
        """An execution that goes on with earlier ones has these in its conversation."""
        with self._write("recording messages") as connection:
            for number in numbers:
                _mark(connection, attempt_id, number, execution)


def heard(connection: sa.Connection, facts: Iterable[Mapping[str, Any]]) -> None:
    """Mark the messages that these rows of events tell of."""
    for row in facts:
        if row["kind"] == _FEEDBACK:
            number = json.loads(row["data"]).get("message")
            if isinstance(number, int):
                _mark(connection, row["attempt"], number, row["execution"])


def _mark(connection: sa.Connection, attempt_id: str, number: int, execution: int) -> None:
    """Not where a newer execution has heard it: this one is only slow to end."""
    connection.execute(
        sa.update(messages).where(messages.c.number == number, messages.c.attempt == attempt_id)
        .where(sa.or_(messages.c.execution.is_(None), messages.c.execution < execution))
        .values(execution=execution, heard_at=sa.func.coalesce(messages.c.heard_at, stamp(now()))))


def _record(row: Mapping[Any, Any]) -> SentMessage:
    return rows.record(SentMessage, f"message {row['number']}", row, texts=("data",))


_THIS = sa.bindparam("this", type_=sa.String)
_WHICH = sa.bindparam("which", type_=sa.Integer)
_UNHEARD = (sa.select(messages).where(messages.c.attempt == _THIS).order_by(messages.c.number)
            .where(messages.c.kind == sa.bindparam("kind", type_=sa.String))
            .where(sa.or_(messages.c.execution.is_(None), messages.c.execution < _WHICH)))
_WAITING = sa.select(messages.c.attempt).distinct().join(attempts, OPEN).where(messages.c.run == _THIS)
