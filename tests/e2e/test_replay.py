"""Replay with everything real: what was recorded comes out again, and what does not is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blackbox import AGENT, answering, calling
from kit import EXAMPLES, leftovers, woodshed
from turnwise import Turnwise, serving
from woodshed.measure.trajectory import from_events
from woodshed.model import Agent, AgentLimits, ModelSpec, Run, Sampling
from woodshed.services import agents, replaying, runs
from woodshed.services.history import history
from woodshed.services.home import Home, opened
from woodshed.services.runs import Tally
from woodshed.tasks import toml

FIRST = EXAMPLES / "first-steps"


@pytest.fixture
def home(new_home: Callable[[], Path]) -> Iterator[Home]:
    """A home of the test's own."""
    with opened(new_home()) as home:
        yield home


def ignore(tally: Tally) -> None:
    """Nobody looks."""


def plain(*names: str) -> list[Agent]:
    return [Agent(name=name, harness=name) for name in names]


def looped(script: Turnwise, **limits: int) -> Agent:
    return Agent(name="loop", harness="loop", model=ModelSpec(name="turnwise", base_url=script.url),
                 limits=AgentLimits(**limits))


async def ran(home: Home, tasks: list[Path], agents: list[Agent], *, n: int = 1) -> Run:
    spec, found = runs.plan(tasks, agents, attempts=n, concurrency=2, seed=0, engine="native")
    return await runs.start(home, spec, found, ignore)


async def replayed(home: Home, run: Run) -> dict[str, Any]:
    told = await replaying.replay(home, run.id)
    assert told["left_out"] == []
    return told


async def test_a_few_attempts_come_out_again(home: Home) -> None:
    """The reference, an agent that does nothing, a model that succeeds and one that is cut off: nothing is recorded."""
    with serving(Turnwise(2, lambda turn: "echo hello world >hello.txt; date; ls -l")) as script:
        run = await ran(home, [FIRST / "write-file"], [*plain("oracle", "nop"), looped(script)])
        short = await ran(home, [FIRST / "write-file"], [looped(script, turns=1)], n=2)
        asked, recorded = script.asked.copy(), len(home.store.runs())
        told = [await replayed(home, one) for one in (run, short)]
        assert script.asked == asked
    assert [one["verdicts"] for one in told] == [3, 2]
    assert [row["same"] for one in told for row in one["replayed"]] == [True] * 5
    assert all(row["files"] == [] for one in told for row in one["replayed"])
    assert [row["stop_now"] for row in told[1]["replayed"]] == ["turn_limit"] * 2
    assert len(home.store.runs()) == recorded
    assert leftovers(home.path) == []


@pytest.mark.slow
async def test_what_goes_otherwise_is_told(home: Home) -> None:
    """An output that is another one each time is a divergence; the clock and a temporary name are none."""
    with serving(Turnwise(2, lambda turn: ("mktemp; date +%s", "cat /proc/sys/kernel/random/uuid | tee u")[turn - 1]
                          )) as script:
        run = await ran(home, [FIRST / "write-file"], [looped(script)])
    told = await replayed(home, run)
    [row] = told["replayed"]
    assert (told["verdicts"], row["same"], row["settled"]) == (1, False, 1)
    assert [(one["call"], one["what"]) for one in row["diverged"]] == [("t0002c001", "another output")]
    assert row["files"] == ["/workspace/u"]
    done = woodshed("replay", row["attempt"], "--json", home=home.path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["diverged"] == 1


@pytest.mark.slow
async def test_fifty_recorded_attempts_come_out_again(home: Home, tmp_path: Path) -> None:
    """Every example by its reference, doing nothing, a scripted model, and the recorded calls played from a file."""
    tasks = sorted(path.parent for path in EXAMPLES.rglob("task.toml"))
    with serving(Turnwise(3, lambda turn: f"ls -la; echo {turn} >>notes; wc -l notes; date; python3 -c 'import os; "
                                          f"print(os.getpid() > 0)'")) as script:
        by_model = await ran(home, tasks, [looped(script)])
    by_rote = await ran(home, tasks, plain("oracle", "nop"))
    taken = home.store.attempts(by_model.id)[0]
    file = tmp_path / "calls.json"
    file.write_text(json.dumps(from_events(history(home, taken), task="t", agent="a").to_json()))
    from_file = await ran(home, tasks[:4], plain(f"replay:{file}"))
    told = [await replayed(home, run) for run in (by_model, by_rote, from_file)]
    assert sum(one["attempts"] for one in told) >= 50
    wrong = [row for one in told for row in one["replayed"] if row["verdict"] or row["invalid"]]
    assert wrong == []


@pytest.mark.slow
async def test_a_program_of_others_is_run_again_against_the_recorded_answers(home: Home, tmp_path: Path) -> None:
    """It asks our gateway as it did then, acts in a sandbox of its own, and nobody else is asked."""
    file = tmp_path / "small.toml"
    file.write_text(toml.dumps({"name": "small", "command": ["python3", "{home}/agent.py", "{instruction_file}"],
                                "files": {"agent.py": AGENT}, "result_code": r"^exit code: (\d+)"}))
    write = calling("bash", command="echo 'hello world' > hello.txt; date")
    with answering(write, {"content": "done"}) as (model, asked):
        agents_ = agents.build([f"external:{file}"], agents.parse_model(model, sampling=Sampling()))
        run = await ran(home, [FIRST / "write-file"], list(agents_))
        assert len(asked) == 2
        told = await replayed(home, run)
        assert len(asked) == 2
    [row] = told["replayed"]
    assert (row["same"], row["passed_now"], row["calls"]) == (True, True, 1)
    assert leftovers(home.path) == []
