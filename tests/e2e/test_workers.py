"""Runs that workers execute: the same records as of a run in one process, in the order and within the bounds asked."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import plugged
from kit import EXAMPLES, leftovers, woodshed
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from scripted import Script, served
from woodshed import plugins
from woodshed.cli.worker import worker
from woodshed.errors import Cause, EnvironmentFault, StoreFault, UsageError
from woodshed.interfaces import Acting, Harness
from woodshed.model import (
    Agent,
    Assurance,
    Attempt,
    AttemptState,
    Invalid,
    ModelSpec,
    Outcome,
    Run,
    RunState,
    StopReason,
    Valid,
)
from woodshed.model.event import now
from woodshed.model.retry import BreakerRule, RetryRule, RetryRules
from woodshed.services import runs, shared, working
from woodshed.services.home import Home, opened
from woodshed.services.settling import Worked
from woodshed.services.working import Terms, work
from woodshed.store import ExecutionState, Store
from woodshed.store.queue import Queue, SubmissionState

TASK = EXAMPLES / "first-steps" / "write-file"


@pytest.fixture
def home(new_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home of the test's own, where agents of a third party are known."""
    theirs: dict[str, Callable[[str | None], Harness]] = {
        "sleeps": plugged.Sleeps, "breaks": plugged.Breaks, "limited": plugged.Limited,
        "stumbles": plugged.Stumbles}
    builtin = plugins.harness

    def harness(name: str) -> Harness:
        kind, _, argument = name.partition(":")
        return theirs[kind](argument or None) if kind in theirs else builtin(name)

    monkeypatch.setattr(plugins, "harness", harness)
    with opened(new_home()) as home:
        yield home


def shared_run(home: Home, harness: str, attempts: int = 1, *, task: Path = TASK, rules: RetryRules | None = None,
               url: str | None = None, **how: Any) -> Run:
    """A run of one agent, left to workers."""
    model = ModelSpec(name="scripted", base_url=url) if url else None
    spec, tasks = runs.plan([task], [Agent(name=harness, harness=harness, model=model)], attempts=attempts,
                            concurrency=2, seed=0, engine="native", retry=rules)
    return shared.submit(home, spec, tasks, **how)


async def worked(home: Home, slots: int = 2) -> Worked:
    """What a worker did until nothing was left."""
    return await work(home, Terms(slots=slots, until_empty=True), print)


async def begun(home: Home, run: Run, count: int = 1) -> None:
    """So many attempts of the run have been begun."""
    while sum(attempt.executions for attempt in home.store.attempts(run.id)) < count:  # noqa: ASYNC110 (rows tell no one)
        await asyncio.sleep(0.05)


def told(attempts: list[Attempt]) -> list[tuple[Any, ...]]:
    """What must not depend on who executed them."""
    return [(a.task, a.agent, a.index, a.seed, a.state, a.outcome and a.outcome.verdict, a.executions)
            for a in attempts]


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_two_workers_give_the_records_of_a_run_in_one_process(
    database: str, new_home: Callable[[], Path], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts, seeds and order are those of the attached run; the run is finished, and nothing is left behind."""
    if database == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    path, asked = new_home(), [str(TASK), "-a", "oracle", "-a", "nop", "-n", "2", "--seed", "5"]
    attached = woodshed("run", *asked, "--json", home=path)
    assert attached.returncode == 0, attached.stderr
    detached = woodshed("run", *asked, "--detach", "--json", home=path)
    assert detached.returncode == 0, detached.stderr
    run = json.loads(detached.stdout)
    assert run["state"] == "queued"
    command = [sys.executable, "-m", "woodshed", "worker", "--slots", "1", "--until-empty", "--json"]
    both = [subprocess.Popen(command, env={**os.environ, "WOODSHED_HOME": str(path)}, stdout=subprocess.PIPE,
                             text=True) for _ in range(2)]
    ended = [json.loads(worker.communicate(timeout=600)[0]) for worker in both]
    assert sum(one["done"] for one in ended) == 4
    with opened(path) as home:
        assert home.store.run(run["run"]).state is RunState.FINISHED
        theirs, ours = (told(home.store.attempts(name)) for name in (json.loads(attached.stdout)["run"], run["run"]))
        assert ours == theirs
        assert home.store.queue.workers() == []
    assert json.loads((path / "runs" / run["run"] / "summary.json").read_text())["state"] == "finished"
    assert leftovers(path) == []


async def test_a_cancelled_run_stops_what_runs_and_keeps_the_evidence(home: Home) -> None:
    """The attempt at work is cut off with its events kept, nothing of the run gets a result, and the worker goes on."""
    run = shared_run(home, "sleeps:600", 2)
    at_work = asyncio.create_task(worked(home, slots=1))
    await begun(home, run)
    shared.turn(home, run.id, SubmissionState.CANCELLED, "wrong model")
    other = shared_run(home, "oracle")
    done = await at_work
    assert (done.done, done.passed, done.ended) == (1, 1, "empty")
    assert home.store.run(other.id).state is RunState.FINISHED
    ended = home.store.run(run.id)
    assert (ended.state, ended.reason) == (RunState.CANCELLED, "wrong model")
    [execution] = home.store.executions(home.store.attempts(run.id)[0].id)
    assert execution.state is ExecutionState.SET_ASIDE
    assert execution.outcome is not None
    assert isinstance(execution.outcome.verdict, Invalid)
    assert (execution.outcome.verdict.cause, execution.outcome.verdict.detail) == (
        Cause.CANCELLED, "the run was cancelled: wrong model")
    assert home.store.events(execution.attempt, 1)
    assert {attempt.state for attempt in home.store.attempts(run.id)} == {AttemptState.PENDING}
    assert home.store.queue.left(run.id) == 0
    with pytest.raises(UsageError, match="cancelled"):
        shared.turn(home, run.id, SubmissionState.OPEN)


async def test_priority_and_slots_hold(home: Home) -> None:
    """A higher priority is begun first whenever it was submitted; a run of one slot has one attempt at work."""
    low = shared_run(home, "sleeps:0.2", 3, slots=1)
    high = shared_run(home, "nop", 2, priority=5)
    later = shared_run(home, "nop", 1, priority=9, not_before=now() + timedelta(seconds=2))
    await worked(home, slots=2)
    starts = {run.id: [a.started_at for a in home.store.attempts(run.id) if a.started_at] for run in (low, high, later)}
    assert max(starts[high.id]) <= min(starts[low.id])
    assert min(starts[later.id]) >= later.created_at + timedelta(seconds=1)
    spans = sorted((e.started_at, e.finished_at) for a in home.store.attempts(low.id)
                   for e in home.store.executions(a.id) if e.finished_at)
    assert len(spans) == 3
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


async def test_a_run_that_mostly_breaks_is_paused_for_all_workers(home: Home) -> None:
    """The breaker pauses the run and says why; nothing more is handed out until it is opened, and N break anew."""
    run = shared_run(home, "breaks", 12, rules=RetryRules(retry=(), breaker=BreakerRule(valid_rate=0.5, over=3)))
    for turn in (1, 2):
        assert (await worked(home, slots=1)).ended == "empty"
        paused = home.store.run(run.id)
        assert paused.state is RunState.PAUSED
        assert paused.reason is not None
        assert "only 0 of the last 3 executions were valid (harness)" in paused.reason
        assert sum(a.outcome is not None for a in home.store.attempts(run.id)) == 3 * turn
        shared.turn(home, run.id, SubmissionState.OPEN)
        assert home.store.run(run.id).state is RunState.RUNNING


async def test_an_endpoint_that_asks_for_patience_gets_it_from_all_workers(home: Home) -> None:
    """After a Retry-After nothing that loads the endpoint is handed out, whatever run it is of; others are."""
    async with served(Script([])) as url:
        run = shared_run(home, "limited", url=url)
        at_work = asyncio.create_task(worked(home))
        while not home.store.queue.depth().delayed:  # noqa: ASYNC110 (rows tell no one)
            await asyncio.sleep(0.05)
        [execution] = home.store.executions(home.store.attempts(run.id)[0].id)
        assert execution.state is ExecutionState.SET_ASIDE
        same = shared_run(home, "nop", url=url)
        other = shared_run(home, "nop")
        while home.store.run(other.id).state is not RunState.FINISHED:  # noqa: ASYNC110 (rows tell no one)
            await asyncio.sleep(0.05)
        assert home.store.run(same.id).state is RunState.QUEUED
        for waiting in (run, same):
            shared.turn(home, waiting.id, SubmissionState.CANCELLED)
        assert (await at_work).retried == 1


async def test_a_task_that_has_changed_pauses_its_run(home: Home, tmp_path: Path) -> None:
    """Nothing of the run is executed while a task is not what it was; restored and opened, the run finishes."""
    task = shutil.copytree(TASK, tmp_path / "task")
    run = shared_run(home, "oracle", task=task)
    instruction = (task / "instruction.md").read_text()
    (task / "instruction.md").write_text("Something else.")
    assert (await worked(home)).done == 0
    paused = home.store.run(run.id)
    assert paused.state is RunState.PAUSED
    assert f"cannot execute its attempts: {task}: the task has changed since {run.id} began" in str(paused.reason)
    assert home.store.attempts(run.id)[0].executions == 0
    with pytest.raises(UsageError, match=f"woodshed runs open {run.id}"):
        await runs.resume(home, run.id, lambda tally: None)
    (task / "instruction.md").write_text(instruction)
    shared.turn(home, run.id, SubmissionState.OPEN)
    assert (await worked(home)).passed == 1
    assert home.store.run(run.id).state is RunState.FINISHED


async def test_a_signal_drains_and_a_second_one_stops(home: Home) -> None:
    """SIGTERM: what runs ends, nothing more begins. Twice: what runs is set aside, and free for others at once."""
    drained = shared_run(home, "sleeps:1", 2)
    at_work = asyncio.create_task(work(home, Terms(slots=1), print))
    await begun(home, drained)
    os.kill(os.getpid(), signal.SIGTERM)
    done = await at_work
    assert (done.ended, done.done) == ("drained", 1)
    assert [a.state for a in home.store.attempts(drained.id)] == [AttemptState.DONE, AttemptState.PENDING]
    shared.turn(home, drained.id, SubmissionState.CANCELLED)
    stopped = shared_run(home, "sleeps:600", 1)
    at_work = asyncio.create_task(work(home, Terms(slots=1), print))
    await begun(home, stopped)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
    assert (await at_work).ended == "stopped"
    [attempt] = home.store.attempts(stopped.id)
    assert attempt.state is AttemptState.PENDING
    assert [execution.state for execution in home.store.executions(attempt.id)] == [ExecutionState.SET_ASIDE]
    assert home.store.queue.depth().ready == 1
    assert home.store.queue.deaths(attempt.id) == 0


async def test_what_a_crash_between_two_steps_leaves_is_resolved(home: Home) -> None:
    """A result whose attempt is still in the queue, and a run without any left, are settled by the next worker."""
    run = shared_run(home, "oracle", 2)
    queue, store = home.store.queue, home.store
    queue.enlist("dead", host="here", pid=1, slots=2)
    first = queue.claim("dead", 2)[0]
    number = store.begin_execution(first.id, "dead", claimed=True)
    assert number == 1
    verdict = Valid(rewards={}, total=1.0, assurance=Assurance.CANARY)


    assert store.finish_attempt(first.id, 1, Outcome(verdict=verdict, stop=StopReason.FINISHED))
    queue.reap_one("dead")
    assert (await worked(home)).done == 1
    assert [a.executions for a in store.attempts(run.id)] == [1, 1]
    assert store.run(run.id).state is RunState.FINISHED
    last = shared_run(home, "oracle")
    queue.done(store.attempts(last.id)[0].id)
    await worked(home)
    assert store.run(last.id).state is RunState.FINISHED


async def test_a_store_that_fails_for_a_moment_loses_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that could not be written is no result: the attempt is free again, executed anew, and counted once."""
    fails, finish = [2], Store.finish_attempt

    def failing(self: Store, *arguments: Any, **named: Any) -> bool:
        if fails[0]:
            fails[0] -= 1
            raise StoreFault("the disk is full")
        return finish(self, *arguments, **named)

    monkeypatch.setattr(Store, "finish_attempt", failing)
    monkeypatch.setattr(working, "_AGAIN_S", 0.1)
    run = shared_run(home, "oracle", 3)
    assert (await worked(home)).done == 3
    attempts = home.store.attempts(run.id)
    assert sum(attempt.executions for attempt in attempts) == 5
    assert all(attempt.outcome and isinstance(attempt.outcome.verdict, Valid) for attempt in attempts)
    assert home.store.run(run.id).state is RunState.FINISHED


async def test_a_worker_may_take_again_what_it_just_gave_back(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Claimed anew before its last execution has quite ended, an attempt is executed once more, and no oftener."""
    give_back, held, given_back, looks, begun = Queue.give_back, Queue.held, [0], [0], [0]

    def slowly(self: Queue, attempt: str, executor: str, **how: Any) -> bool:
        given = give_back(self, attempt, executor, **how)
        given_back[0] += 1
        while given_back[0] == 1 and attempt not in held(self, executor):
            time.sleep(0.01)
        return given

    def looked(self: Queue, executor: str) -> list[str]:
        looks[0] += 1
        return held(self, executor)

    async def stumble_once(self: plugged.Stumbles, acting: Acting) -> StopReason:
        begun[0] += 1
        if begun[0] == 1:
            raise EnvironmentFault("stumbled")
        before = looks[0]
        while looks[0] < before + 2:  # noqa: ASYNC110 (until the worker has looked at what it has, and knows of this)
            await asyncio.sleep(0.01)
        return StopReason.FINISHED

    monkeypatch.setattr(working, "_CHORES_S", 0.05)
    monkeypatch.setattr(Queue, "give_back", slowly)
    monkeypatch.setattr(Queue, "held", looked)
    monkeypatch.setattr(plugged.Stumbles, "act", stumble_once)
    run = shared_run(home, "stumbles", rules=RetryRules(retry=(RetryRule(max=1, backoff_s=0.0),), breaker=None))
    ended = await worked(home)
    assert (ended.done, ended.retried) == (1, 1)
    assert [attempt.executions for attempt in home.store.attempts(run.id)] == [2]
    assert "it is tried again" not in capsys.readouterr().out


async def test_a_worker_may_be_drained_from_elsewhere(home: Home) -> None:
    """Whoever marks it in the queue sees it leave; a signal after that is the first, and stops nothing."""
    run = shared_run(home, "sleeps:1", 2)
    at_work = asyncio.create_task(work(home, Terms(slots=1), print))
    await begun(home, run)
    home.store.queue.drain(home.store.queue.workers()[0].executor)
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    done = await at_work
    assert (done.ended, done.done) == ("drained", 1)
    assert home.store.queue.workers() == []


def test_the_command_line_says_what_it_leaves_to_workers(home: Home) -> None:
    """--detach with a key prints the run; --priority alone and slots that are no number are refused by name."""
    done = woodshed("run", TASK, "-a", "nop", "--detach", "--key", "night", "--not-before", "2040-01-01T00:00:00+01:00",
                    "--json", home=home.path)
    run = home.store.run("last")
    assert json.loads(done.stdout) == {"run": run.id, "project": "default", "state": "queued"}
    submission = home.store.queue.submission(run.id)
    assert submission is not None
    assert (submission.key, str(submission.not_before)) == ("night", "2039-12-31 23:00:00+00:00")
    bad = woodshed("run", TASK, "-a", "nop", "--priority", "3", home=home.path)
    assert bad.returncode == 2
    assert "Add --detach" in bad.stderr
    with pytest.raises(UsageError, match="'many' is no number of slots"):
        worker(slots="many")
    paused = woodshed("runs", "pause", "last", "--reason", "night", "--json", home=home.path)
    assert json.loads(paused.stdout) == {"run": run.id, "project": "default", "state": "paused", "reason": "night"}
    assert "paused: night" in woodshed("show", home=home.path).stdout
