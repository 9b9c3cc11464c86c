"""What must hold of a run that workers executed, whatever they suffered; and runs of attempts that do nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

import plugged
from kit import leftovers
from woodshed import plugins, settings
from woodshed.interfaces import Harness, Verifier
from woodshed.model import Agent, AttemptState, Deadlines, Invalid, RunState
from woodshed.model.retry import RetryRule, RetryRules
from woodshed.services import runs, shared
from woodshed.services.benching import void
from woodshed.services.home import Home
from woodshed.store import ExecutionState

TESTS = Path(__file__).parent
POINTS = {**void.POINTS, "woodshed.harnesses": {
    **void.POINTS["woodshed.harnesses"],
    "stumbles": "plugged:Stumbles", "kills": "plugged:Kills", "sleeps": "plugged:Sleeps"}}


def assert_sound(home: Home, run_id: str) -> None:
    """The run is finished; each attempt has one result, counted once; events have no gap; nothing is left anywhere."""
    store = home.store
    assert store.run(run_id).state is RunState.FINISHED
    for attempt in store.attempts(run_id):
        assert attempt.state is AttemptState.DONE, attempt
        executions = store.executions(attempt.id)
        assert [one.number for one in executions] == list(range(1, attempt.executions + 1))
        assert [one.outcome for one in executions if one.state is ExecutionState.DONE] == [attempt.outcome]
        assert not [one for one in executions if one.state is ExecutionState.OPEN]
        for one in executions:
            numbers = [event.seq for event in store.events(attempt.id, one.number)]
            assert numbers == list(range(len(numbers))), (attempt.id, one.number)
    groups = store.groups.of(run_id)
    assert [group.place for group in groups] == list(range(1, len(groups) + 1))
    assert store.queue.left(run_id) == 0
    assert not [worker for worker in store.queue.workers() if worker.state != "gone"]
    assert _pending(home) == 0
    assert leftovers(home.path) == []


def _pending(home: Home) -> int:
    """Rows of the durable engine that say something runs."""
    url = settings.setting("database_url")
    if url:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT count(*) FROM dbos.workflow_status WHERE status = 'PENDING'").fetchone()
            assert row is not None
            return int(row[0])
    with closing(sqlite3.connect(home.path / "dbos.db")) as database:
        count = database.execute("SELECT count(*) FROM workflow_status WHERE status = 'PENDING'").fetchone()[0]
        return int(count)


@dataclass
class Void:
    """A home whose workers know agents that do nothing; ``submit`` leaves them a run of those."""

    home: Home
    env: dict[str, str]
    task: Path
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    def submit(self, *agents: str, attempts: int = 3, run_s: float | None = None, **how: Any) -> str:
        """The run's id. What breaks is tried once more, at once; ``run_s`` is the run's deadline."""
        retry = RetryRules(retry=(RetryRule(max=1, backoff_s=0.0, jitter=0.0),), breaker=None)
        spec, tasks = runs.plan([self.task], [Agent(name=name, harness=name) for name in agents], attempts=attempts,
                                concurrency=2, seed=0, engine="void", verifier="void", retry=retry,
                                deadlines=Deadlines(run_s=run_s))
        return shared.submit(self.home, spec, tasks, **how).id

    def start(self, *prefix: str, slots: int = 2) -> subprocess.Popen[str]:
        """One more worker; ``prefix`` is run in the place of ``-m woodshed``."""
        words = ["worker", "--slots", str(slots), "--until-empty", "--json"]
        self.workers.append(subprocess.Popen(
            [sys.executable, *(prefix or ("-m", "woodshed")), *words], env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return self.workers[-1]

    def finish(self) -> dict[str, Any]:
        """What a worker says that ended when there was nothing left."""
        told, errors = self.start().communicate(timeout=600)
        assert told, errors
        return dict(json.loads(told.splitlines()[0]))

    def until(self, met: Callable[[], bool]) -> None:
        """Wait; ten minutes guard the suite against a hang."""
        deadline = time.monotonic() + 600
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def close(self) -> None:
        """End what still runs."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()


def made(home: Home, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Void:
    """The home, with the plug-ins known here and to its workers; the durable engine's tables are there already."""
    builtin, verifier = plugins.harness, plugins.verifier
    theirs: dict[str, Callable[[str | None], Harness]] = {
        "void": void.VoidAgent, "stumbles": plugged.Stumbles, "kills": plugged.Kills, "sleeps": plugged.Sleeps}

    def harness(name: str) -> Harness:
        kind, _, argument = name.partition(":")
        return theirs[kind](argument or None) if kind in theirs else builtin(name)

    def judge(name: str = "fresh") -> Verifier:
        return void.VoidVerifier() if name == "void" else verifier(name)

    monkeypatch.setattr(plugins, "harness", harness)
    monkeypatch.setattr(plugins, "verifier", judge)
    known = void.installed(scratch / "site", POINTS)["PYTHONPATH"]
    env = {**os.environ, "WOODSHED_HOME": str(home.path), "PYTHONPATH": os.pathsep.join((known, str(TESTS)))}
    return Void(home, env, void.task(scratch / "task"))


def broken(home: Home, run_id: str) -> list[str]:
    """What is said of the attempts that are invalid."""
    verdicts = [attempt.outcome.verdict for attempt in home.store.attempts(run_id) if attempt.outcome]
    return [verdict.detail for verdict in verdicts if isinstance(verdict, Invalid)]
