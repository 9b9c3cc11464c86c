"""The append of events: the one statement that writes them, and who may. Calls of models wait for it.

So its SQL is compiled once for each kind of database, and given to the driver as text: to go through the whole of
SQLAlchemy each time takes longer than SQLite does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from woodshed.model import Event
from woodshed.store import messages, rows
from woodshed.store.tables import attempts, events

_THIS = sa.bindparam("this", type_=sa.String)
_PROJECT = sa.select(attempts.c.project).where(attempts.c.id == _THIS).scalar_subquery()
_APPEND = sa.insert(events).values(project=_PROJECT)
_NEWEST = sa.select(attempts.c.executions).where(attempts.c.id == _THIS).with_for_update(read=True)
_NEWEST_OF = (
    sa.select(attempts.c.id, attempts.c.executions)
    .where(attempts.c.id.in_(sa.bindparam("these", type_=sa.String, expanding=True)))
    .order_by(attempts.c.id)  # locks in one order
    .with_for_update(read=True)
)
_COLUMNS = ("attempt", "execution", "seq", "version", "kind", "at", "data")


@dataclass(frozen=True, slots=True)
class _Text:
    """A statement as the driver takes it; by position where ``order`` names the parameters."""

    sql: str
    order: tuple[str, ...] | None

    def given(self, values: Mapping[str, Any]) -> Any:
        return values if self.order is None else tuple([values[name] for name in self.order])


@lru_cache(maxsize=8)
def _texts(dialect: sa.Dialect) -> tuple[_Text, _Text]:
    """Of the append and of the fence."""
    made = [statement.compile(dialect=dialect, column_keys=keys)
            for statement, keys in ((_APPEND, _COLUMNS), (_NEWEST, None))]
    append, newest = (_Text(str(one), None if one.positiontup is None else tuple(one.positiontup)) for one in made)
    return append, newest


def append(connection: sa.Connection, facts: Sequence[Event | Mapping[str, Any]]) -> None:
    """Add events, or rows that ``rows.event_row`` made of some; and mark the messages that they tell of."""
    if facts:
        told = [rows.event_row(fact) if isinstance(fact, Event) else fact for fact in facts]
        text, _ = _texts(connection.dialect)
        connection.exec_driver_sql(text.sql, [text.given({**row, "this": row["attempt"]}) for row in told])
        messages.heard(connection, told)


def newest(connection: sa.Connection, these: Collection[str]) -> dict[str, int]:
    """The number of each attempt's newest execution; none begins before this transaction ends."""
    if len(these) > 1:
        return {row[0]: row[1] for row in connection.execute(_NEWEST_OF, {"these": list(these)})}
    _, text = _texts(connection.dialect)
    found = {one: connection.exec_driver_sql(text.sql, text.given({"this": one})).scalar() for one in these}
    return {one: number for one, number in found.items() if number is not None}
