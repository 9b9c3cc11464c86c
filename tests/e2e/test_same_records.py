"""A run gives the same records in one process and on three workers of a PostgreSQL: verdicts, seeds, events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, leftovers, run_json, woodshed
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.model import EventKind
from woodshed.services.home import Home, opened

MEASURED = {"seconds", "cpu_s", "started", "at", "used", "stages_s", "blob", "output_blob", "duration_ms"}
"""What differs from one execution to the next of the very same thing."""


def plain(value: Any) -> Any:
    """Without what was measured."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in MEASURED}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def records(home: Home, run: str) -> list[Any]:
    """Of each attempt, in planned order: what was asked, what it came to, and what happened, by kind and data.

    The order of stages that overlap (closing one sandbox, verifying in the other) is chance: those are compared as a
    set.
    """
    found = []
    for attempt in home.store.attempts(run):
        assert attempt.outcome is not None
        events = [(event.kind.value, json.dumps(plain(event.data), sort_keys=True)) for event in
                  home.store.events(attempt.id)]
        told = [event for event in events if event[0] != EventKind.STAGE.value]
        outcome = plain(attempt.outcome.to_json())
        found.append(((attempt.task, attempt.agent, attempt.index, attempt.seed, attempt.executions), outcome, told,
                      sorted(event for event in events if event[0] == EventKind.STAGE.value)))
    return found


@pytest.mark.slow
def test_three_workers_on_postgresql_give_the_records_of_one_process(
    new_home: Callable[[], Path], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for ids and what was measured; groups are complete in both, and nothing is left behind."""
    monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    path, asked = new_home(), [str(EXAMPLES / "first-steps"), "-a", "oracle", "-a", "nop", "-n", "2", "--seed", "7"]
    attached = run_json(*asked, home=path)["run"]
    detached = json.loads(woodshed("run", *asked, "--detach", "--json", home=path).stdout)["run"]
    command = [sys.executable, "-m", "woodshed", "worker", "--slots", "2", "--until-empty", "--json"]
    env = {**os.environ, "WOODSHED_HOME": str(path)}
    workers = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        worker.communicate(timeout=900)
        assert worker.returncode == 0
    with opened(path) as home:
        assert records(home, detached) == records(home, attached)
        for run in (attached, detached):
            assert home.store.groups.left(run) == (0, len(home.store.groups.of(run)))
    assert leftovers(path) == []
