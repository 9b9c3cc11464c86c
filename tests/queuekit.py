"""Shared runs for tests of the queue: submitted, claimed, and their workers silenced."""

from __future__ import annotations

import sqlalchemy as sa

from woodshed.model import Agent, Attempt, Run, RunSpec
from woodshed.model.event import now
from woodshed.store import Store, attempt_id, new_run_id
from woodshed.store.queue import Lane, Submission
from woodshed.store.tables import workers


def submit(store: Store, count: int = 3, **fields: object) -> str:
    """A shared run of so many attempts; its id."""
    run_id, agent = new_run_id(), Agent(name="oracle", harness="oracle")
    project = str(fields.get("project", "default"))
    spec = RunSpec(tasks=("/tasks/a",), agents=(agent,), attempts=count)
    planned = [
        Attempt(id=attempt_id(run_id, n), run=run_id, project=project, task="a", agent="oracle", index=n - 1, seed=n)
        for n in range(1, count + 1)
    ]
    store.create_run(Run(id=run_id, spec=spec, project=project, created_at=now()), planned)
    endpoint = str(fields.pop("endpoint", ""))
    submission = Submission.model_validate({"run": run_id, **fields})
    return store.queue.submit(submission, planned, {"oracle": endpoint})


def claimed(store: Store, worker: str, wanted: int = 100, lane: Lane = Lane.MAIN) -> list[str]:
    return [attempt.id for attempt in store.queue.claim(worker, wanted, lane)]


def silence(store: Store, worker: str) -> None:
    """As if the worker had not beaten for a minute."""
    with store._engine.begin() as connection:
        connection.execute(sa.update(workers).where(workers.c.executor == worker).values(beat=workers.c.beat - 60))
