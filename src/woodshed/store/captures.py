"""Captures: how many calls of a run gave which level of tokens, and how many cannot be trained on.

Counted where they are written: ``capture_level`` and ``flaws`` stand at the beginning of an event's data, before
anything that a model said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

import sqlalchemy as sa

from woodshed.model import EventKind
from woodshed.model.rollout import WORST
from woodshed.store.tables import attempts, events

Opened = Callable[[str], AbstractContextManager[sa.Connection]]
_BEGINNING = '{"call":"m_____","capture_level":"'
_INHERITED = '%,"inherited":true}'
FLAWED = "flawed"


class Captures:
    """Of one database. Made by :attr:`Store.captures`; raises StoreFault as the store does."""

    def __init__(self, read: Opened) -> None:
        self._read = read

    def of(self, run_id: str, *, lasting: Collection[str] = ()) -> dict[str, dict[str, int]]:
        """Calls by level, and those that are flawed under ``flawed``, of each attempt that has any.

        Its own, of its newest execution; of all where its agent is ``lasting``, as each goes on with the one before.
        """
        kinds = {level.value: f'{_BEGINNING}{level.value}"%' for level in WORST}
        kinds[FLAWED] = f'{_BEGINNING}text","flaws":[%'
        counts = [sa.func.sum(sa.case((events.c.data.like(like), 1), else_=0)) for like in kinds.values()]
        counting = sa.and_(sa.or_(events.c.execution == attempts.c.executions, attempts.c.agent.in_(lasting)),
                           events.c.data.not_like(_INHERITED))
        query = (
            sa.select(attempts.c.id, *counts).join(events, events.c.attempt == attempts.c.id)
            .where(attempts.c.run == run_id, events.c.kind == EventKind.MODEL_RESULT.value, counting)
            .group_by(attempts.c.id)
        )
        with self._read("counting captured calls") as connection:
            return {row[0]: {name: int(count) for name, count in zip(kinds, row[1:], strict=True) if count}
                    for row in connection.execute(query)}
