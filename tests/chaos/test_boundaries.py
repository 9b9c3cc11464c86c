"""The kill matrix: a worker dies before or after each thing that is written, and the run ends as if it had not."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import soundness
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from soundness import Void, assert_sound
from woodshed.model import Valid
from woodshed.services.home import opened

DIES = str(Path(__file__).parent / "_dies.py")
BOUNDARIES = {
    "worker enlisted": "INSERT INTO workers",
    "attempts claimed": "UPDATE queued SET worker",
    "workflow begun": "INSERT INTO .*workflow_status",
    "execution begun": "INSERT INTO executions",
    "result, events and queue": "DELETE FROM queued",
    "group complete": "UPDATE attempt_groups SET place",
    "workflow ended": "UPDATE .*workflow_status SET status",
    "set aside": "UPDATE attempts SET state=[^,]* WHERE",
    "given back": "UPDATE queued SET delayed_at",
    "run closed": "UPDATE submissions SET .*state=",
    "worker left": "DELETE FROM workers",
}
"""What a worker writes for a run, by a statement that stands in that transaction alone."""


@pytest.fixture(params=["sqlite", "postgresql"])
def nothing(
    request: pytest.FixtureRequest, new_home: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Void]:
    """Attempts that do nothing, on either database."""
    if request.param == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    with opened(new_home()) as home:
        made = soundness.made(home, tmp_path, monkeypatch)
        try:
            yield made
        finally:
            made.close()


def dies_at(nothing: Void, when: str, boundary: str, nth: int = 1) -> None:
    """Three attempts of each of two agents, one of which stumbles; the worker dies there, another one finishes."""
    run = nothing.submit("void", "stumbles", attempts=3)
    worker = nothing.start(DIES, when, str(nth), BOUNDARIES[boundary])
    _, said = worker.communicate(timeout=600)
    assert worker.returncode == -signal.SIGKILL, (boundary, when, worker.returncode, said)
    nothing.finish()
    assert_sound(nothing.home, run)
    verdicts = [one.outcome.verdict for one in nothing.home.store.attempts(run) if one.outcome and one.agent == "void"]
    assert [isinstance(verdict, Valid) for verdict in verdicts] == [True] * 3


@pytest.mark.parametrize("nothing", ["sqlite"], indirect=True)
def test_a_worker_dies_around_a_result(nothing: Void) -> None:
    """Before it is written: the execution is lost, and a new one is counted, once."""
    dies_at(nothing, "before", "result, events and queue")


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2], ids=["first", "second"])
@pytest.mark.parametrize("boundary", [name for name in BOUNDARIES if not name.startswith(("worker", "run"))])
def test_every_boundary_of_an_attempt_may_be_the_last(nothing: Void, boundary: str, nth: int) -> None:
    """Killed before and after the first and the second time that it is written, the run ends as if nothing had been."""
    if (boundary, nth) == ("group complete", 2):
        pytest.skip("the last group completes with the run's end, which has a test of its own")
    for when in ("before", "after"):
        dies_at(nothing, when, boundary, nth)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", [name for name in BOUNDARIES if name.startswith(("worker", "run"))])
def test_every_boundary_of_a_worker_may_be_the_last(nothing: Void, boundary: str) -> None:
    """Killed as it enlists, closes the run or leaves: others see that it is gone, and the run is closed once."""
    for when in ("before", "after"):
        dies_at(nothing, when, boundary)


@pytest.mark.slow
def test_workers_that_die_every_few_seconds_finish_in_the_end(nothing: Void) -> None:
    """Of two workers one is killed again and again; every attempt is counted once, and none is blamed for long."""
    run = nothing.submit("sleeps:0.5", attempts=60)
    steady, killed = nothing.start(slots=4), 0
    while nothing.home.store.queue.left(run) > 8:
        victim = nothing.start(slots=2)
        nothing.until(lambda victim=victim: _busy(nothing, victim) or not nothing.home.store.queue.left(run))  # type: ignore[misc]
        victim.kill()
        victim.communicate()
        killed += 1
    told, errors = steady.communicate(timeout=600)
    assert told, errors
    nothing.finish()
    assert_sound(nothing.home, run)
    assert killed >= 2
    assert soundness.broken(nothing.home, run) == []


def _busy(nothing: Void, worker: subprocess.Popen[str]) -> bool:
    return any(one.pid == worker.pid and one.busy for one in nothing.home.store.queue.workers())
