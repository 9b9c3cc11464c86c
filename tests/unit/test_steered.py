"""A run that one process works on alone, cancelled and paused from another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import EXAMPLES
from turnwise import Turnwise, serving
from woodshed.engine import durable
from woodshed.engine.lease import Lease
from woodshed.errors import Cancelled, Paused, UsageError
from woodshed.model import Agent, AttemptState, ModelSpec, RunSpec, RunState, Task
from woodshed.services import report, runs, shared
from woodshed.services.home import Home, opened
from woodshed.store import Store
from woodshed.store.queue import SubmissionState

TASK = EXAMPLES / "first-steps" / "write-file"


@pytest.fixture
def home(new_home: Callable[[], Path]) -> Iterator[Home]:
    """A home of its own."""
    with opened(new_home()) as home:
        yield home


def speaking(script: Turnwise, attempts: int = 1) -> tuple[RunSpec, list[Task]]:
    """A run of an agent that plays the script."""
    agent = Agent(name="loop", harness="loop", model=ModelSpec(name="turnwise", base_url=script.url))
    return runs.plan([TASK], [agent], attempts=attempts, concurrency=1, seed=1, engine="native")


async def when(there: Callable[[], object]) -> None:
    """Return once something is the case that threads bring about, who tell no one."""
    while not there():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def elsewhere(home: Home) -> Home:
    """The same home as another process has it."""
    return Home(home.path, Store(str(home.store._engine.url.render_as_string(False)), home.path), home.blobs)


async def test_who_cancels_a_run_of_another_process_stops_it_and_its_evidence_is_kept(home: Home) -> None:
    """What runs is cut off while it waits for its model; the run is over, says why, and what it did can be read."""
    script = Turnwise(3, lambda turn: "echo hello >hello.txt", silent=frozenset({2}))
    with serving(script):
        spec, tasks = speaking(script)
        working = asyncio.create_task(runs.start(home, spec, tasks, lambda tally: None))
        await when(lambda: script.asked[2])
        [run] = home.store.runs()
        other = elsewhere(home)
        assert shared.turn(other, "last", SubmissionState.CANCELLED, "enough").state is RunState.CANCELLED
        with pytest.raises(Cancelled, match=f"{run.id} was cancelled: enough"):
            await working
    stands = other.store.run(run.id)
    assert (stands.state, stands.reason, stands.finished_at is not None) == (RunState.CANCELLED, "enough", True)
    told = report.trace(other, f"{run.id}.1")
    assert (told["verdict"], told["stop"]) == (None, "cancelled")
    assert told["cut_off"] == "the run was cancelled: enough"
    assert report.sentence_of(told).startswith("none: the run was cancelled: enough")
    assert [call["name"] for step in told["steps"] for call in step["tool_calls"]] == ["bash"]
    assert told["stages_s"]["act"] > 0
    assert told["used"]["close"]["sandboxes"] + told["used"]["prepare"]["sandboxes"] == 1
    summary = report.summary(other, stands)
    assert (summary["reason"], summary["used"]["agent"]["sandboxes"]) == ("enough", 1)
    assert [row["cut_off"] for row in report.attempts(other, stands)] == ["the run was cancelled: enough"]
    with pytest.raises(UsageError, match="was cancelled"):
        runs.to_resume(other, run.id, checking=False, concurrency=None)
    assert runs.resumable(other, spec) is None
    with pytest.raises(UsageError, match=f"--resume {run.id}"):
        shared.turn(other, run.id, SubmissionState.OPEN)


async def test_who_pauses_it_lets_what_runs_go_on_to_its_end(home: Home) -> None:
    """Nothing more begins, what runs has its result, and the run goes on by --resume."""
    script = Turnwise(1, lambda turn: "echo hello world >hello.txt", silent=frozenset({1}))
    with serving(script):
        spec, tasks = speaking(script, attempts=4)
        working = asyncio.create_task(runs.start(home, spec, tasks, lambda tally: None))
        await when(lambda: script.asked[1])
        other = elsewhere(home)
        run = shared.turn(other, "last", SubmissionState.PAUSED, "lunch")
        await when(lambda: _halted(working))
        script.close()
        with pytest.raises(Paused, match="lunch"):
            await working
    states = [one.state for one in other.store.attempts(run.id)]
    assert AttemptState.DONE in states
    assert AttemptState.PENDING in states
    stands = other.store.run(run.id)
    assert (stands.state, stands.reason) == (RunState.PAUSED, "lunch")
    assert runs.to_resume(other, run.id, checking=False, concurrency=None).id == run.id


def _halted(working: asyncio.Task[object]) -> bool:
    """Whether the process has seen the pause: its durable engine takes nothing more."""
    return working.done() or (durable._active is not None and durable._active._cancelled)


def test_a_run_whose_process_has_died_is_over_as_it_is_cancelled(home: Home) -> None:
    """Nobody is waited for: what was open is lost, nothing is at work, and whoever cancelled it is named."""
    agent = Agent(name="oracle", harness="oracle")
    spec, tasks = runs.plan([TASK], [agent], attempts=2, concurrency=1, seed=1, engine="native")
    run = shared.submit(home, spec, tasks).model_copy(update={"id": "r-20260101-000000-dead", "executor": _dead(home)})
    home.store.create_run(run.model_copy(update={"state": RunState.RUNNING}), runs.planned(run, tasks))
    assert home.store.begin_execution(f"{run.id}.1", str(run.executor)) == 1
    stands = shared.turn(home, run.id, SubmissionState.CANCELLED)
    assert (stands.state, stands.finished_at is not None) == (RunState.CANCELLED, True)
    assert str(stands.reason).startswith("by ")
    assert {one.state for one in home.store.attempts(run.id)} == {AttemptState.PENDING}
    whys = [row["cut_off"] for row in report.attempts(home, stands)]
    assert whys == ["its process died", f"it had not begun when the run was cancelled: {stands.reason}"]
    with pytest.raises(UsageError, match="is cancelled"):
        shared.turn(home, run.id, SubmissionState.PAUSED)


def _dead(home: Home) -> str:
    """The name of a process of this home that lives no more."""
    with Lease(home.path) as lease:
        return lease.executor


async def test_a_run_that_has_its_results_is_finished_whoever_cancels_it(home: Home) -> None:
    """Where the last result is in before anybody looks, there is nothing to call off."""
    agent = Agent(name="nop", harness="nop")
    spec, tasks = runs.plan([TASK], [agent], attempts=1, concurrency=1, seed=1, engine="native")
    other = elsewhere(home)

    def progress(tally: runs.Tally) -> None:
        if tally.done:
            shared.turn(other, tally.run, SubmissionState.CANCELLED, "too late")

    run = await runs.start(home, spec, tasks, progress)
    assert (run.state, run.reason) == (RunState.FINISHED, None)
    assert run.finished_at is not None
    took = (run.finished_at - run.created_at).total_seconds()
    again = await runs.resume(other, run.id, lambda tally: None)
    told = [report.summary(one, ended)["elapsed_s"] for one, ended in ((home, run), (other, again))]
    assert told == [round(took, 3)] * 2  # whoever asks, and however often
