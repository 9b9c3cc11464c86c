"""kill -9 at any moment, resume, and in the end every attempt has exactly one result."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.engine.durable import VERSION
from woodshed.model import AttemptState, EventKind, RunState, Valid
from woodshed.store import ExecutionState, Store

WORKER = Path(__file__).parent / "_worker.py"
ATTEMPTS = 30
KILLS = 6


def start(home: Path, *version: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(home), *version], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def kill_somewhere(home: Path, moments: random.Random) -> list[str]:
    """Let a worker go some steps (one time in four: only start) and a little further, then kill it. What it said."""
    worker, said = start(home), []
    assert worker.stdout is not None
    if moments.random() < 0.25:
        time.sleep(moments.uniform(0.1, 0.8))
    else:
        for _ in range(moments.randint(1, 9)):
            said.append(worker.stdout.readline())
        time.sleep(moments.uniform(0, 0.04))
    worker.send_signal(signal.SIGKILL)
    rest, _ = worker.communicate()
    return [line for line in [*said, *rest.splitlines(keepends=True)] if line.endswith("\n")]


def test_every_attempt_is_counted_once_whatever_is_killed(tmp_path: Path) -> None:
    """Thirty attempts, a worker killed at seeded random moments and resumed: thirty results, nothing counted twice."""
    seed = int(os.environ.get("WOODSHED_TEST_SEED") or random.randrange(10**9))
    print("WOODSHED_TEST_SEED", seed)  # pytest shows it when the test fails
    moments = random.Random(seed)
    (tmp_path / "out").mkdir()
    told: list[str] = []
    for _ in range(KILLS):
        told += kill_somewhere(tmp_path, moments)
    last = start(tmp_path)
    rest, errors = last.communicate()
    assert (last.returncode, errors) == (0, "")
    told += rest.splitlines(keepends=True)
    with Store(None, tmp_path) as store:
        run = store.run("last")
        assert len(store.runs()) == 1
        assert run.state is RunState.FINISHED
        results = store.attempts(run.id)
        assert len(results) == ATTEMPTS
        assert all(attempt.state is AttemptState.DONE for attempt in results)
        states: Counter[ExecutionState] = Counter()
        for attempt in results:
            executions = store.executions(attempt.id)
            states.update(execution.state for execution in executions)
            assert [e.number for e in executions] == list(range(1, attempt.executions + 1))
            done = [e for e in executions if e.state is ExecutionState.DONE]
            assert [e.outcome for e in done] == [attempt.outcome]
            assert attempt.outcome is not None
            assert isinstance(attempt.outcome.verdict, Valid)
            assert attempt.outcome.verdict.detail == str(done[0].number)
            assert (tmp_path / "out" / f"{attempt.id}.{done[0].number}").read_text() == "done\n"
            kinds = [event.kind for event in store.events(attempt.id, done[0].number)]
            assert kinds == [EventKind.TOOL_CALL, EventKind.TOOL_RESULT]
    assert states[ExecutionState.DONE] == ATTEMPTS
    assert states[ExecutionState.OPEN] == 0
    assert states[ExecutionState.LOST] > 0, "no kill hit a running attempt; the test proved nothing"
    counted = Counter(line.split()[1] for line in told if line.startswith("counted"))
    assert max(counted.values()) == 1, "an attempt was reported as counted twice"
    assert list((tmp_path / "locks").glob("*.lock")) == []
    connection = sqlite3.connect(tmp_path / "dbos.db")
    left = connection.execute("SELECT count(*) FROM workflow_status WHERE status = 'PENDING'").fetchone()
    connection.close()
    assert left == (0,)


def test_a_run_is_not_resumed_while_its_worker_lives(tmp_path: Path) -> None:
    """A second worker on the same run is refused by name and changes nothing; frozen counts as living."""
    (tmp_path / "out").mkdir()
    first = start(tmp_path)
    try:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("begun")
        first.send_signal(signal.SIGSTOP)
        second = start(tmp_path)
        _, errors = second.communicate()
        assert second.returncode != 0
        assert f"still being worked on by process {first.pid}" in errors
        first.send_signal(signal.SIGCONT)
        rest, errors = first.communicate()
        assert (first.returncode, errors) == (0, "")
        assert sum(line.startswith("counted") for line in rest.splitlines()) == ATTEMPTS
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_run_that_another_version_began_is_resumed(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed under one version and finished under another: every result once, and no row of the older one waits."""
    url = request.getfixturevalue("postgresql_url") if database == "postgresql" else None
    if url is not None:
        monkeypatch.setenv("WOODSHED_DATABASE_URL", url)
    (tmp_path / "out").mkdir()
    older = start(tmp_path, "woodshed-0")
    assert older.stdout is not None
    while "counted" not in older.stdout.readline():
        assert older.poll() is None
    older.send_signal(signal.SIGKILL)
    older.communicate()
    assert ("woodshed-0", "PENDING") in workflows(tmp_path, url), "no workflow was cut off; the test proved nothing"
    newer = start(tmp_path)
    _, errors = newer.communicate()
    assert (newer.returncode, errors) == (0, "")
    with Store(url, tmp_path) as store:
        run = store.run("last")
        assert run.state is RunState.FINISHED
        for attempt in store.attempts(run.id):
            done = [e.outcome for e in store.executions(attempt.id) if e.state is ExecutionState.DONE]
            assert done == [attempt.outcome]
    assert {version for version, _ in workflows(tmp_path, url)} == {"woodshed-0", VERSION}
    assert {state for _, state in workflows(tmp_path, url)} == {"SUCCESS", "CANCELLED"}


def workflows(home: Path, url: str | None) -> set[tuple[str, str]]:
    """Application versions and states of the durable engine's rows."""
    where = f"sqlite:///{home / 'dbos.db'}" if url is None else url.replace("postgresql:", "postgresql+psycopg:")
    table = "workflow_status" if url is None else "dbos.workflow_status"
    engine = sa.create_engine(where)
    with engine.connect() as connection:
        found = connection.execute(sa.text(f"SELECT application_version, status FROM {table}"))
        rows = {(str(version), str(state)) for version, state in found}
    engine.dispose()
    return rows
