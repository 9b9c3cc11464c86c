"""When a shared run is over: once all its attempts have results, whatever was asked of it in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from queuekit import silence, submit
from woodshed.errors import UsageError
from woodshed.model import Assurance, AttemptState, Outcome, RunState, StopReason, Valid
from woodshed.store import Store
from woodshed.store.ids import token
from woodshed.store.queue import SubmissionState

GOOD = Outcome(verdict=Valid(rewards={"reward": 1.0}, total=1.0, assurance=Assurance.CANARY), stop=StopReason.FINISHED)
ACTS = ("claim", "finish", "finish", "finish", "give_back", "pause", "open", "cancel", "heed", "die", "close")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on either database."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as store:
        yield store


class Life:
    """A run, and the workers that may do to it what workers and people do."""

    def __init__(self, store: Store, attempts: int) -> None:
        self.store, self.workers, self.pool = store, 0, token(12)
        self.run = submit(store, attempts, pool=self.pool)  # what earlier lives left is none of its workers'
        self.enlist()

    def enlist(self) -> None:
        self.workers += 1
        self.worker = f"{self.run}-{self.workers}"
        self.store.queue.enlist(self.worker, host="elsewhere", pid=1, slots=8, pool=self.pool)

    def do(self, act: str) -> None:
        """One thing that may happen, if it can."""
        queue, held = self.store.queue, self.store.queue.held(self.worker)
        match act:
            case "claim":
                for one in queue.claim(self.worker, 1):
                    self.store.begin_execution(one.id, self.worker, claimed=True)
            case "finish" if held:
                number = self.store.attempt(held[0]).executions
                assert self.store.finish_attempt(held[0], number, GOOD, worker=self.worker)
            case "give_back" if held:
                self.store.set_aside(held[0], self.store.attempt(held[0]).executions, GOOD)
                queue.give_back(held[0], self.worker)
            case "pause" | "open" | "cancel":
                states = {"pause": SubmissionState.PAUSED, "open": SubmissionState.OPEN,
                          "cancel": SubmissionState.CANCELLED}
                try:
                    queue.turn(self.run, states[act])
                except UsageError:
                    assert self.store.run(self.run).state in (RunState.FINISHED, RunState.CANCELLED)
            case "heed":
                beat = queue.beat(self.worker, slots=8, busy=len(held))
                for attempt in beat.off if beat is not None else ():
                    self.store.set_aside(attempt, self.store.attempt(attempt).executions, GOOD)
                    queue.called_off(attempt, self.worker)
            case "die":
                silence(self.store, self.worker)
                queue.reap(10)
                self.enlist()
            case "close":
                queue.close_exhausted()

    def check(self) -> None:
        """Once somebody has looked, what is done is finished, and nothing else is."""
        self.store.queue.close_exhausted()
        run = self.store.run(self.run)
        done = all(one.state is AttemptState.DONE for one in self.store.attempts(self.run))
        assert (run.state is RunState.FINISHED) is done
        assert (run.finished_at is not None) is done or run.state is RunState.CANCELLED
        assert self.store.queue.close_exhausted() == []


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attempts=st.integers(1, 3), acts=st.lists(st.sampled_from(ACTS), min_size=4, max_size=12))
def test_a_run_is_finished_exactly_when_all_its_attempts_have_results(
    store: Store, attempts: int, acts: list[str]
) -> None:
    """Whatever order of claims, results, pauses, cancels, deaths and looks: the state tells what is so."""
    life = Life(store, attempts)
    for act in acts:
        life.do(act)
    life.check()


def test_a_run_turned_about_its_last_result_is_finished(store: Store) -> None:
    """Paused or cancelled with its last attempt at work, which still ends well, or between that and its close."""
    for turned, before in product((SubmissionState.PAUSED, SubmissionState.CANCELLED), (True, False)):
        life = Life(store, 2)
        for act in ("claim", "claim", "finish"):
            life.do(act)
        if before:
            store.queue.turn(life.run, turned, "lunch")
        life.do("finish")
        if not before:
            store.queue.turn(life.run, turned, "lunch")
            assert store.run(life.run).state is RunState.FINISHED
        assert store.queue.close_exhausted() == ([life.run] if before else [])
        finished = store.run(life.run)
        assert (finished.state, finished.reason) == (RunState.FINISHED, None)
        with pytest.raises(UsageError, match="is closed"):
            store.queue.turn(life.run, turned)
