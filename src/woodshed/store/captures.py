"""Captures: how many calls of a run gave which level of tokens, and how many cannot be trained on.

Counted where they are written: ``capture_level``, ``flaws`` and ``drift`` stand at the beginning of an event's data,
before anything that a model said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

import sqlalchemy as sa

from woodshed.model import EventKind
from woodshed.model.drift import Drift
from woodshed.model.rollout import WORST
from woodshed.store.tables import attempts, events

Opened = Callable[[str], AbstractContextManager[sa.Connection]]
_BEGINNING = '{"call":"m_____","capture_level":"'
_INHERITED = '%,"inherited":true}'
FLAWED = "flawed"
DRIFTS = {f"drift:{drift.value}": drift.value for drift in Drift}
"""Under which names it is counted how prompts went on."""


class Captures:
    """Of one database. Made by :attr:`Store.captures`; raises StoreFault as the store does."""

    def __init__(self, read: Opened) -> None:
        self._read = read

    def of(self, run_id: str, *, lasting: Collection[str] = ()) -> dict[str, dict[str, int]]:
        """Calls by level, those that are flawed under ``flawed``, and by :data:`DRIFTS`, of each attempt that has any.

        Its own, of its newest execution; of all where its agent is ``lasting``, as each goes on with the one before.
        """
        kinds = {level.value: f'{_BEGINNING}{level.value}"%' for level in WORST}
        kinds[FLAWED] = f'{_BEGINNING}text","flaws":[%'
        either = {name: sa.or_(*(events.c.data.like(f'{_BEGINNING}{level.value}","drift":"{drift}"%')
                                 for level in WORST[:-1])) for name, drift in DRIFTS.items()}
        found = {name: events.c.data.like(like) for name, like in kinds.items()} | either
        counts = [sa.func.sum(sa.case((one, 1), else_=0)) for one in found.values()]
        counting = sa.and_(sa.or_(events.c.execution == attempts.c.executions, attempts.c.agent.in_(lasting)),
                           events.c.data.not_like(_INHERITED))
        query = (
            sa.select(attempts.c.id, *counts).join(events, events.c.attempt == attempts.c.id)
            .where(attempts.c.run == run_id, events.c.kind == EventKind.MODEL_RESULT.value, counting)
            .group_by(attempts.c.id)
        )
        with self._read("counting captured calls") as connection:
            return {row[0]: {name: int(count) for name, count in zip(found, row[1:], strict=True) if count}
                    for row in connection.execute(query)}
