"""A database that an older Woodshed has filled goes on: its rows are kept, and mean what they meant."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.model import AttemptState, Deadlines, Durability, RunState, Valid
from woodshed.model.event import now
from woodshed.store import ExecutionState, Store
from woodshed.store.opening import alembic_config
from woodshed.store.queue import SubmissionState
from woodshed.store.tables import HEAD
from woodshed.store.text import stamp

AT = "2026-11-01T10:00:00.000000+00:00"
SPEC = {"version": 1, "tasks": ["/t/a", "/t/b"], "agents": [{"name": "oracle", "harness": "oracle"}], "attempts": 1}
OUTCOME = {"verdict": {"kind": "valid", "rewards": {"total": 1.0}, "total": 1.0, "assurance": "canary"},
           "stop": "finished", "stages_s": {"act": 0.25}}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/older.db"
    found: str = request.getfixturevalue("postgresql_url")
    return found


def filled(url: str, revision: str) -> None:
    """The database as of ``revision``: a shared run with an attempt that is done, and one that waits."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), revision)
    tables = sa.MetaData()
    tables.reflect(engine)
    attempt = {"run": "r-old", "project": "default", "agent": "oracle", "index": 0}
    rows: list[tuple[str, dict[str, object]]] = [
        ("runs", {"id": "r-old", "project": "default", "spec": json.dumps(SPEC), "state": "running",
                  "created_at": AT}),
        ("attempts", {**attempt, "id": "r-old.1", "number": 1, "task": "a", "seed": "7", "state": "done",
                      "executions": 1, "outcome": json.dumps(OUTCOME), "started_at": AT, "finished_at": AT}),
        ("attempts", {**attempt, "id": "r-old.2", "number": 2, "task": "b", "seed": "8", "state": "pending",
                      "executions": 0}),
        ("executions", {"attempt": "r-old.1", "number": 1, "project": "default", "executor": "h-old", "state": "done",
                        "outcome": json.dumps(OUTCOME), "started_at": AT, "finished_at": AT}),
        ("events", {"attempt": "r-old.1", "execution": 1, "seq": 0, "project": "default", "version": 1, "kind": "note",
                    "at": AT, "data": '{"text":"kept"}'}),
        ("submissions", {"run": "r-old", "project": "default", "key": "k", "priority": 0, "state": "open",
                         "created_at": AT}),
        ("queued", {"attempt": "r-old.2", "run": "r-old", "project": "default", "number": 2, "endpoint": "",
                    "lane": "main", "deaths": 0}),
    ]
    with engine.begin() as connection:
        for table, row in rows:
            connection.execute(sa.insert(tables.tables[table]), row)
    engine.dispose()


def test_a_run_whose_time_runs_keeps_what_is_left_of_it(url: str, tmp_path: Path) -> None:
    """What the wall clock said of its end becomes as many seconds of the clock that nobody sets."""
    filled(url, "0014")
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE submissions SET run_s = 7200, ends_at = :end"),
                           {"end": stamp(now() + timedelta(hours=1))})
    engine.dispose()
    with Store(url, tmp_path) as store:
        found = store.queue.submission("r-old")
        assert found is not None
        assert found.timed_at is not None
        assert found.timed_until is not None
        assert 0 < found.timed_until - found.timed_at <= 3600
        assert store.queue.overdue() == []


def test_what_an_older_version_recorded_goes_on(url: str, tmp_path: Path) -> None:
    """Opened twice, the rows are there with what is new at its default; groups are told, and what waits is claimed."""
    filled(url, "0004")
    for _ in range(2):
        Store(url, tmp_path).close()
    with Store(url, tmp_path) as store:
        with store._engine.connect() as connection:
            assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all() == [HEAD]
        run = store.run("r-old")
        assert run.state is RunState.RUNNING
        assert run.spec.deadlines == Deadlines()
        assert [agent.durability for agent in run.spec.agents] == [Durability.COARSE]
        done, waiting = store.attempts("r-old")
        assert done.outcome is not None
        assert isinstance(done.outcome.verdict, Valid)
        assert [execution.state for execution in store.executions("r-old.1")] == [ExecutionState.DONE]
        assert [event.data for event in store.events("r-old.1")] == [{"text": "kept"}]
        assert [(group.task, group.place, group.open) for group in store.groups.of("r-old")] == [
            ("a", 1, 0), ("b", None, 1)]
        submission = store.queue.submission("r-old")
        assert submission is not None
        assert (submission.state, submission.pool, submission.run_s) == (SubmissionState.OPEN, "", None)
        store.queue.enlist("h-new", host="here", pid=1, slots=2)
        assert [attempt.id for attempt in store.queue.claim("h-new", 5)] == ["r-old.2"]
        assert store.begin_execution("r-old.2", "h-new", claimed=True) == 1
        assert store.attempt("r-old.2").state is AttemptState.RUNNING
        assert waiting.state is AttemptState.PENDING
