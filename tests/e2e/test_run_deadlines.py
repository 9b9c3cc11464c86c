"""A run ends in time, whoever executes it: what runs is cut off without a result, and it can go on afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import plugged
from kit import EXAMPLES, leftovers, woodshed
from woodshed import plugins
from woodshed.errors import Cause, Paused, UsageError
from woodshed.interfaces import Harness
from woodshed.model import Agent, Attempt, AttemptState, Deadlines, Invalid, Run, RunSpec, RunState, Task
from woodshed.services import declared, runs, shared
from woodshed.services.home import Home, opened
from woodshed.services.working import Terms, _Worker
from woodshed.store import ExecutionState
from woodshed.store.queue import SubmissionState

TASK = EXAMPLES / "first-steps" / "write-file"
OVER = "the run's deadline of 2 s is over"


@pytest.fixture
def home(new_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home of the test's own, with an agent ``sleeps:SECONDS``, which is in no hurry at first."""
    builtin = plugins.harness

    def harness(name: str) -> Harness:
        kind, _, argument = name.partition(":")
        return plugged.Sleeps(argument) if kind == "sleeps" else builtin(name)

    monkeypatch.setattr(plugins, "harness", harness)
    with opened(new_home()) as home:
        yield home


def planned(attempts: int, run_s: float | None = 2.0) -> tuple[RunSpec, list[Task]]:
    """Attempts of which one runs at a time and none ends by itself."""
    return runs.plan([TASK], [Agent(name="sleeps", harness="sleeps:600")], attempts=attempts, concurrency=1, seed=0,
                     engine="native", deadlines=Deadlines(run_s=run_s))


def check(home: Home, run: Run) -> list[Attempt]:
    """The run is paused and says why; what began was set aside as evidence; nothing has a result."""
    assert (run.state, run.reason) == (RunState.PAUSED, OVER)
    attempts = home.store.attempts(run.id)
    assert {(attempt.state, attempt.outcome) for attempt in attempts} == {(AttemptState.PENDING, None)}
    begun = [execution for attempt in attempts for execution in home.store.executions(attempt.id)]
    assert begun
    for execution in begun:
        assert execution.state is ExecutionState.SET_ASIDE
        assert execution.outcome is not None
        assert isinstance(execution.outcome.verdict, Invalid)
        assert (execution.outcome.verdict.cause, execution.outcome.verdict.detail) == (Cause.CANCELLED, OVER)
    return attempts


async def test_a_run_of_one_process_ends_in_time_and_can_be_resumed(home: Home) -> None:
    """The attempt at work is cut off and the next never begins; resumed, the time counts anew."""
    spec, tasks = planned(2)
    with pytest.raises(Paused, match=OVER):
        await runs.start(home, spec, tasks, lambda tally: None)
    run = home.store.run("last")
    check(home, run)
    with pytest.raises(Paused, match="the run's deadline of 1 s is over"):
        await runs.resume(home, run.id, lambda tally: None, run_s=1.0)
    assert leftovers(home.path) == []


async def test_a_run_of_workers_ends_in_time_and_can_be_opened_again(home: Home) -> None:
    """Workers stop what runs of it; they go on with other runs, and with it once it is open again."""
    spec, tasks = planned(2)
    run = shared.submit(home, spec, tasks)
    worker = _Worker(home, Terms(slots=1, until_empty=True), print)
    async with worker.stack:
        await worker.begin()
        worked = await worker.until_the_end()
    assert (worked.done, worked.ended) == (0, "empty")
    check(home, home.store.run(run.id))
    found = home.store.queue.submission(run.id)
    assert found is not None
    assert found.state is SubmissionState.OVERDUE
    with pytest.raises(UsageError, match="overdue"):
        await runs.resume(home, run.id, lambda tally: None)
    assert shared.turn(home, run.id, SubmissionState.OPEN).state is RunState.RUNNING
    assert len(home.store.queue.claim(_enlisted(home), 5)) == 2


def _enlisted(home: Home) -> str:
    home.store.queue.enlist("another", host="h", pid=1, slots=5)
    return "another"


async def test_what_attempts_took_is_what_the_next_are_taken_to_need(home: Home) -> None:
    """After a task that took little, a worker takes its attempts to need less than it did at first."""
    spec, tasks = runs.plan([TASK], [Agent(name="oracle", harness="oracle")], attempts=2, concurrency=2, seed=0,
                            engine="native")
    shared.submit(home, spec, tasks)
    worker = _Worker(home, Terms(slots=1, until_empty=True), print)
    before = worker.need
    async with worker.stack:
        await worker.begin()
        assert (await worker.until_the_end()).passed == 2
    assert 16 < worker.need.memory_mb < before.memory_mb
    assert 0 < worker.need.disk_mb < before.disk_mb


def test_the_command_takes_deadlines_and_refuses_what_is_none(new_home: Callable[[], Path]) -> None:
    """``--deadline`` and ``--run-deadline`` stand in the run's spec; a verifier's own time is never cut short."""
    home = new_home()
    done = woodshed("run", TASK, "-a", "nop", "--deadline", "verify=1s", "--deadline", "close=2m",
                    "--run-deadline", "2h", "--json", home=home)
    assert done.returncode == 0, done.stderr
    assert "verify=1s is less than 1 of the tasks give their verifier" in done.stderr
    used = json.loads(done.stdout.strip().splitlines()[-1])["used"]
    assert (used["agent"]["sandboxes"], used["verifier"]["sandboxes"] >= 1) == (1, True)
    assert used["all"]["cpu_s"] > 0
    with opened(home) as state:
        assert state.store.run("last").spec.deadlines == Deadlines(verify_s=1.0, close_s=120.0, run_s=7200.0)


@pytest.mark.parametrize(("stage", "run"), [("verify", None), ("verfy=1s", None), ("verify=soon", None), (None, "0")],
                         ids=["no-time", "no-stage", "no-number", "no-duration"])
def test_what_is_no_deadline_is_refused_by_name(stage: str | None, run: str | None) -> None:
    """The message names the option and the remedy."""
    with pytest.raises(UsageError, match=r"--(run-)?deadline: .*Say "):
        declared.deadlines([stage] if stage else [], run)
