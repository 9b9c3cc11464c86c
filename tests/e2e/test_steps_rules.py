"""Reward rules over tasks of several steps, as real runs, and graded once more from the store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepped import STEPS, a_task
from woodshed.errors import UsageError
from woodshed.model import Agent, EventKind, Outcome, Run, Valid
from woodshed.services import regrading, replaying, rulesets, runs
from woodshed.services.home import Home, opened
from woodshed.services.runs import Tally
from woodshed.tasks.load import load_task

RULES = """
[[rules]]
kind = "tests"
gate = true

[[rules]]
kind = "patch_size"

[[rules]]
kind = "tool_budget"
calls = 1

[[rules]]
kind = "check"
command = "test -e log"
"""
OTHER = '[[rules]]\nkind = "scope"\n[[rules]]\nkind = "tests"\n'
BLOCKED = {"task.toml": '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n[[steps]]\nname = "three"\n',
           "steps/two/workdir/setup.sh": "cat log more | wc -l >seen; test -e log\n"}


def ignore(tally: Tally) -> None:
    """Nobody looks."""


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Path]) -> Iterator[Home]:
    """A home of the module's own."""
    with opened(new_home()) as home:
        yield home


@pytest.fixture
def rules(tmp_path: Path) -> Callable[[str], Any]:
    """Reads rules as a file of them is read."""
    def read(text: str) -> Any:
        (tmp_path / "rules.toml").write_text(text)
        return rulesets.load(tmp_path / "rules.toml")

    return read


async def run(home: Home, task: Path, **how: Any) -> Run:
    """A finished run of the reference and of somebody who does nothing."""
    agents = [Agent(name=name, harness=name) for name in ("oracle", "nop")]
    spec, tasks = runs.plan([task], agents, attempts=1, concurrency=2, seed=0, engine="native", **how)
    return await runs.start(home, spec, tasks, ignore)


def verdicts(home: Home, run: Run) -> dict[str, Valid]:
    """By agent."""
    found = {one.agent: one.outcome for one in home.store.attempts(run.id)}
    assert all(isinstance(one, Outcome) and isinstance(one.verdict, Valid) for one in found.values()), found
    return {name: one.verdict for name, one in found.items()}  # type: ignore[union-attr,misc]  # looked at above


async def test_rules_hold_for_each_step_and_again_from_the_store(
    home: Home, tmp_path: Path, rules: Callable[[str], Any]
) -> None:
    """Each step is graded by what was done in it against the references up to it; regrades give the same verdicts."""
    a_task(tmp_path / "task")
    made = await run(home, tmp_path / "task", rules=rules(RULES))
    given = verdicts(home, made)
    names = ("reward", "tests", "patch_size", "tool_budget", "check")
    ones = {f"{step}/{name}": 1.0 for step in STEPS for name in names}
    assert ones.items() <= given["oracle"].rewards.items()
    assert (given["oracle"].total, given["oracle"].passed, given["nop"].total) == (1.0, True, 0.0)
    assert given["nop"].rewards["one/tool_budget"] == 1.0
    assert given["nop"].rewards["tool_budget"] == pytest.approx(1 / 3)
    again = regrading.regrade(home, made, rules(RULES))
    by_id = {one.id: one.outcome for one in home.store.attempts(made.id)}
    for one in home.store.regraded(again.id):
        assert one.verdict == by_id[one.attempt].verdict  # type: ignore[union-attr]  # all are finished
    assert {part.name for one in home.store.regraded(again.id) for part in one.components} >= {"three/patch_size"}
    told = await replaying.replay(home, made.id)
    assert (told["verdicts"], told["left_out"]) == (2, [])


@pytest.mark.slow
async def test_a_run_without_rules_is_graded_step_by_step(
    home: Home, tmp_path: Path, rules: Callable[[str], Any]
) -> None:
    """The reference's patch of each step is found in the store; where the task has changed, nothing is made up."""
    a_task(tmp_path / "task", BLOCKED)
    made = await run(home, tmp_path / "task")
    before = verdicts(home, made)
    assert (before["oracle"].total, before["nop"].flags) == (1.0, ("setup_failed",))
    again = regrading.regrade(home, made, rules(OTHER))
    names = {one.id: one.agent for one in home.store.attempts(made.id)}
    after = {names[one.attempt]: one for one in home.store.regraded(again.id)}
    oracle, nop = after["oracle"].verdict, after["nop"].verdict
    assert isinstance(oracle, Valid)
    assert isinstance(nop, Valid)
    assert (oracle.total, oracle.rewards["two/scope"]) == (1.0, 1.0)
    assert (nop.total, [part.name for part in after["nop"].components]) == (0.0, ["one/scope", "one/tests"])
    (tmp_path / "task" / "instruction.md").write_text("Changed.\n")
    lost = regrading.regrade(home, made, rules(OTHER))
    assert [one.verdict.total for one in home.store.regraded(lost.id)] == [None, None]  # type: ignore[union-attr]
    kinds = [event.kind for one in names for event in home.store.events(one)]
    assert EventKind.GRADE not in kinds


def test_rules_ask_for_what_every_step_has(tmp_path: Path, rules: Callable[[str], Any]) -> None:
    """A test that only one step has is refused by name, of a run's rules and of a task's own."""
    wanted = '[[{}rules]]\nkind = "tests"\ntests = ["t::a"]\n'
    ours = '[woodshed.steps.one]\nexpected_tests = ["t::a"]\nframework = "pytest"\n'
    task = a_task(tmp_path / "task")
    file = task.folder / "task.toml"
    file.write_text(file.read_text() + ours)
    with pytest.raises(UsageError, match="'t::a' is not among the expected tests"):
        rulesets.check(rules(wanted.format("")), [load_task(task.folder)], print)
    file.write_text(file.read_text() + wanted.format("woodshed."))
    with pytest.raises(UsageError, match="of step two"):
        load_task(task.folder)
    shutil.rmtree(task.folder)
