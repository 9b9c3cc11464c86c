"""A fine attempt that is killed again and again, and moved from worker to worker, ends as one that nobody disturbed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stepped
from kit import EXAMPLES, leftovers
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from turnwise import Turnwise, serving
from woodshed.measure.resume import joined
from woodshed.model import (
    Agent,
    AgentLimits,
    AttemptState,
    CheckpointRule,
    Durability,
    EventKind,
    ModelSpec,
    RunState,
)
from woodshed.services import report, runs, shared
from woodshed.services.home import Home, opened
from woodshed.services.working import Terms, work
from woodshed.store import ExecutionState

TASK = EXAMPLES / "first-steps" / "write-file"


def command(turn: int) -> str:
    """Something whose answer shows everything that the turns before it left, and that would show a turn done twice."""
    said = f"echo {turn} >>log; mkdir -p d/{turn % 7}; sha256sum <log >d/{turn % 7}/{turn}; rm -f d/*/{turn - 5}"
    other = "ln -sfn d/3 link; chmod 7$((RANDOM % 1))0 log" if turn % 11 == 0 else "echo hello world >hello.txt"
    return f"{said}; {other}; wc -l <log; find . | sort | sha256sum"


def submitted(
    home: Home, script: Turnwise, rule: CheckpointRule, durability: Durability = Durability.FINE, task: Path = TASK
) -> str:
    """A run of one attempt, left to workers; its id."""
    model = ModelSpec(name="turnwise", base_url=script.url)
    agent = Agent(name="loop", harness="loop", model=model, durability=durability, checkpoint=rule,
                  limits=AgentLimits(turns=1000, tool_calls=1000, wall_s=3600))
    spec, tasks = runs.plan([task], [agent], attempts=1, concurrency=1, seed=7, engine="native")
    return shared.submit(home, spec, tasks).id


@dataclass
class Workers:
    """Worker processes, at most one in each home."""

    homes: list[Path]
    live: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        """One in every home that has none."""
        for home in self.homes:
            if home not in self.live:
                command = [sys.executable, "-m", "woodshed", "worker", "--slots", "1"]
                self.live[home] = subprocess.Popen(command, env={**os.environ, "WOODSHED_HOME": str(home)},
                                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, pid: int) -> None:
        """The one with this process id, without a word."""
        home = next(home for home, worker in self.live.items() if worker.pid == pid)
        worker = self.live.pop(home)
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def end(self) -> None:
        """All of them, in order."""
        for worker in self.live.values():
            worker.send_signal(signal.SIGTERM)
        for worker in self.live.values():
            worker.wait()
        self.live.clear()


def until(met: Callable[[], Any], *, look_s: float = 0.002) -> Any:
    """Wait for a fact; twenty minutes guard the suite against a hang."""
    deadline = time.monotonic() + 1200
    while not (found := met()):
        assert time.monotonic() < deadline
        time.sleep(look_s)
    return found


def holder(home: Home, run: str) -> int | None:
    """The process id of the worker that executes the run's one attempt."""
    [attempt] = home.store.attempts(run)
    if attempt.state is not AttemptState.RUNNING or not attempt.executions:
        return None
    last = home.store.executions(attempt.id)[-1]
    if last.state is not ExecutionState.OPEN:
        return None
    return next((row.pid for row in home.store.queue.workers() if row.executor == last.executor), None)


def asked(script: Turnwise, turn: int) -> bool:
    """Whether the attempt has come so far."""
    return max(list(script.asked), default=0) >= turn


def steps(home: Home, attempt: str) -> list[dict[str, Any]]:
    """What was thought and done, without what was told of the machine."""
    told = [step for step in report.trace(home, attempt)["steps"]
            if not (step["source"] == "user" and "machine that you work on was lost" in step["message"])]
    return [{key: value for key, value in step.items() if key != "index"} for step in told]


def the_same(home: Home, disturbed: str, undisturbed: str, turns: int) -> None:
    """Both runs' attempts have the same verdict, usage, steps and end state; of one, every call is recorded once."""
    [one], [other] = home.store.attempts(disturbed), home.store.attempts(undisturbed)
    assert one.outcome is not None
    assert other.outcome is not None
    assert one.outcome.verdict == other.outcome.verdict
    assert (one.outcome.stop, one.outcome.usage) == (other.outcome.stop, other.outcome.usage)
    assert one.outcome.usage.turns == turns + 1
    shown, known = report.trace(home, one.id), report.trace(home, other.id)
    assert shown["passed"] is True
    assert shown["changes"] == known["changes"]
    assert steps(home, one.id) == steps(home, other.id)
    events = home.store.events(one.id)
    results = Counter(event.data["call"] for event in events if event.kind is EventKind.MODEL_RESULT)
    assert results == Counter(f"m{number:05d}" for number in range(1, turns + 2))
    whole = joined(events, one.executions)
    assert [event.seq for event in whole] == list(range(len(whole)))
    pairs = ((EventKind.MODEL_CALL, EventKind.MODEL_RESULT), (EventKind.TOOL_CALL, EventKind.TOOL_RESULT))
    for intent, result in pairs:
        begun = [event.data["call"] for event in whole if event.kind is intent]
        assert begun == [event.data["call"] for event in whole if event.kind is result]
        assert len(begun) == len(set(begun)) == turns + 1
    for number in range(1, one.executions + 1):
        seqs = [event.seq for event in events if event.execution == number]
        assert seqs == list(range(len(seqs)))


async def test_an_attempt_goes_on_after_two_kills(new_home: Callable[[], Path]) -> None:
    """Twelve turns, its worker killed twice: no answer that came is asked again, and it ends as an undisturbed one."""
    path = new_home()
    with serving(Turnwise(12, command)) as script, opened(path) as home:
        calm = submitted(home, script, CheckpointRule(turns=3), Durability.COARSE)
        await work(home, Terms(slots=1, until_empty=True), print)
        assert script.asked == Counter(range(1, 14))
        script.asked.clear()
        script.silent = frozenset({5, 8})
        run, workers = submitted(home, script, CheckpointRule(turns=3)), Workers([path])
        for turn in sorted(script.silent):
            workers.start()
            await asyncio.to_thread(until, partial(script.asked.__getitem__, turn))
            workers.kill(next(iter(workers.live.values())).pid)
        done = await work(home, Terms(slots=1, until_empty=True), print)
        assert done.passed == 1
        assert script.asked == Counter([*range(1, 14), 5, 8])
        [attempt] = home.store.attempts(run)
        assert [one.state for one in home.store.executions(attempt.id)] == [
            ExecutionState.LOST, ExecutionState.LOST, ExecutionState.DONE]
        the_same(home, run, calm, 12)
    assert leftovers(path) == []


@pytest.mark.slow
async def test_an_attempt_goes_on_after_a_kill_in_each_step(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """Its worker is killed in each of three steps: every step is judged once, and it ends as one nobody disturbed."""
    path, rule = new_home(), CheckpointRule(turns=1)
    folder = stepped.a_task(tmp_path / "steps").folder
    places = [("one", 1), ("two", 1), ("three", 0)]
    with opened(path) as home, serving(stepped.StepScript(0, str, silent_in=frozenset(places))) as script:
        script.silent_in = frozenset()
        calm = submitted(home, script, rule, task=folder)
        assert (await work(home, Terms(slots=1, until_empty=True), print)).passed == 1
        whole, script.silent_in = script.asked_in.copy(), frozenset(places)
        script.asked_in.clear()
        run, workers = submitted(home, script, rule, task=folder), Workers([path])
        for place in places:
            workers.start()
            await asyncio.to_thread(until, partial(script.asked_in.__getitem__, place))
            workers.kill(next(iter(workers.live.values())).pid)
        assert (await work(home, Terms(slots=1, until_empty=True), print)).passed == 1
        assert script.asked_in == whole + Counter(places)
        [one], [other] = home.store.attempts(run), home.store.attempts(calm)
        assert one.outcome is not None
        assert other.outcome is not None
        assert (one.outcome.verdict, one.outcome.usage) == (other.outcome.verdict, other.outcome.usage)
        assert steps(home, one.id) == steps(home, other.id)
        judged = [event.data["step"] for event in home.store.events(one.id) if event.data.get("state") == "step_judged"]
        assert (judged, one.executions) == (list(stepped.STEPS), 4)
    assert leftovers(path) == []


@pytest.fixture(params=["sqlite", "postgresql"])
def places(
    request: pytest.FixtureRequest, new_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Home, list[Path]]]:
    """A home, and those of the workers: one on SQLite; on PostgreSQL two, as on two machines that share blobs."""
    homes = [new_home()]
    if request.param == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
        homes.append(new_home())
    with opened(homes[0]) as home:
        for other in homes[1:]:
            (other / "blobs").symlink_to(homes[0] / "blobs")
        yield home, homes


@pytest.mark.slow
def test_two_days_in_miniature(places: tuple[Home, list[Path]]) -> None:
    """Three hundred turns, killed at twenty random moments and moved between two workers: the same verified result."""
    turns, kills = 300, 20
    seed = int(os.environ.get("WOODSHED_TEST_SEED") or random.SystemRandom().randrange(10**6))
    sys.stderr.write(f"seed {seed} (WOODSHED_TEST_SEED repeats it)\n")
    dice, (home, homes) = random.Random(seed), places
    with serving(Turnwise(turns, command)) as script:
        workers = Workers(homes)
        try:
            calm = submitted(home, script, CheckpointRule(turns=10), Durability.COARSE)
            workers.start()
            until(lambda: home.store.run(calm).state is RunState.FINISHED, look_s=0.1)
            script.asked.clear()
            run, reached = submitted(home, script, CheckpointRule(turns=10)), 0
            for _ in range(kills):
                workers.start()
                goal = reached + dice.randint(2, 13)
                until(partial(asked, script, goal))
                time.sleep(dice.uniform(0.0, 0.06))
                pid = until(lambda: holder(home, run))
                reached = max(script.asked)
                workers.kill(pid)
            workers.start()
            until(lambda: home.store.run(run).state is RunState.FINISHED, look_s=0.1)
        finally:
            workers.end()
    again = sum(script.asked.values()) - len(script.asked)
    assert len(script.asked) == turns + 1
    assert again <= kills, "an answer that had come was asked for again"
    [attempt] = home.store.attempts(run)
    executions = home.store.executions(attempt.id)
    assert len(executions) > kills
    assert len({one.executor for one in executions}) > 2
    the_same(home, run, calm, turns)
    for place in homes:
        assert leftovers(place) == []
