"""Attempts at tasks of several steps done again, branched off in the middle, and spoken to: everything real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepped import SCRIPT, STEPS, StepScript, a_task
from turnwise import serving
from woodshed.errors import UsageError
from woodshed.measure.sections import sections
from woodshed.model import (
    Agent,
    AgentLimits,
    Attempt,
    CheckpointRule,
    Durability,
    EventKind,
    ModelSpec,
    Run,
    Valid,
)
from woodshed.model.fork import ForkSpec
from woodshed.services import forking, regrading, replaying, report, rulesets, runs
from woodshed.services.history import history
from woodshed.services.home import Home, opened
from woodshed.services.runs import Tally
from woodshed.services.source import changes_of
from woodshed.tasks.load import load_task

SPOKEN = """
[[woodshed.feedback]]
step = "two"
says = "Say d twice."
when = { turn = 1 }
expects = { command = "echo d" }

[[woodshed.feedback]]
says = "Done already?"
when = { finish = true }
"""
RULES = '[[rules]]\nkind = "tool_budget"\ncalls = 1\n[[rules]]\nkind = "tests"\n'


@pytest.fixture
def home(new_home: Callable[[], Path]) -> Iterator[Home]:
    """A home of the test's own."""
    with opened(new_home()) as home:
        yield home


def ignore(tally: Tally) -> None:
    """Nobody looks."""


def looped(script: StepScript, **how: Any) -> Agent:
    return Agent(name="loop", harness="loop", model=ModelSpec(name="stepwise", base_url=script.url),
                 limits=AgentLimits(turns=20), **how)


async def attempted(home: Home, task: Path, *agents: Agent) -> Run:
    spec, tasks = runs.plan([task], agents, attempts=1, concurrency=1, seed=0, engine="native")
    return await runs.start(home, spec, tasks, ignore)


async def forked(home: Home, parent: Attempt, step: int, *agents: Agent, say: str | None = None) -> Attempt:
    """The branch of a fork."""
    fork = ForkSpec(attempt=parent.id, execution=parent.executions, step=step, say=say)
    spec, tasks = forking.plan(home, fork, agents, attempts=1, concurrency=2)
    run = await forking.start(home, spec, tasks, ignore)
    return home.store.attempts(run.id)[0]


def verdict(attempt: Attempt) -> Valid:
    assert attempt.outcome is not None
    assert isinstance(attempt.outcome.verdict, Valid), attempt.outcome.verdict
    return attempt.outcome.verdict


async def test_steps_are_spoken_to_and_come_out_again(home: Home, tmp_path: Path) -> None:
    """Turns are counted in a step: what is of one is said there, the rest once in each; a replay hears the same."""
    folder = a_task(tmp_path / "task").folder
    with (folder / "task.toml").open("a") as file:
        file.write(SPOKEN)
    script = {**SCRIPT, "two": (*SCRIPT["two"], "echo d >>log")}
    with serving(StepScript(0, str, script=script)) as model:
        run = await attempted(home, folder, looped(model), Agent(name="oracle", harness="oracle"))
        asked = model.asked_in.copy()
        told = await replaying.replay(home, run.id)
        assert model.asked_in == asked
    assert (told["verdicts"], told["same"], told["left_out"]) == (2, 2, [])
    attempt = home.store.attempts(run.id)[0]
    said = [(section.step, event.data["step"], event.data["remark"]) for section in sections(history(home, attempt))
            for event in section.events if event.kind is EventKind.FEEDBACK]
    assert [(step, number) for step, _, number in said] == [("one", 1), ("two", 0), ("two", 1), ("three", 1)]
    assert ("two", 1, 0) in said
    assert verdict(attempt).passed


@pytest.mark.parametrize("durability", [
    Durability.COARSE, pytest.param(Durability.FINE, marks=pytest.mark.slow)], ids=str)
async def test_a_branch_goes_on_in_its_step(durability: Durability, home: Home, tmp_path: Path) -> None:
    """After the first turn of the second step: the first one's verdict is the parent's, and nothing of it is asked."""
    folder = a_task(tmp_path / "task").folder
    with serving(StepScript(0, str)) as model:
        run = await attempted(home, folder, looped(model, durability=durability, checkpoint=CheckpointRule(turns=1)))
        [parent] = home.store.attempts(run.id)
        before = model.asked_in.copy()
        branch = await forked(home, parent, 4, say="Go on.")
        assert model.asked_in - before == {("two", 1): 1, ("two", 2): 1, ("three", 0): 1, ("three", 1): 1}
        assert verdict(branch) == verdict(parent)
        assert changes_of(history(home, branch)) == changes_of(history(home, parent))
        assert branch.outcome is not None
        assert branch.outcome.usage.turns == 4
        assert "Go on." in str(next(r for r in model.requests[::-1] if "Do step two" in str(r)))
        assert "Go on." not in str(model.requests[-1])
    shown = report.trace(home, branch.id)
    agents = [step["inherited"] for step in shown["steps"] if step["source"] == "agent"]
    assert agents == [True] * 4 + [False] * 4
    found = {section.step: section for section in sections(home.store.events(branch.id))}
    assert list(found) == [None, *STEPS]
    names = [event.data["call"] for event in home.store.events(branch.id) if event.kind is EventKind.MODEL_RESULT]
    assert names == [f"m{number:05d}" for number in range(1, 9)]
    (tmp_path / "rules.toml").write_text(RULES)
    made = [regrading.regrade(home, home.store.run(one.run), rulesets.load(tmp_path / "rules.toml"))
            for one in (parent, branch)]
    first, second = (home.store.regraded(one.id)[0].verdict for one in made)
    assert isinstance(first, Valid)
    assert first == second
    assert first.rewards["one/tool_budget"] == 0.5


@pytest.mark.slow
async def test_a_branch_at_the_end_of_a_step_begins_the_next(home: Home, tmp_path: Path) -> None:
    """Its setup runs, and whoever goes on is told the next step; in the middle of one, it is that step's reference."""
    folder = a_task(tmp_path / "task").folder
    with serving(StepScript(0, str)) as model:
        run = await attempted(home, folder, looped(model))
        [parent] = home.store.attempts(run.id)
        before = model.asked_in.copy()
        again = await forked(home, parent, 3, say="Begin.")
        assert {step for step, _ in model.asked_in - before} == {"two", "three"}
        assert verdict(again) == verdict(parent)
        oracle = await forked(home, parent, 4, Agent(name="oracle", harness="oracle"))
        assert verdict(oracle).rewards == verdict(parent).rewards
        nop = await forked(home, parent, 3, Agent(name="nop", harness="nop"))
        assert verdict(nop).rewards == {"reward": 1 / 3, "one/reward": 1.0, "two/reward": 0.0}
        with pytest.raises(UsageError, match="nothing goes on after step 8"):
            await forked(home, parent, 8)
        with pytest.raises(UsageError, match="has 8 steps"):
            await forked(home, parent, 9)
    calls = [event.data["arguments"]["command"] for event in home.store.events(oracle.id)
             if event.kind is EventKind.TOOL_CALL and not event.data.get("inherited")]
    assert calls == ["bash /solution/solve.sh"] * 2


def test_a_remark_names_a_step_that_there_is(tmp_path: Path) -> None:
    """Else it is refused by name; so is a step in a task that has none."""
    folder = a_task(tmp_path / "task").folder
    file = folder / "task.toml"
    whole = file.read_text()
    file.write_text(whole + SPOKEN.replace('"two"', '"four"'))
    with pytest.raises(UsageError, match=r"there is no step 'four'\. Known: one, two, three"):
        load_task(folder)
    file.write_text(whole + SPOKEN)
    assert [remark.step for remark in load_task(folder).feedback] == ["two", None]
