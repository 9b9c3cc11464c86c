"""The rollout service, its trainers and its workers are killed: nothing is lost, and nothing is consumed twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

import plugged
from kit import EXAMPLES, leftovers
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.model.delivery import Asked, Deliveries, Made
from woodshed.services.home import Home, opened
from woodshed.store import ExecutionState
from woodshed.trainers.client import Client

KEY = "the-key-of-this-very-test"
TRAINER = Path(__file__).parent / "_trainer.py"
TASKS = ["first-steps/write-file", "first-steps/fix-line"]


@dataclass
class Stage:
    """A home, and the processes that were started on it."""

    home: Home
    env: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    url: str = ""

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        env = {**os.environ, **self.env, "WOODSHED_HOME": str(self.home.path), "WOODSHED_SERVE_KEY": KEY}
        self.started.append(subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.PIPE, text=True,
                                             **more))
        return self.started[-1]

    def serve(self, concurrency: int = 2) -> subprocess.Popen[str]:
        """The service, when it listens."""
        server = self.start("-m", "woodshed", "serve", "--tasks", str(EXAMPLES), "--port", "0", "--json", "-c",
                            str(concurrency), "--agent", "sleeps:1", "--agent", "breaks",
                            "--endpoint", "policy=tiny@http://127.0.0.1:9/v1")
        assert server.stdout is not None
        self.url = json.loads(server.stdout.readline())["url"]
        return server

    @property
    def client(self) -> Client:
        return Client(self.url, KEY)

    def executions(self, made: Made) -> list[Any]:
        return [one for attempt in made.attempts for one in self.home.store.executions(attempt)]

    def until(self, met: Callable[[], bool]) -> None:
        """Wait; ten minutes guard the suite against a hang."""
        deadline = time.monotonic() + 600
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def counted_once(self, made: Made) -> None:
        """Each attempt has one result; whatever was cut off is evidence only, its events without a gap."""
        states = [one.state for one in self.executions(made)]
        assert states.count(ExecutionState.DONE) == len(made.attempts)
        assert set(states) <= {ExecutionState.DONE, ExecutionState.LOST, ExecutionState.SET_ASIDE}
        for one in self.executions(made):
            numbers = [event.seq for event in self.home.store.events(one.attempt, one.number)]
            assert numbers == list(range(len(numbers)))


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, new_home: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """On SQLite, or on the database that is asked for."""
    if getattr(request, "param", "sqlite") == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    with opened(new_home()) as home:
        stage = Stage(home, plugged.installed(tmp_path / "site"))
        try:
            yield stage
        finally:
            for process in stage.started:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()


both = pytest.mark.parametrize("stage", ["sqlite", "postgresql"], indirect=True)


def ended(process: subprocess.Popen[str]) -> None:
    """It ends by itself when it is asked to."""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    assert process.returncode == 0


def test_a_killed_service_goes_on(stage: Stage) -> None:
    """SIGKILL while an attempt runs: the next start finishes the request, and what one held before comes again to it.
    """
    server = stage.serve()
    asked = Asked(tasks=TASKS[:1], n=2, agent="sleeps:1", idempotency_key="one")
    quick = stage.client.ask(Asked(tasks=TASKS[1:], agent="nop"))
    [held] = stage.client.take("trainer", wait_s=300.0, requests=[quick.id]).groups
    made = stage.client.ask(asked)
    stage.until(lambda: any(one.state is ExecutionState.OPEN for one in stage.executions(made)))
    server.kill()
    server.communicate()
    server = stage.serve()
    assert stage.client.ask(asked).id == made.id
    [again] = stage.client.take("trainer", again=True, requests=[quick.id]).groups
    assert (again.group, again.deliveries) == (held.group, 2)
    [group] = stage.client.take("trainer", wait_s=300.0, requests=[made.id]).groups
    assert [one.valid for one in group.rollouts] == [True, True]
    stage.client.ack([again.delivery, group.delivery])
    assert stage.client.take("trainer", requests=[made.id, quick.id]) == Deliveries(groups=(), over=True)
    stage.counted_once(made)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(stage.client.take, "trainer", wait_s=300.0)
        stage.until(lambda: waited_for(stage))
        ended(server)
        assert waiting.result().groups == (), "who waits is told that nothing came, and no more"
    assert leftovers(stage.home.path) == []


def waited_for(stage: Stage) -> bool:
    """Whether somebody else is being answered while this asks."""
    asking = Request(f"{stage.url}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with build_opener(ProxyHandler({})).open(asking) as answer:
        return "woodshed_http_requests_running 2" in answer.read().decode()


@pytest.mark.slow
@both
def test_killed_again_and_again(stage: Stage) -> None:
    """The service five times and its trainer with it, at any moment: each group is acknowledged once, and all are."""
    server = stage.serve()
    made = [stage.client.ask(Asked(tasks=TASKS, n=2, agent=agent, seed=n, idempotency_key=f"{agent}-{n}"))
            for n in range(2) for agent in ("sleeps:1", "oracle")]
    said: list[list[str]] = []
    for round_ in range(5):
        trainer = stage.start(str(TRAINER), stage.url, KEY, "trainer", str(1 + round_ % 2))
        assert trainer.stdout is not None
        while (line := trainer.stdout.readline().split()) and line[0] != "acked":
            said.append(line)
        said += [line] if line else []
        (trainer if round_ % 2 else server).kill()
        trainer.kill()
        said += [line.split() for line in trainer.communicate()[0].splitlines()]
        if server.poll() is not None or not round_ % 2:
            server.communicate()
            server = stage.serve()
    acked = [line[1] for line in said if line[0] == "acked"]
    assert len(set(acked)) == len(acked)
    while not (found := stage.client.take("trainer", wait_s=60.0, again=True, requests=[one.id for one in made])).over:
        for group in found.groups:
            stage.client.ack([group.delivery])
            acked.append(group.group)
    groups = {group.run + f".{group.place}" for one in made for group in stage.home.store.groups.of(one.id)}
    # A trainer that died between its acknowledgement and its word said nothing of that group: it is consumed, too.
    assert len(set(acked)) == len(acked)
    assert groups - set(acked) <= {line[1] for line in said if line[0] == "took"}
    for one in made:
        stage.counted_once(one)
    ended(server)
    assert leftovers(stage.home.path) == []


@pytest.mark.slow
@both
def test_a_killed_trainer_loses_its_group_to_another(stage: Stage) -> None:
    """When its lease is over, and not before; a trainer that is back under the same name has it at once."""
    server = stage.serve()
    made = stage.client.ask(Asked(tasks=TASKS, n=1, agent="nop"))
    trainer = stage.start(str(TRAINER), stage.url, KEY, "first", "1")
    assert trainer.stdout is not None
    lines = [trainer.stdout.readline().split() for _ in range(3)]
    assert [line[0] for line in lines] == ["took", "acked", "took"]
    trainer.kill()
    assert stage.client.take("second", requests=[made.id]).groups == ()
    [back] = stage.client.take("first", again=True, lease_s=0.5, requests=[made.id]).groups
    assert back.group == lines[2][1]
    [heir] = stage.client.take("second", wait_s=60.0, requests=[made.id]).groups
    assert heir.group == back.group
    assert stage.client.renew([back.delivery]).lost == (back.delivery,)
    stage.client.ack([heir.delivery])
    assert stage.client.take("first", again=True, requests=[made.id]).over
    ended(server)


@pytest.mark.slow
@both
def test_workers_beside_the_service_are_killed(stage: Stage) -> None:
    """The service leaves the work to others; one of two dies in the middle, and the groups are whole all the same."""
    server = stage.serve(concurrency=0)
    made = stage.client.ask(Asked(tasks=TASKS, n=3, agent="sleeps:1"))
    workers = [stage.start("-m", "woodshed", "worker", "--slots", "2", "--json") for _ in range(2)]
    stage.until(lambda: {one.state for one in stage.executions(made)} >= {ExecutionState.OPEN, ExecutionState.DONE})
    open_by = next(one.executor for one in stage.executions(made) if one.state is ExecutionState.OPEN)
    pid = next(row.pid for row in stage.home.store.queue.workers() if row.executor == open_by)
    victim = next(worker for worker in workers if worker.pid == pid)
    victim.kill()
    groups: list[Any] = []
    while len(groups) < 2:
        groups += stage.client.take("trainer", wait_s=300.0, most=2, requests=[made.id]).groups
    assert [one.valid for group in groups for one in group.rollouts] == [True] * 6
    stage.client.ack([group.delivery for group in groups])
    stage.counted_once(made)
    for process in (server, *(worker for worker in workers if worker is not victim)):
        ended(process)
    assert leftovers(stage.home.path) == []


@pytest.mark.slow
@both
def test_a_service_that_ends_lets_its_attempts_end(stage: Stage) -> None:
    """The first signal waits for what runs, while groups are still handed out; a second one does not wait."""
    server = stage.serve()
    made = stage.client.ask(Asked(tasks=TASKS[:1], n=2, agent="sleeps:1"))
    stage.until(lambda: any(one.state is ExecutionState.OPEN for one in stage.executions(made)))
    ended(server)
    assert any(one.state is ExecutionState.DONE for one in stage.executions(made))
    assert not any(one.state is ExecutionState.OPEN for one in stage.executions(made))
    server = stage.serve()
    more = stage.client.ask(Asked(tasks=TASKS, n=4, agent="sleeps:1"))
    stage.until(lambda: any(one.state is ExecutionState.OPEN for one in stage.executions(more)))
    server.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=600)
    assert server.returncode == 0
    assert not any(one.state is ExecutionState.OPEN for one in stage.executions(more))
    assert leftovers(stage.home.path) == []
