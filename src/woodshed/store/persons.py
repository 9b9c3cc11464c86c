"""Persons: what the calls of models took that play a task's person, of whole runs; nothing of it is the agent's."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa

from woodshed.model import EventKind
from woodshed.store.tables import attempts, events

Opened = Callable[[str], AbstractContextManager[sa.Connection]]


@dataclass(frozen=True, slots=True)
class Spent:
    """Calls with an answer, the tokens that the endpoint reported for them, and the seconds that they took."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Persons:
    """Of one database. Made by :attr:`Store.persons`; raises StoreFault as the store does."""

    def __init__(self, read: Opened) -> None:
        self._read = read

    def spent(self, run_id: str) -> Spent:
        """In all executions of all attempts of a run: what was asked was spent, whatever became of it."""
        query = (sa.select(events.c.data).join(attempts, events.c.attempt == attempts.c.id)
                 .where(attempts.c.run == run_id, events.c.kind == EventKind.PERSON_RESULT.value))
        with self._read("adding up what persons took") as connection:
            answers = [json.loads(data) for data in connection.scalars(query)]
        used = [answer.get("usage") or {} for answer in answers]
        return Spent(len(answers), sum(one.get("prompt_tokens") or 0 for one in used),
                     sum(one.get("completion_tokens") or 0 for one in used),
                     round(sum(answer.get("seconds") or 0.0 for answer in answers), 3))
