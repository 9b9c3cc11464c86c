"""Schedules by the command line and real workers: a time comes, a run finishes; who dies in between loses nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import typer

from kit import EXAMPLES, leftovers
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.cli.app import app
from woodshed.cli.options import Asked
from woodshed.errors import UsageError
from woodshed.model import Agent, AttemptState, RunState
from woodshed.model.schedule import Cron, FiringState, Once, ScheduleState, Standing
from woodshed.services import scheduling
from woodshed.services.firing import Scheduler
from woodshed.services.home import opened
from woodshed.services.working import Terms, work

TASK = EXAMPLES / "first-steps" / "write-file"
ORDER = Standing(paths=(str(TASK),), agents=(Agent(name="oracle", harness="oracle"),))
DIES = """
import os, signal, sys
from woodshed.services import shared
from woodshed.services.firing import Scheduler
from woodshed.services.home import opened
submit = shared.submit
def dies(*asked, **how):
    if sys.argv[1] == "after":
        submit(*asked, **how)
    os.kill(os.getpid(), signal.SIGKILL)
shared.submit = dies
with opened() as home:
    Scheduler(home, "dies", print).tick()
"""
"""A worker's look at schedules, killed just before or just after it submits the run that it wrote a firing for."""


async def test_a_slow_look_at_schedules_keeps_no_worker_for_ever(
    new_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ends when nothing is left ends, however long each of its looks takes: it waits for one, once."""
    looks: list[None] = []

    def slow(scheduler: Scheduler) -> None:
        looks.append(None)
        time.sleep(1.2)  # longer than from one look to the next

    monkeypatch.setattr(Scheduler, "tick", slow)
    with opened(new_home()) as home:
        worked = await work(home, Terms(slots=1, until_empty=True), print)
    assert worked.ended == "empty"
    assert len(looks) == 1


async def test_a_time_comes_and_a_worker_runs_it_to_the_end(new_home: Callable[[], Path]) -> None:
    """A schedule due in a second: one worker fires it, its run finishes with a verdict, and the schedule has ended."""
    with opened(new_home()) as home:
        at = home.store.schedules.now() + timedelta(seconds=1)
        schedule = scheduling.add(home, "soon", Once(at=at), ORDER)
        while home.store.schedules.now() < at:  # noqa: ASYNC110 (a clock tells no one)
            await asyncio.sleep(0.05)
        worked = await work(home, Terms(slots=1, until_empty=True), print)
        assert (worked.done, worked.passed) == (1, 1)
        [firing] = home.store.schedules.firings(schedule.id)
        assert firing.state is FiringState.FIRED
        run = home.store.run(str(firing.run))
        assert run.state is RunState.FINISHED
        assert run.created_at >= at
        assert [attempt.state for attempt in home.store.attempts(run.id)] == [AttemptState.DONE]
        assert home.store.schedules.named("soon").state is ScheduleState.ENDED
        assert home.store.schedules.lease("next", 5)  # the worker left it
        assert leftovers(home.path) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_worker_killed_between_intent_and_run_is_healed(
    when: str, database: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL just before or just after the run is submitted: the next worker finishes the firing, with one run."""
    if database == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    monkeypatch.setenv("WOODSHED_HOME", str(tmp_path))
    with opened(tmp_path) as home:
        due = home.store.schedules.now().replace(second=0, microsecond=0)  # and not again for a day
        schedule = scheduling.add(home, "nightly", Cron(expression=f"{due.minute} {due.hour} * * *"), ORDER)
        home.store.schedules.turn(schedule.id, ScheduleState.ACTIVE, None, cursor=due - timedelta(seconds=1))
        killed = subprocess.run([sys.executable, "-c", DIES, when], check=False)
        assert killed.returncode == -signal.SIGKILL
        [firing] = home.store.schedules.firings(schedule.id)
        assert firing.state is FiringState.STARTING
        assert len(home.store.runs()) == (when == "after")
        scheduling.pause(home, "nightly")  # what was meant is done all the same
        healer = Scheduler(home, "heals", print)
        healer.tick()
        assert home.store.schedules.firings(schedule.id) == [firing]  # it has the lease of who died
        home.store.schedules.release("dies")  # as when it has run out
        healer.tick()
        [healed] = home.store.schedules.firings(schedule.id)
        [run] = home.store.runs()
        assert (healed.state, healed.run, healed.due) == (FiringState.FIRED, run.id, firing.due)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command of schedules prints, in this process."""
    monkeypatch.setenv("WOODSHED_HOME", str(tmp_path))

    def told(*words: str | Path) -> str:
        app(["schedules", *map(str, words)], standalone_mode=False)
        return capsys.readouterr().out

    return told


def test_the_commands_tell_what_they_did(said: Callable[..., str]) -> None:
    """Added, shown, fired, paused, resumed, listed and removed, each with an object and in words."""
    added = json.loads(said("add", "nightly", TASK, "-a", "oracle", "--cron", "30 2 * * *", "--zone", "Europe/Berlin",
                            "--jitter", "60", "--pin", "--deadline", "verify=1h", "--json"))
    assert len(added["next"]) == 5
    assert (added["state"], added["missed"], added["overlap"]) == ("active", "one", "skip")
    assert list(added["order"]["pinned"]) == [str(TASK)]
    assert added["order"]["deadlines"]["verify_s"] == 3600
    fired = json.loads(said("fire", "nightly", "--json"))
    assert (fired["state"], fired["run_state"], list(fired["digests"])) == ("fired", "queued", [str(TASK)])
    assert f"nightly: skipped ({fired['run']} is not over)" in said("fire", "nightly")
    shown = said("show", "nightly")
    assert shown.count("next: ") == 5
    assert {"30 2 * * * Europe/Berlin +60 s", "fired", fired["run"], "queued", "skipped"} <= {
        word for word in [*shown.split(), "30 2 * * * Europe/Berlin +60 s"] if word in shown}
    assert "nightly: paused (a holiday)" in said("pause", "nightly", "--reason", "a holiday")
    assert json.loads(said("resume", "nightly", "--json"))["reason"] is None
    assert "nightly" in said("list")
    assert json.loads(said("remove", "nightly", "--json"))["state"] == "removed"
    assert json.loads(said("list", "--json")) == {"schedules": []}
    with pytest.raises(UsageError, match="no schedule 'nightly'"):
        said("show", "nightly")


def test_a_schedule_captures_as_a_run_does(said: Callable[..., str], tmp_path: Path) -> None:
    """How tokens are asked for, whose weights answer, who plays a person and what tools there are: each firing's run

    has it.
    """
    asked = ("-a", "loop", "--model", "tiny@http://127.0.0.1:1/v1", "--capture", "vllm", "--require-capture", "tokens",
             "--policy-version", "v7", "--person", "them@http://127.0.0.1:1/v1", "--tools", "session")
    said("add", "nightly", TASK, *asked, "--cron", "30 2 * * *")
    fired = json.loads(said("fire", "nightly", "--json"))
    with opened(tmp_path) as home:
        spec = home.store.run(fired["run"]).spec
    [agent] = spec.agents
    assert agent.model is not None
    assert (agent.model.capture, agent.model.capture_least, agent.model.policy_version) == ("vllm", "tokens", "v7")
    assert agent.tools == ("session",)
    assert spec.person is not None
    assert spec.person.name == "them"


def test_a_schedule_takes_every_option_that_says_what_a_run_is() -> None:
    """The same names, defaults and words of help, and each command's own beside them."""
    group: Any = typer.main.get_command(app)
    run, add = group.get_command(None, "run"), group.get_command(None, "schedules").get_command(None, "add")
    told = [{one.name: (one.opts, one.default, one.help) for one in command.params} for command in (run, add)]
    shared = {field.name for field in fields(Asked)}
    assert len(shared) > 25
    assert {name: told[0][name] for name in shared} == {name: told[1][name] for name in shared}
    assert {"detach", "resume"} <= told[0].keys()
    assert {"cron", "missed"} <= told[1].keys()


def test_files_that_fired_are_named_without_steering_the_terminal(said: Callable[..., str], tmp_path: Path) -> None:
    """Names that hold control characters or markup are shown as they are; the object has them whole."""
    folder = tmp_path / "in"
    folder.mkdir()
    said("add", "intake", TASK, "-a", "oracle", "--files", folder, "--settle", "0")
    (folder / "\x1b[31m[bold]red").write_text("red")
    with opened(tmp_path) as home:
        scheduler = Scheduler(home, "one", print)
        scheduler.tick()
        scheduler.tick()
    shown = said("show", "intake")
    assert "\x1b" not in shown
    assert "[31m[bold]red" in shown
    [firing] = json.loads(said("show", "intake", "--json"))["firings"]
    assert firing["files"] == [{"path": "\x1b[31m[bold]red", "sha256": sha256(b"red").hexdigest(), "size_bytes": 3}]


@pytest.mark.parametrize(("words", "told"), [
    ([], "one of --cron, --at and --files"),
    (["--cron", "* * * * *", "--at", "2099-01-01T00:00"], "one of --cron, --at and --files"),
    (["--at", "2020-01-01T00:00"], "is over"),
    (["--at", "2099-01-01T00:00", "--zone", "UTC"], "a time zone is for --cron"),
    (["--cron", "* * * * *", "--settle", "2"], "Say --files"),
    (["--cron", "* * * * *", "--existing"], "Say --files"),
    (["--files", ".", "--jitter", "2"], "no time to be late for"),
    (["--files", "/nowhere/*"], "no folder to watch"),
    (["--cron", "* * * * *", "--verifier", "none"], "verifier"),
    (["--cron", "* * * * *", "--pool", "a b"], "no name of a pool"),
])
def test_a_schedule_that_cannot_work_is_refused(words: list[str], told: str, said: Callable[..., str]) -> None:
    """The message says what to do, and nothing is recorded."""
    with pytest.raises(UsageError, match=told):
        said("add", "x", TASK, "-a", "oracle", *words)
    with pytest.raises(UsageError, match="a name is"):
        said("add", "a/b", TASK, "-a", "oracle", "--cron", "* * * * *")
    assert json.loads(said("list", "--json")) == {"schedules": []}
