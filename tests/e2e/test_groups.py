"""Groups and limits as a user meets them: listed, followed, consumed, and bounds that are set and lifted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import woodshed
from kit import EXAMPLES
from woodshed.cli import groups as groups_command
from woodshed.cli import limits as limits_command
from woodshed.errors import UsageError
from woodshed.model import Agent, RunState
from woodshed.services import runs, shared
from woodshed.services.home import Home, opened
from woodshed.services.working import Terms, work
from woodshed.store.queue import SubmissionState


@pytest.fixture
def home(new_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home of the test's own."""
    path = new_home()
    monkeypatch.setenv("WOODSHED_HOME", str(path))
    with opened(path) as home:
        yield home


def left_to_workers(home: Home, tasks: list[Path], *agents: str, attempts: int) -> str:
    spec, found = runs.plan(tasks, [Agent(name=name, harness=name) for name in agents], attempts=attempts,
                            concurrency=2, seed=0, engine="native")
    return shared.submit(home, spec, found).id


def said(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_groups_of_a_run_that_workers_execute(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Partial first; complete with rewards, in order; followed to the end; consumed once; the table says as much."""
    tasks = sorted((EXAMPLES / "first-steps").iterdir())[:2]
    run = left_to_workers(home, tasks, "oracle", "nop", attempts=2)
    groups_command.groups(run, json=True)
    [told] = said(capsys)
    assert [(row["state"], row["done"], row["total"]) for row in told["groups"]] == 4 * [("partial", 0, 2)]
    await work(home, Terms(slots=2, until_empty=True), lambda sentence: None)
    assert home.store.run(run).state is RunState.FINISHED
    groups_command.groups("last", follow=True, json=True)
    followed = said(capsys)
    assert [row["place"] for row in followed] == [1, 2, 3, 4]
    assert {(row["agent"], *row["rewards"]) for row in followed} == {("oracle", 1.0, 1.0), ("nop", 0.0, 0.0)}
    consumed = await asyncio.to_thread(lambda: [row["place"] for row in woodshed.groups(run, home=home.path)])
    assert consumed == [1, 2, 3, 4]
    assert await asyncio.to_thread(lambda: list(woodshed.groups(run, home=home.path))) == []
    groups_command.groups("last")
    table = capsys.readouterr().out
    assert table.count("acked") == 4
    assert "2/2" in table


def test_a_cancelled_run_leaves_its_groups_partial(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Who follows it or consumes it is told the end, instead of waiting for ever."""
    run = left_to_workers(home, [EXAMPLES / "first-steps" / "write-file"], "oracle", attempts=2)
    shared.turn(home, run, SubmissionState.CANCELLED)
    groups_command.groups(run, follow=True, json=True)
    assert said(capsys) == []
    assert list(woodshed.groups(run, home=home.path)) == []
    groups_command.groups(run)
    assert "partial" in capsys.readouterr().out


def test_bounds_are_set_listed_and_lifted(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """As the command says them; a scope that is none is refused with what to say."""
    limits_command.set_limit("project:default", slots=3, json=True)
    limits_command.set_limit("endpoint:http://10.0.0.5:8000/v1/", per_minute=90, json=True)
    assert [(row["scope"], row["slots"], row["per_minute"]) for row in said(capsys)] == [
        ("project:default", 3, None), ("endpoint:http://10.0.0.5:8000/v1", None, 90)]
    limits_command.list_limits()
    assert "http://10.0.0.5:8000/v1" in capsys.readouterr().out
    limits_command.set_limit("project:default", json=True)
    capsys.readouterr()
    limits_command.list_limits(json=True)
    [told] = said(capsys)
    assert [row["scope"] for row in told["limits"]] == ["endpoint:http://10.0.0.5:8000/v1"]
    with pytest.raises(UsageError, match="project:NAME"):
        limits_command.set_limit("http://10.0.0.5:8000/v1", slots=1)
