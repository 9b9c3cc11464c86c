"""Whose a run is: named on the command line, shown, kept apart, and fair to each other."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kit import EXAMPLES
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.cli.app import app
from woodshed.errors import UsageError
from woodshed.model import Agent, RunState
from woodshed.services import runs
from woodshed.services.home import Home, opened
from woodshed.services.settling import Settling, Worked
from woodshed.store.queue import Lane

TASK = str(EXAMPLES / "first-steps" / "write-file")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home on either database, which commands of this process use, too."""
    monkeypatch.setenv("WOODSHED_HOME", str(tmp_path))
    if request.param == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    with opened(tmp_path) as home:
        yield home


def said(*words: str) -> Any:
    """What a command answers. Raises what it raises."""
    done = CliRunner().invoke(app, [*words, "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout)


def test_two_projects_share_workers_evenly(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many attempts and runs one has waiting, each gets half; bounds and pauses are its own."""
    large = [said("run", TASK, "-a", "oracle", "-n", "6", "--detach", "--project", "large") for _ in range(2)]
    monkeypatch.setenv("WOODSHED_PROJECT", "small")
    small = said("run", TASK, "-a", "oracle", "-n", "4", "--detach")
    assert [one["project"] for one in (*large, small)] == ["large", "large", "small"]
    queue = home.store.queue
    for name in ("one", "two"):
        queue.enlist(name, host="here", pid=1, slots=8)
    taken = [*queue.claim("one", 3), *queue.claim("two", 3)]
    assert Counter(attempt.project for attempt in taken) == {"large": 3, "small": 3}
    said("limits", "set", "project:small", "--slots", "3")
    assert [attempt.project for attempt in queue.claim("one", 1)] == ["large"]
    assert [row["run"] for row in said("show", "--project", "small")["runs"]] == [small["run"]]
    assert said("show", "last", "--project", "large")["project"] == "large"
    for run in large:
        said("runs", "pause", run["run"])
    with pytest.raises(UsageError, match="'small' has no run"):
        said("runs", "open", large[0]["run"], "--project", "small")
    assert {one["run"] for one in said("runs", "open", "--project", "large")["runs"]} == {one["run"] for one in large}
    assert said("runs", "open", "--project", "small")["runs"] == []
    status = said("runs", "status", "last", "--project", "small")
    assert (status["run"], status["attempts"], status["project"]) == (small["run"], 4, "small")


@pytest.mark.parametrize("home", ["sqlite"], indirect=True)
def test_names_are_checked_and_schedules_are_a_projects_own(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is none is refused, by option and by setting; a schedule's runs are its project's."""
    for bad in ("", "a b", "../up", "x" * 64, "é"):
        with pytest.raises(UsageError, match="no name of a project"):
            said("run", TASK, "-a", "oracle", "--detach", "--project", bad)
    monkeypatch.setenv("WOODSHED_PROJECT", "no name")
    with pytest.raises(UsageError, match="WOODSHED_PROJECT"):
        said("run", TASK, "-a", "oracle", "--detach")
    monkeypatch.delenv("WOODSHED_PROJECT")
    with pytest.raises(UsageError, match="no run"):
        said("runs", "open")
    for name in ("day", "night"):
        said("schedules", "add", "nightly", TASK, "-a", "oracle", "--cron", "0 2 * * *", "--project", name)
    with pytest.raises(UsageError, match="no schedule"):
        said("schedules", "show", "nightly")
    [listed] = said("schedules", "list", "--project", "day")["schedules"]
    fired = said("schedules", "fire", "nightly", "--project", "day")
    assert home.store.run(fired["run"]).project == "day"
    assert {one.project for one in home.store.attempts(fired["run"])} == {"day"}
    said("schedules", "remove", "nightly", "--project", "day")
    assert [one.project for one in home.store.schedules.all()] == ["night"]
    assert listed["project"] == "day"


@pytest.mark.slow
async def test_a_run_in_one_process_has_its_project(new_home: Callable[[], Path]) -> None:
    """So have its attempts, its summary, and a run that is interrupted is resumed in its own project alone."""
    with opened(new_home()) as home:
        spec, tasks = runs.plan([TASK], [Agent(name="oracle", harness="oracle")], attempts=1, concurrency=1, seed=0,
                                engine="native")
        done = await runs.start(home, spec, tasks, lambda tally: None, project="mine")
        assert (done.project, done.state) == ("mine", RunState.FINISHED)
        home.store.set_run_state(done.id, RunState.INTERRUPTED)
        assert runs.resumable(home, spec, "yours") is None
        assert runs.resumable(home, spec, "mine") is not None


def test_opening_says_when_nothing_was_paused(home: Home) -> None:
    """A project without a paused run is answered in words."""
    said("limits", "set", "project:calm", "--slots", "1")
    done = CliRunner().invoke(app, ["runs", "open", "--project", "calm"])
    assert (done.exit_code, done.stdout.strip()) == (0, "calm has no paused run")
    assert said("runs", "open", "--project", "calm") == {"runs": []}


@pytest.mark.parametrize("words", [("show",), ("show", "last"), ("runs", "status", "last"), ("runs", "open"),
                                   ("schedules", "list"), ("schedules", "show", "nightly")], ids=" ".join)
def test_an_unknown_project_is_refused_by_name(home: Home, words: tuple[str, ...]) -> None:
    """Whatever asks for what is there of a project that is nobody's says which there are, and shows no empty table."""
    said("run", TASK, "-a", "oracle", "--detach", "--project", "large")
    said("schedules", "add", "nightly", TASK, "-a", "oracle", "--cron", "0 2 * * *", "--project", "night")
    said("limits", "set", "project:bounded", "--slots", "1")
    with pytest.raises(UsageError, match=r"no project 'nobody'.*There are: bounded, default, large, night"):
        said(*words, "--project", "nobody")
    assert said("show", "--project", "default") == {"runs": []}


@pytest.mark.parametrize("home", ["sqlite"], indirect=True)
def test_nothing_at_all_is_no_project_either(home: Home) -> None:
    """Where there is neither run nor schedule an unknown project is refused all the same."""
    for words in (("show",), ("schedules", "list")):
        with pytest.raises(UsageError, match=r"no project 'nobody'.*There are: default\."):
            said(*words, "--project", "nobody")


def test_attempts_that_break_together_tell_once(home: Home) -> None:
    """One of them pauses the run and tells of it; the others find it paused."""
    run = said("run", TASK, "-a", "oracle", "-n", "2", "--detach")["run"]
    told: list[str] = []
    worked = Worked("one")
    settling = Settling(home, Lane.MAIN, None, worked, lambda _: "", told.append)  # type: ignore[arg-type]  # executes nothing
    together = threading.Barrier(6)

    def pause() -> None:
        together.wait()
        settling.pause(run, "no model answers")

    with ThreadPoolExecutor(6) as threads:
        for waiting in [threads.submit(pause) for _ in range(6)]:
            waiting.result()
    assert told == [f"{run} is paused: no model answers"]
