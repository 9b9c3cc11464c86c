"""Fine durability with everything real: handed over, interrupted, judged once more, and refused where it cannot be."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import plugged
from kit import EXAMPLES, leftovers
from turnwise import Turnwise, serving
from woodshed import plugins
from woodshed.errors import UsageError, VerifierFault
from woodshed.interfaces import Verifier
from woodshed.measure.resume import begun
from woodshed.model import (
    Agent,
    AgentLimits,
    AttemptState,
    CheckpointRule,
    Durability,
    EnvironmentSpec,
    EventKind,
    ModelSpec,
    RunState,
    SandboxPolicy,
    Valid,
)
from woodshed.model.retry import RetryRule, RetryRules
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.services import lasting, regrading, report, rulesets, runs, shared
from woodshed.services.exporting import Order, export
from woodshed.services.home import Home, opened
from woodshed.services.runs import Tally
from woodshed.services.working import Terms, work
from woodshed.store import ExecutionState
from woodshed.store.queue import SubmissionState
from woodshed.verify.live import ready

TASK = EXAMPLES / "first-steps" / "write-file"


@pytest.fixture
def home(new_home: Callable[[], Path]) -> Iterator[Home]:
    """A home of the test's own."""
    with opened(new_home()) as home:
        yield home


def planned(script: Turnwise, turns: int = 50, **how: Any) -> tuple[Any, Any]:
    """A run of one fine attempt at a scripted model."""
    agent = Agent(name="loop", harness="loop", model=ModelSpec(name="turnwise", base_url=script.url),
                  durability=Durability.FINE, checkpoint=CheckpointRule(turns=2),
                  limits=AgentLimits(turns=turns, tool_calls=turns))
    return runs.plan([TASK], [agent], attempts=1, concurrency=1, seed=0, engine="native", **how)


def command(turn: int) -> str:
    return f"echo {turn} >>log; echo hello world >hello.txt; cat log"


def ignore(tally: Tally) -> None:
    """Nobody looks."""


async def reached(script: Turnwise, turn: int) -> None:
    """The model has been asked for this turn."""
    while not script.asked[turn]:  # noqa: ASYNC110 (another thread counts)
        await asyncio.sleep(0.01)


async def test_a_worker_that_drains_leaves_a_fine_attempt_with_a_checkpoint(home: Home) -> None:
    """It ends while the attempt is far from its end; another goes on at once, and nothing is done twice."""
    with serving(Turnwise(6, command, silent=frozenset({3}))) as script:
        run = shared.submit(home, *planned(script))
        at_work = asyncio.create_task(work(home, Terms(slots=1), print))
        await reached(script, 3)
        os.kill(os.getpid(), signal.SIGTERM)
        script.close()
        done = await at_work
        assert (done.ended, done.done) == ("drained", 0)
        [attempt] = home.store.attempts(run.id)
        assert attempt.state is AttemptState.PENDING
        assert home.store.queue.depth().ready == 1
        whys = [e.data["why"] for e in home.store.events(attempt.id) if e.kind is EventKind.CHECKPOINT]
        assert whys == ["due", "leaving"]
        assert (await work(home, Terms(slots=1, until_empty=True), print)).passed == 1
        assert script.asked == Counter(range(1, 8))
    [attempt] = home.store.attempts(run.id)
    states = [one.state for one in home.store.executions(attempt.id)]
    assert states == [ExecutionState.SET_ASIDE, ExecutionState.DONE]
    [live] = [e.data for e in home.store.events(attempt.id, 2)
              if e.kind is EventKind.RESUME and e.data["state"] == "live"]
    assert (live["redone"], live["not_repeated"], live["interrupted"]) == (0, [], [])
    assert home.store.run(run.id).state is RunState.FINISHED
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_an_attempt_of_a_paused_run_is_left_at_its_next_turn(home: Home) -> None:
    """The worker lives on; the attempt is free, with a checkpoint, and is not taken again while the run is paused."""
    with serving(Turnwise(100_000, command)) as script:
        run = shared.submit(home, *planned(script, turns=100_000))
        at_work = asyncio.create_task(work(home, Terms(slots=1, until_empty=True), print))
        await reached(script, 2)
        shared.turn(home, run.id, SubmissionState.PAUSED)
        [attempt] = home.store.attempts(run.id)
        while home.store.executions(attempt.id)[-1].state is ExecutionState.OPEN:  # noqa: ASYNC110 (rows tell no one)
            await asyncio.sleep(0.05)
        assert (await at_work).done == 0
    [execution] = home.store.executions(attempt.id)
    assert execution.state is ExecutionState.SET_ASIDE
    assert execution.outcome is not None
    assert "left at a turn" in execution.outcome.verdict.detail
    last = [e.data["why"] for e in home.store.events(attempt.id) if e.kind is EventKind.CHECKPOINT][-1]
    assert last == "leaving"
    assert home.store.attempts(run.id)[0].state is AttemptState.PENDING
    assert leftovers(home.path) == []


async def test_an_interrupted_run_goes_on_and_is_read_as_one(home: Home, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a turn: resumed, it has one trajectory, one export, and rules grade it as a whole."""
    (tmp_path / "rules.toml").write_text('[[rules]]\nkind = "tool_budget"\ncalls = 3\n')
    rules = rulesets.load(tmp_path / "rules.toml")
    with serving(Turnwise(5, command, silent=frozenset({4}))) as script:
        spec, tasks = planned(script, rules=rules)
        running = asyncio.create_task(runs.start(home, spec, tasks, ignore))
        await reached(script, 4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        run = home.store.run("last")
        assert run.state is RunState.INTERRUPTED
        script.close()
        await runs.resume(home, run.id, ignore)
        assert script.asked == Counter([*range(1, 7), 4])
    [attempt] = home.store.attempts(run.id)
    told = report.trace(home, attempt.id)
    assert [step["message"] for step in told["steps"] if step["source"] == "agent"] == [
        f"turn {turn}" for turn in range(1, 7)]
    assert sum("machine that you work on was lost" in step["message"] for step in told["steps"]) == 1
    assert (told["turns"], told["passed"], told["execution"]) == (6, True, 2)
    assert "+hello world" in told["diff"]
    assert attempt.outcome is not None
    assert isinstance(attempt.outcome.verdict, Valid)
    made = regrading.regrade(home, run, rules)
    [again] = home.store.regraded(made.id)
    assert again.verdict == attempt.outcome.verdict
    assert attempt.outcome.verdict.rewards["tool_budget"] not in (None, 1.0)
    [file, *_] = export(home, [run], Order("atif", tmp_path / "out")).files
    assert file.read_text().count('"function_name": "bash"') == 5


@dataclass
class Breaking:
    """A verifier that breaks once, and then is the real one."""

    real: Verifier
    broken: bool = False

    async def verify(self, *given: Any) -> Any:
        """A verdict, the second time."""
        if not self.broken:
            self.broken = True
            fault = VerifierFault("broken, once")
            fault.retryable = True
            raise fault
        return await self.real.verify(*given)


async def test_an_end_state_that_was_captured_is_only_judged_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fault of the verifier nothing is acted again: no sandbox of the agent's, no question to the model."""
    breaking = Breaking(plugins.verifier("fresh"))
    monkeypatch.setattr(plugins, "verifier", lambda name: breaking)
    once = RetryRules(retry=(RetryRule(max=1, backoff_s=0.0),), breaker=None)
    with serving(Turnwise(2, command)) as script:
        spec, tasks = planned(script, retry=once)
        run = await runs.start(home, spec, tasks, ignore)
        assert script.asked == Counter(range(1, 4))
    [attempt] = home.store.attempts(run.id)
    assert attempt.outcome is not None
    assert isinstance(attempt.outcome.verdict, Valid)
    assert attempt.outcome.verdict.passed
    assert (attempt.executions, attempt.outcome.usage.turns) == (2, 3)
    second = home.store.events(attempt.id, 2)
    assert begun(second) is not None
    assert {EventKind.MODEL_CALL, EventKind.TOOL_CALL}.isdisjoint(event.kind for event in second)
    assert report.trace(home, attempt.id)["tool_calls"] == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="commands as other users need root: run the tests as root")
async def test_a_restored_working_folder_is_its_users_again(home: Home) -> None:
    """What an agent's user had written can be written by it after a restore; the control: without, it is root's."""
    spec, engine = EnvironmentSpec(user="nobody"), NativeEngine(home.path)
    try:
        first = await engine.create(spec, SandboxPolicy())
        await first.exec("chmod 777 /workspace", user=0)
        assert (await first.exec("mkdir d && echo one >d/f")).exit_code == 0
        await first.kill_all()
        changes = await first.changes(home.blobs)
        for restored, code in ((False, 1), (True, 0)):
            box = await engine.create(spec, SandboxPolicy(), restore=(changes, home.blobs))
            await ready(box, spec, restored=restored)
            assert ((await box.exec("echo two >>d/f")).exit_code != 0) is bool(code)
            assert await box.read("d/f") == (b"one\n" if code else b"one\ntwo\n")
    finally:
        await engine.close()


class Plain:
    """An engine that can do nothing beside what every engine must."""

    capabilities: frozenset[str] = frozenset()


def test_what_cannot_be_kept_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that cannot go on, an engine without freeze, a rule without sense."""
    fine = partial(lasting.lasting, durability=Durability.FINE, checkpoint=None)
    with serving(Turnwise(1, command)) as script:
        spec, _ = planned(script)
    with pytest.raises(UsageError, match="checkpoints are made of fine attempts only"):
        lasting.lasting(spec.agents, Durability.COARSE, "turns=3")
    for rule in ("often", "turns=0", "turns=x", "turns=1,turns=2", "hours=1", ""):
        with pytest.raises(UsageError, match="turns=10,minutes=5"):
            lasting.parse_checkpoint(rule)
    assert lasting.parse_checkpoint("minutes=2") == CheckpointRule(turns=None, minutes=2)
    assert fine(spec.agents)[0].durability is Durability.FINE
    lasting.check(spec)
    monkeypatch.setattr(plugins, "engine", lambda name, path: Plain())
    with pytest.raises(UsageError, match="the engine 'native' cannot freeze"):
        lasting.check(spec)
    monkeypatch.undo()
    monkeypatch.setattr(plugins, "harness", plugged.Sleeps)
    with pytest.raises(UsageError, match="the agent 'loop' cannot go on"):
        lasting.check(spec.model_copy(update={"agents": (spec.agents[0].model_copy(update={"harness": "1"}),)}))
