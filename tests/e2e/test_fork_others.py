"""Forks of programs of others, by other agents, and of branches: each state is the one that was, each way is new."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blackbox import AGENT
from kit import EXAMPLES, leftovers
from turnwise import Turnwise, serving
from woodshed.errors import UsageError
from woodshed.model import (
    Agent,
    AgentLimits,
    Attempt,
    ChangeSet,
    EventKind,
    Invalid,
    ModelSpec,
    Valid,
)
from woodshed.model.fork import ForkSpec
from woodshed.services import forking, report, runs
from woodshed.services.history import history
from woodshed.services.home import Home, opened
from woodshed.services.replaying import replay
from woodshed.services.runs import Tally
from woodshed.services.source import changes_of
from woodshed.tasks import toml

TASK = EXAMPLES / "first-steps" / "write-file"


class Ending(Turnwise):
    """Says that it is done in words, as programs of others expect."""

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        found = super().answer(body)
        message = found["choices"][0]["message"]
        if message["tool_calls"][0]["function"]["name"] == "finish":
            message.pop("tool_calls")
        else:
            message["tool_calls"][0]["id"] = f"c{len(body['messages'])}"
        return found


@pytest.fixture
def home(new_home: Callable[[], Path]) -> Iterator[Home]:
    """A home of the test's own."""
    with opened(new_home()) as home:
        yield home


def ignore(tally: Tally) -> None:
    """Nobody looks."""


def command(turn: int) -> str:
    """Every step has a state of its own."""
    return f"echo {turn} >>log; mkdir -p d{turn}; ln -sf d{turn} now; cat log"


def small(folder: Path, script: Turnwise, agent: str = AGENT) -> Agent:
    """A program of others, in a file."""
    file = folder / "small.toml"
    file.write_text(toml.dumps({
        "name": "small", "command": ["python3", "{home}/agent.py", "{instruction_file}"],
        "files": {"agent.py": agent}, "result_code": r"^exit code: (\d+)"}))
    return Agent(name="small", harness=f"external:{file}", model=ModelSpec(name="turnwise", base_url=script.url))


def looped(script: Turnwise, name: str = "loop") -> Agent:
    return Agent(name=name, harness="loop", model=ModelSpec(name="turnwise", base_url=script.url),
                 limits=AgentLimits(turns=50))


NOBODY = Agent(name="nop", harness="nop")


async def attempted(home: Home, agent: Agent) -> Attempt:
    spec, tasks = runs.plan([TASK], [agent], attempts=1, concurrency=1, seed=0, engine="native")
    [attempt] = home.store.attempts((await runs.start(home, spec, tasks, ignore)).id)
    assert attempt.outcome is not None
    assert isinstance(attempt.outcome.verdict, Valid)
    return attempt


async def forked(home: Home, parent: Attempt, step: int, *agents: Agent, n: int = 1, **how: Any) -> list[Attempt]:
    fork = ForkSpec(attempt=parent.id, execution=parent.executions, step=step, **how)
    spec, tasks = forking.plan(home, fork, agents, attempts=n, concurrency=2)
    return home.store.attempts((await forking.start(home, spec, tasks, ignore)).id)


def files(home: Home, attempt: Attempt) -> ChangeSet:
    found = changes_of(history(home, attempt))
    assert found is not None
    return found


async def test_a_program_of_others_does_its_first_steps_again_and_goes_on(home: Home, tmp_path: Path) -> None:
    """Recorded answers are never asked for again, its usage is its own, and its files are those of one who did all."""
    with serving(Ending(3, command)) as script:
        parent = await attempted(home, small(tmp_path, script))
        asked = script.asked.copy()
        [branch] = await forked(home, parent, 2)
        assert {turn: script.asked[turn] - asked[turn] for turn in range(1, 5)} == {1: 0, 2: 0, 3: 1, 4: 1}
    assert files(home, branch) == files(home, parent)
    told = report.trace(home, branch.id)
    assert (told["turns"], told["tool_calls"]) == (2, 1)
    whole = report.trace(home, parent.id)["steps"]
    assert [dict(step, inherited=False) for step in told["steps"]] == whole
    assert sum(step["inherited"] and step["source"] == "agent" for step in told["steps"]) == 2
    again = next(event.data for event in home.store.events(branch.id) if event.data.get("state") == "repeated")
    assert (again["same"], again["diverged"], again["unasked"]) == (2, [], 0)
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_its_state_after_every_step_is_that_of_a_model_which_said_no_more(home: Home, tmp_path: Path) -> None:
    """For all k, file by file: nobody goes on there, and a run whose model ended after k steps."""
    with serving(Ending(3, command)) as script:
        parent = await attempted(home, small(tmp_path, script))
        for step in range(4):
            [branch] = await forked(home, parent, step, NOBODY)
            with serving(Ending(step, command)) as shorter:
                alone = await attempted(home, small(tmp_path, shorter))
            assert files(home, branch) == files(home, alone)


UNSTEADY = AGENT.replace('"content": f"', '"content": open("/proc/sys/kernel/random/uuid").read() + f"')


async def test_a_program_that_does_otherwise_is_refused_and_nothing_is_asked(home: Home, tmp_path: Path) -> None:
    """The call is named and there is no run; with --diverged it goes on, and each branch's record says so."""
    with serving(Ending(2, command)) as script:
        parent = await attempted(home, small(tmp_path, script, UNSTEADY))
        asked, before = script.asked.total(), len(home.store.runs())
        with pytest.raises(UsageError, match=r"did not come about again: t0001c001 \(bash: "):
            await forked(home, parent, 1)
        assert (script.asked.total(), len(home.store.runs())) == (asked, before)
        [branch] = await forked(home, parent, 1, diverged=True)
    again = next(event.data for event in home.store.events(branch.id) if event.data.get("state") == "repeated")
    assert [one["call"] for one in again["diverged"]] == ["t0001c001"]
    assert branch.outcome is not None
    assert isinstance(branch.outcome.verdict, Valid)



@pytest.mark.slow
async def test_a_branch_that_alone_does_otherwise_is_a_fault_of_ours(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came about when the state was tried, and not in a branch, makes that one invalid; nothing is sent."""
    with serving(Ending(2, command)) as script:
        parent = await attempted(home, small(tmp_path, script, UNSTEADY))
        asked = script.asked.total()
        monkeypatch.setattr("woodshed.services.ground.Ground._agree", lambda self, found: None)
        [branch] = await forked(home, parent, 1)
        assert script.asked.total() == asked
    assert branch.outcome is not None
    assert isinstance(branch.outcome.verdict, Invalid)
    assert "did not come about again" in branch.outcome.verdict.detail


async def test_another_agent_takes_over_from_a_program_of_others_and_is_told(home: Home, tmp_path: Path) -> None:
    """It begins a conversation of its own in the files that were left, and hears what was called, and a person."""
    with serving(Ending(2, command)) as script, serving(Turnwise(1, lambda turn: "cat log; echo mine >>log")) as other:
        parent = await attempted(home, small(tmp_path, script))
        [branch] = await forked(home, parent, 2, looped(other), say="Leave d1 alone.")
        first = json.dumps(other.requests[0]["messages"])
        said = other.requests[1]["messages"][-1]["content"]
    assert "Somebody else has begun this work" in first
    assert "mkdir -p d2" in first
    assert "Leave d1 alone." in first
    assert "1\n2" in said
    kept = {change.path for change in files(home, branch).changes}
    assert {"/workspace/d1", "/workspace/d2", "/workspace/log"} <= kept
    begun = next(event.data for event in home.store.events(branch.id) if event.data.get("state") == "forked")
    assert begun["taken_up"] is False


async def test_a_branch_is_forked_like_any_attempt(home: Home) -> None:
    """Its conversation is the whole one, with what it was told on the way; its steps count from the beginning."""
    with serving(Turnwise(4, command)) as script:
        parent = await attempted(home, looped(script))
        [branch] = await forked(home, parent, 1, say="Mind the log.")
        asked = script.asked.copy()
        [again] = await forked(home, branch, 3, say="And the links.")
        assert {turn: script.asked[turn] - asked[turn] for turn in range(1, 6)} == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1}
        told = [str(message["content"]) for message in script.requests[-1]["messages"]]
        [third] = await forked(home, again, 4)
        last = [str(message["content"]) for message in script.requests[-1]["messages"]]
    places = [next(number for number, text in enumerate(told) if word in text) for word in
              ("Mind the log.", "And the links.")]
    assert places == sorted(places)
    assert sum("Mind the log." in text for text in told) == 1
    assert last == told
    assert files(home, again) == files(home, third) == files(home, parent)
    steps = report.trace(home, third.id)["steps"]
    assert [step["inherited"] for step in steps if step["source"] == "agent"] == [True] * 4 + [False]
    whose = [event.data["of"] for event in home.store.events(third.id)
             if event.kind is EventKind.MODEL_RESULT and event.data.get("inherited")]
    assert whose == [parent.id, branch.id, branch.id, again.id]
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_a_branch_of_who_took_over_stands_on_what_was_there_before(home: Home, tmp_path: Path) -> None:
    """Its own steps are done again upon the state that it began in; those before them are another's to fork."""
    with serving(Ending(2, command)) as script, serving(Turnwise(2, lambda turn: f"echo own{turn} >>log")) as other:
        parent = await attempted(home, small(tmp_path, script))
        [taken] = await forked(home, parent, 1, looped(other))
        [branch] = await forked(home, taken, 2, NOBODY)
        with pytest.raises(UsageError, match=f"the first 1 step of {taken.id} are {parent.id}'s"):
            await forked(home, taken, 0, NOBODY)
        asked = other.asked.copy()
        then = other.requests[-1]["messages"]
        [goes_on] = await forked(home, taken, 2)
        assert other.requests[-1]["messages"] == then  # with what it was told when it took over
        assert "Somebody else has begun" in json.dumps(then)
        assert {turn: other.asked[turn] - asked[turn] for turn in range(1, 4)} == {1: 0, 2: 1, 3: 1}
    [log] = [change for change in files(home, branch).changes if change.path == "/workspace/log"]
    assert log.sha256 is not None
    with home.blobs.open(log.sha256) as content:
        assert content.read() == b"1\nown1\n"
    assert files(home, goes_on) == files(home, taken)
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_branches_are_replayed_like_any_attempt(home: Home, tmp_path: Path) -> None:
    """Those that took up a conversation, of programs of others too, and those that began one where another stopped."""
    with serving(Ending(2, command)) as script, serving(Turnwise(3, command)) as other:
        parent = await attempted(home, small(tmp_path, script))
        [repeated] = await forked(home, parent, 1)
        [taken] = await forked(home, parent, 1, looped(other))
        [told] = await forked(home, taken, 2, say="Go on.")
        [nobody] = await forked(home, taken, 2, NOBODY)
        asked = script.asked.total(), other.asked.total()
        for branch in (repeated, taken, told, nobody):
            [row] = (await replay(home, branch.id))["replayed"]
            assert (row["same"], row["invalid"], row["files"]) == (True, None, []), branch.id
        assert (script.asked.total(), other.asked.total()) == asked
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_a_program_that_took_over_is_forked_with_what_it_was_told(home: Home, tmp_path: Path) -> None:
    """Another program goes on where one stopped; a branch of it does its own steps again, upon the same files."""
    with serving(Turnwise(2, command)) as first, serving(Ending(2, lambda turn: f"echo own{turn} >>log")) as script:
        parent = await attempted(home, looped(first))
        [taken] = await forked(home, parent, 1, small(tmp_path, script))
        then = script.requests[-1]["messages"]
        assert "Somebody else has begun" in json.dumps(then)
        asked = script.asked.copy()
        [branch] = await forked(home, taken, 2)
        assert {turn: script.asked[turn] - asked[turn] for turn in range(1, 4)} == {1: 0, 2: 1, 3: 1}
        assert script.requests[-1]["messages"] == then
    assert files(home, branch) == files(home, taken)
    assert leftovers(home.path) == []
