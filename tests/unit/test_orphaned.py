"""Orphaned: an acted attempt whose service is killed has a result that is nobody's reward, and keeps its evidence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import EXAMPLES
from servekit import KEY, blank_home
from woodshed.engine.lease import Lease
from woodshed.errors import Cause
from woodshed.model import EventKind, Invalid, RunState
from woodshed.model.acted import Act, Begin
from woodshed.services import orphaned
from woodshed.services.home import Home
from woodshed.services.janitor import Janitor, nothing
from woodshed.store import ExecutionState
from woodshed.trainers.client import Client


@contextmanager
def a_service(home: Home) -> Iterator[Client]:
    """'woodshed serve' over the first steps, a process of its own, which is killed at the end."""
    environment = {**os.environ, "WOODSHED_HOME": str(home.path), "WOODSHED_SERVE_KEY": KEY}
    server = subprocess.Popen(
        [sys.executable, "-m", "woodshed", "serve", "--tasks", str(EXAMPLES / "first-steps"), "--port", "0", "--json",
         "-c", "0"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield Client(json.loads(server.stdout.readline())["url"], KEY)
    finally:
        server.kill()
        server.communicate(timeout=600)


def killed_while_it_is_acted(home: Home) -> str:
    """The id of an attempt of which one call was carried out before its service was killed."""
    with a_service(home) as client:
        begun = client.begin(Begin(task="write-file"))
        client.act(begun.id, Act(tool="bash", arguments={"command": "echo 'hello world' > hello.txt; sleep 1.2"}))
        client.act(begun.id, Act(tool="bash", arguments={"command": "true"}))
    return begun.id


def is_broken(home: Home, attempt: str) -> bool:
    """Whether it has its result: of an environment that died, with what was recorded before in the lost execution."""
    found = home.store.attempt(attempt)
    if found.outcome is None:
        return False
    verdict = found.outcome.verdict
    assert isinstance(verdict, Invalid)
    assert (verdict.cause, verdict.detail) == (Cause.ENVIRONMENT, orphaned.DETAIL)
    assert [one.state for one in home.store.executions(attempt)] == [ExecutionState.LOST, ExecutionState.DONE]
    calls = [one.data for one in home.store.events(attempt, 1) if one.kind is EventKind.TOOL_CALL]
    assert "hello world" in calls[0]["arguments"]["command"]
    assert home.store.run(found.run).state is RunState.FINISHED
    return True


async def test_a_killed_service_leaves_no_acted_attempt_open(new_home: Callable[[], Path]) -> None:
    """Whoever cleans up ends its run, once, with a cause and the evidence; what a living process has is left alone."""
    with blank_home(new_home()) as home:
        attempt = killed_while_it_is_acted(home)
        run = home.store.run(home.store.attempt(attempt).run)
        assert run.state is not RunState.FINISHED
        with Lease(home.path) as lease:
            living = run.model_copy(update={"id": "living", "executor": lease.executor})
            home.store.create_run(living, [])
            janitor = Janitor(home, nothing)
            assert (await janitor.clean()).acted == 1
            assert is_broken(home, attempt)
            assert (await janitor.clean()).acted == 0
            assert home.store.run("living").state is not RunState.FINISHED
        assert orphaned.end(home) == ["living"]
        assert orphaned.end(home) == []


@pytest.mark.slow
def test_the_next_service_ends_what_the_killed_one_left(new_home: Callable[[], Path]) -> None:
    """'woodshed serve' without a worker ends it on start."""
    with blank_home(new_home()) as home:
        attempt = killed_while_it_is_acted(home)
        with a_service(home) as client:
            begun = client.begin(Begin(task="write-file"))
            assert client.finish(begun.id).reward == 0.0
            while not is_broken(home, attempt):  # it is looked at beside the requests
                time.sleep(0.05)
