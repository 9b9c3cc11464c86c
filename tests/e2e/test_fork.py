"""Forks with everything real: branches of an attempt have its files, its conversation, and a way of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kit import EXAMPLES, leftovers, woodshed
from turnwise import Turnwise, serving
from woodshed import plugins
from woodshed.errors import UsageError
from woodshed.interfaces import SandboxEngine
from woodshed.measure.trajectory import from_events
from woodshed.model import (
    Agent,
    AgentLimits,
    Attempt,
    ChangeSet,
    CheckpointRule,
    Durability,
    EventKind,
    ModelSpec,
    SandboxPolicy,
    Valid,
)
from woodshed.model.fork import ForkSpec
from woodshed.services import forking, report, runs
from woodshed.services.ground import Ground, origin
from woodshed.services.history import history
from woodshed.services.home import Home, opened
from woodshed.services.runs import Tally
from woodshed.services.source import changes_of
from woodshed.tasks.load import load_task
from woodshed.trainers.atif import to_atif

TASK = EXAMPLES / "first-steps" / "write-file"


@pytest.fixture
def home(new_home: Callable[[], Path]) -> Iterator[Home]:
    """A home of the test's own."""
    with opened(new_home()) as home:
        yield home


def ignore(tally: Tally) -> None:
    """Nobody looks."""


def command(turn: int) -> str:
    """Makes, changes, links and removes files, so that every step has a state of its own."""
    return (f"echo {turn} >>log; mkdir -p d{turn}; echo {turn} >d{turn}/f; ln -sf d{turn} now; "
            f"rm -rf d{turn - 2}; chmod 0{600 + turn % 8 * 8} log; cat log")


def looped(script: Turnwise, turns: int = 50) -> Agent:
    return Agent(name="loop", harness="loop", model=ModelSpec(name="turnwise", base_url=script.url),
                 limits=AgentLimits(turns=turns, tool_calls=200))


async def attempted(home: Home, script: Turnwise, turns: int = 50) -> Attempt:
    """One attempt of the scripted model, cut off after so many turns."""
    spec, tasks = runs.plan([TASK], [looped(script, turns)], attempts=1, concurrency=1, seed=0, engine="native")
    run = await runs.start(home, spec, tasks, ignore)
    return home.store.attempts(run.id)[0]


async def forked(home: Home, parent: Attempt, step: int, *agents: Agent, n: int = 1, **how: Any) -> list[Attempt]:
    """The branches of a fork."""
    fork = ForkSpec(attempt=parent.id, execution=parent.executions, step=step, **how)
    spec, tasks = forking.plan(home, fork, agents, attempts=n, concurrency=2)
    run = await forking.start(home, spec, tasks, ignore)
    assert home.store.run(run.id).spec.fork == fork
    return home.store.attempts(run.id)


NOBODY_ELSE = Agent(name="nop", harness="nop")


def files(home: Home, attempt: Attempt) -> ChangeSet:
    """What was captured at its end: every path with kind, mode, content's hash and target."""
    found = changes_of(history(home, attempt))
    assert found is not None
    return found


async def same_as_a_run_of_the_first(home: Home, script: Turnwise, parent: Attempt, step: int) -> None:
    """The state that nobody goes on from is that of a run which took the same steps and no more."""
    [branch] = await forked(home, parent, step, NOBODY_ELSE)
    if step:
        alone = await attempted(home, script, step)
        assert files(home, branch) == files(home, alone)
    else:
        assert files(home, branch) == ChangeSet()


async def test_a_fork_has_the_files_of_a_run_that_took_the_same_steps(home: Home) -> None:
    """File by file, by hash, mode and target, after a step in the middle."""
    with serving(Turnwise(3, command)) as script:
        parent = await attempted(home, script)
        await same_as_a_run_of_the_first(home, script, parent, 2)
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_that_holds_after_every_step(home: Home) -> None:
    """For all k, with each attempt's own end as the last one."""
    with serving(Turnwise(6, command)) as script:
        parent = await attempted(home, script)
        for step in range(8):
            await same_as_a_run_of_the_first(home, script, parent, step)


async def test_branches_go_on_with_the_conversation_and_count_their_own_work_alone(home: Home) -> None:
    """The first steps are marked as inherited, never asked for again and not used again; a word is told first."""
    with serving(Turnwise(4, command)) as script:
        parent = await attempted(home, script)
        asked = script.asked.copy()
        branches = await forked(home, parent, 2, n=2, say="Do it otherwise.")
        assert {turn: script.asked[turn] - asked[turn] for turn in range(1, 6)} == {1: 0, 2: 0, 3: 2, 4: 2, 5: 2}
        said = script.requests[-1]["messages"]
    assert sum("Do it otherwise." in message["content"] for message in said) == 1
    whole = report.trace(home, parent.id)["steps"]
    for branch in branches:
        told = report.trace(home, branch.id)
        inherited = [step for step in told["steps"] if step["inherited"]]
        assert [dict(step, inherited=False) for step in inherited] == whole[:len(inherited)]
        assert sum(step["source"] == "agent" for step in inherited) == 2
        assert told["fork"] == {"attempt": parent.id, "execution": 1, "step": 2, "say": "Do it otherwise.",
                                "diverged": False}
        assert (told["turns"], told["tool_calls"]) == (3, 3)
        assert files(home, branch) == files(home, parent)
        feedback = [event.data for event in home.store.events(branch.id) if event.kind is EventKind.FEEDBACK]
        assert [(data["said"], data["step"]) for data in feedback] == [("Do it otherwise.", 2)]
    atif = to_atif(from_events(history(home, branches[0]), task="t", agent="a"))
    assert [step.get("is_copied_context", False) for step in atif["steps"]] == [
        step["inherited"] for step in report.trace(home, branches[0].id)["steps"]]
    assert atif["final_metrics"]["total_completion_tokens"] == 3 * 7
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_the_reference_goes_on_from_where_another_stopped(home: Home) -> None:
    """An agent without a model plays in the state that was left, and is judged like any other."""
    with serving(Turnwise(2, command)) as script:
        parent = await attempted(home, script)
    [branch] = await forked(home, parent, 1, Agent(name="oracle", harness="oracle"))
    assert branch.outcome is not None
    assert isinstance(branch.outcome.verdict, Valid)
    assert branch.outcome.verdict.passed
    assert any(change.path == "/workspace/log" for change in files(home, branch).changes)


async def test_a_state_that_does_not_come_about_again_is_refused_and_there_is_no_run(home: Home) -> None:
    """A call with another output is named; --diverged goes on from what came about, and says so in the record."""
    with serving(Turnwise(2, lambda turn: "cat /proc/sys/kernel/random/uuid")) as script:
        parent = await attempted(home, script)
        before = len(home.store.runs())
        with pytest.raises(UsageError, match=r"did not come about again: t0001c001 \(bash: another output\)"):
            await forked(home, parent, 1)
        assert len(home.store.runs()) == before
        [branch] = await forked(home, parent, 1, diverged=True)
    begun = next(event.data for event in home.store.events(branch.id) if event.data.get("state") == "forked")
    assert [one["call"] for one in begun["diverged"]] == ["t0001c001"]


@pytest.mark.slow
async def test_what_no_snapshot_holds_is_told(home: Home) -> None:
    """A process in the background and a file in /tmp are gone: the agent hears of it, where there were any."""
    with serving(Turnwise(2, lambda turn: "sleep 1000 >/dev/null 2>&1 & echo 1 >/tmp/x; echo ok")) as script:
        parent = await attempted(home, script)
        await forked(home, parent, 1)
        [word] = [m["content"] for m in script.requests[-1]["messages"] if "These are gone" in str(m["content"])]
    assert "running processes" in word
    assert "/tmp" in word
    assert leftovers(home.path) == []


async def test_who_cannot_go_on_is_refused_by_name(home: Home) -> None:
    """Before anything runs: steps that are not there, the last one, those that are another's, and who cannot hear."""
    with serving(Turnwise(2, command)) as script:
        parent = await attempted(home, script)

        def planned(step: int, *agents: Agent, of: Attempt = parent, say: str | None = None) -> Any:
            return forking.plan(home, ForkSpec(attempt=of.id, execution=1, step=step, say=say), agents, attempts=1,
                                concurrency=1)

        with pytest.raises(UsageError, match="has 3 steps"):
            planned(4)
        with pytest.raises(UsageError, match="it was the last one"):
            planned(3)
        with pytest.raises(UsageError, match="cannot be told anything"):
            planned(1, NOBODY_ELSE, say="x")
        [branch] = await forked(home, parent, 1, NOBODY_ELSE)
        with pytest.raises(UsageError, match=f"the first 1 step of {branch.id} are {parent.id}'s"):
            planned(0, of=branch)


@pytest.mark.slow
async def test_a_fork_that_was_interrupted_goes_on_from_the_same_state(home: Home) -> None:
    """Another process makes the state again; every branch has its result, from the step on."""
    with serving(Turnwise(3, command)) as script:
        parent = await attempted(home, script)
        fork = ForkSpec(attempt=parent.id, execution=1, step=2)
        spec, tasks = forking.plan(home, fork, (), attempts=2, concurrency=1)
        silent = Turnwise(3, command, silent=frozenset({3}))
        with serving(silent) as other:
            agent = spec.agents[0].model_copy(update={"model": ModelSpec(name="turnwise", base_url=other.url)})
            spec = spec.model_copy(update={"agents": (agent,)})
            running = asyncio.create_task(forking.start(home, spec, tasks, ignore))
            while not other.asked[3]:  # noqa: ASYNC110 (another thread counts)
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            other.close()
            run = await runs.resume(home, "last", ignore)
    for branch in home.store.attempts(run.id):
        assert branch.outcome is not None
        assert branch.outcome.usage.turns == 2
        assert files(home, branch) == files(home, parent)
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_a_fine_attempt_is_forked_from_its_checkpoint(home: Home) -> None:
    """Calls before it are not made again, those after it are; the state is the same as any other way."""
    with serving(Turnwise(4, lambda turn: command(turn) if turn > 2 else f"echo $RANDOM >>log; echo {turn}")) as script:
        fine = looped(script).model_copy(update={"durability": Durability.FINE, "checkpoint": CheckpointRule(turns=2)})
        spec, tasks = runs.plan([TASK], [fine], attempts=1, concurrency=1, seed=0, engine="native")
        [parent] = home.store.attempts((await runs.start(home, spec, tasks, ignore)).id)
        [branch] = await forked(home, parent, 3)
    assert files(home, branch) == files(home, parent)
    assert report.trace(home, branch.id)["turns"] == 2


@pytest.mark.slow
async def test_forks_and_steps_on_the_command_line(home: Home) -> None:
    """trace numbers the steps, fork takes such a number, and the closing words say whose branches they are."""
    with serving(Turnwise(2, command)) as script:
        parent = await attempted(home, script)
        shown = woodshed("trace", parent.id, home=home.path)
        assert "agent (step 2)" in shown.stdout
        done = woodshed("fork", parent.id, "--step", "1", "-n", "2", "--say", "Go on.", "--json", home=home.path)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.strip().splitlines()[-1])
        assert told["fork"]["step"] == 1
        assert told["agents"][0]["attempts"] == 2
        shown = woodshed("trace", f"{told['run']}.1", home=home.path)
        assert "agent (step 1, inherited)" in shown.stdout
        refused = woodshed("fork", parent.id, "--step", "9", home=home.path)
        assert refused.returncode == 2
        assert "has 3 steps" in refused.stderr


class Forkless:
    """An engine that takes no snapshots."""

    def __init__(self, engine: SandboxEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def capabilities(self) -> frozenset[str]:
        """All others."""
        return self._engine.capabilities - {"snapshot", "fork"}


@pytest.mark.slow
async def test_an_engine_that_cannot_fork_begins_from_captured_changes(home: Home) -> None:
    """The state is the same by file, in as many sandboxes as are asked for."""
    with serving(Turnwise(3, command)) as script:
        parent, alone = await attempted(home, script), await attempted(home, script, 2)
    fork, task = ForkSpec(attempt=parent.id, execution=1, step=2), load_task(TASK)
    engine = plugins.engine("native", home.path)
    ground = Ground(home, fork, origin(home, fork), task, cast(SandboxEngine, Forkless(engine)))
    try:
        for _ in range(2):
            engine_of_branch = ground.engine(NOBODY_ELSE)
            assert engine_of_branch is not None
            box = await engine_of_branch.create(task.environment, SandboxPolicy())
            assert await box.changes(home.blobs, roots=("/workspace",)) == files(home, alone)
            await box.close()
    finally:
        await ground.close()
        await engine.close()
    assert leftovers(home.path) == []
