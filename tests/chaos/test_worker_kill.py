"""Workers that are killed, frozen or poisoned: every attempt counts once, and neighbours come to no harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import plugged
from kit import EXAMPLES, leftovers, woodshed
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.errors import Cause
from woodshed.model import AttemptState, Invalid, RunState, Valid
from woodshed.services.home import Home, opened
from woodshed.store import ExecutionState

TASK = EXAMPLES / "first-steps" / "write-file"


@dataclass
class Works:
    """A home, an environment with a third party's agents, and the workers that were started in it."""

    home: Home
    env: dict[str, str]
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, *agents: str, attempts: int) -> str:
        """A run left to workers; its id."""
        asked = [word for agent in agents for word in ("-a", agent)]
        done = woodshed("run", TASK, *asked, "-n", str(attempts), "--detach", "--json", home=self.home.path,
                        env=self.env)
        assert done.returncode == 0, done.stderr
        name: str = json.loads(done.stdout)["run"]
        return name

    def start(self, slots: int = 2, home: Path | None = None) -> subprocess.Popen[str]:
        """One more worker, in the home or another."""
        command = [sys.executable, "-m", "woodshed", "worker", "--slots", str(slots), "--until-empty", "--json"]
        env = {**os.environ, **self.env, "WOODSHED_HOME": str(home or self.home.path)}
        self.workers.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        return self.workers[-1]

    def executions(self, run: str) -> list[Any]:
        """Of all attempts of the run, so far."""
        store = self.home.store
        return [one for attempt in store.attempts(run) for one in store.executions(attempt.id)]

    def until(self, met: Callable[[], bool]) -> None:
        """Wait; ten minutes guard the suite against a hang."""
        deadline = time.monotonic() + 600
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def gapless(self, run: str) -> None:
        """The events of every execution are numbered from 0, without gaps."""
        for one in self.executions(run):
            numbers = [event.seq for event in self.home.store.events(one.attempt, one.number)]
            assert numbers == list(range(len(numbers)))


def ended(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """What the worker says of itself in the end."""
    told, _ = worker.communicate(timeout=600)
    return dict(json.loads(told.splitlines()[0]))


@pytest.fixture(params=["sqlite", "postgresql"])
def works(
    request: pytest.FixtureRequest, new_home: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Works]:
    """On either database."""
    if request.param == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    with opened(new_home()) as home:
        works = Works(home, plugged.installed(tmp_path / "site"))
        try:
            yield works
        finally:
            for worker in works.workers:
                if worker.poll() is None:
                    worker.kill()
                worker.communicate()


@pytest.mark.slow
def test_one_of_two_workers_is_killed(works: Works) -> None:
    """SIGKILL in the middle: the other finishes the run, each attempt counted once, what was lost stays as evidence."""
    run = works.run("sleeps:1", "oracle", attempts=4)
    first, second = works.start(), works.start()
    works.until(lambda: {one.state for one in works.executions(run)} >= {ExecutionState.OPEN, ExecutionState.DONE})
    open_by = next(one.executor for one in works.executions(run) if one.state is ExecutionState.OPEN)
    pid = next(row.pid for row in works.home.store.queue.workers() if row.executor == open_by)
    victim = first if first.pid == pid else second
    victim.kill()
    told = ended(second if victim is first else first)
    assert told["ended"] == "empty"
    store = works.home.store
    attempts = store.attempts(run)
    assert store.run(run).state is RunState.FINISHED
    assert all(a.outcome is not None and isinstance(a.outcome.verdict, Valid) for a in attempts)
    states = [one.state for one in works.executions(run)]
    assert states.count(ExecutionState.DONE) == len(attempts) == 8
    assert set(states) <= {ExecutionState.DONE, ExecutionState.LOST}
    works.gapless(run)
    assert leftovers(works.home.path) == []


@pytest.mark.slow
@pytest.mark.parametrize("works", ["postgresql"], indirect=True)
def test_another_machine_takes_over(works: Works, new_home: Callable[[], Path]) -> None:
    """With a home of its own and the blobs shared, as on another machine, a worker notices the silence and goes on."""
    run = works.run("sleeps:1", "oracle", attempts=2)
    theirs = new_home()
    (theirs / "blobs").symlink_to(works.home.path / "blobs")
    victim = works.start(1)
    works.until(lambda: bool(works.executions(run)))
    victim.kill()
    told = ended(works.start(2, theirs))
    assert len(told["reaped"]) == 1
    attempts = works.home.store.attempts(run)
    assert works.home.store.run(run).state is RunState.FINISHED
    assert all(a.outcome is not None and isinstance(a.outcome.verdict, Valid) for a in attempts)
    solved = next(a for a in attempts if a.agent == "oracle")
    shown = woodshed("trace", solved.id, "--json", home=works.home.path, env=works.env)
    assert json.loads(shown.stdout)["diff"], "the changes were captured elsewhere, and are shown here"
    works.gapless(run)
    assert leftovers(theirs) == []


@pytest.mark.slow
def test_a_frozen_worker_finds_itself_taken_for_dead(works: Works) -> None:
    """SIGSTOP until others have its attempt, then SIGCONT: it stops by itself, and its late word is never counted."""
    run = works.run("sleeps:3", attempts=1)
    zombie = works.start(1)
    works.until(lambda: bool(works.executions(run)))
    zombie.send_signal(signal.SIGSTOP)
    other = works.start(1)
    works.until(lambda: works.home.store.run(run).state is RunState.FINISHED)
    zombie.send_signal(signal.SIGCONT)
    told, _ = zombie.communicate(timeout=600)
    assert json.loads(told.splitlines()[0])["ended"] == "reaped"
    assert json.loads(told.splitlines()[0])["done"] == 0
    assert zombie.returncode == 1
    assert ended(other)["done"] == 1
    [attempt] = works.home.store.attempts(run)
    old, new = works.executions(run)
    assert (attempt.executions, new.state) == (2, ExecutionState.DONE)
    assert old.state in (ExecutionState.LOST, ExecutionState.FENCED, ExecutionState.SET_ASIDE)
    assert attempt.outcome == new.outcome
    works.gapless(run)
    assert leftovers(works.home.path) == []


@pytest.mark.slow
def test_poison_takes_no_neighbour_with_it(works: Works) -> None:
    """An attempt that kills whoever runs it is invalid after three deaths, the last alone; all others are finished."""
    run = works.run("kills", "sleeps:1", "oracle", attempts=1)
    for _ in range(2):
        worker = works.start(3)
        worker.communicate(timeout=600)
        assert worker.returncode == -signal.SIGKILL
    assert ended(works.start(3))["ended"] == "empty"
    store = works.home.store
    assert store.run(run).state is RunState.FINISHED
    poison, *others = store.attempts(run)
    assert poison.state is AttemptState.DONE
    assert poison.outcome is not None
    assert isinstance(poison.outcome.verdict, Invalid)
    assert poison.outcome.verdict.cause is Cause.ENVIRONMENT
    assert "at 3 deaths of its worker" in poison.outcome.verdict.detail
    assert all(a.outcome is not None and isinstance(a.outcome.verdict, Valid) for a in others)
    works.gapless(run)
    assert leftovers(works.home.path) == []
