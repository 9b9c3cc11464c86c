"""Whatever comes in whatever order: a group is consumed once, none is lost, and none that is stale is handed out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kit import EXAMPLES
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from servekit import blank_home, end
from woodshed.errors import Conflict
from woodshed.model import Agent, RunSpec
from woodshed.model.delivery import OnStale
from woodshed.model.event import now
from woodshed.services import deliveries as service
from woodshed.services import rollouts, shared
from woodshed.services.home import Home
from woodshed.store import Blobs, Store, new_run_id
from woodshed.store.rollouts import Request
from woodshed.store.tables import attempt_groups
from woodshed.tasks.load import load_task


class Trainer(RuleBasedStateMachine):
    """A service with two consumers that die and are slow, and a policy that moves on, and sometimes back."""

    store: Store
    tasks = [load_task(EXAMPLES / "first-steps" / name) for name in ("write-file", "fix-line")]
    count = 0

    @initialize()
    def begin(self) -> None:
        type(self).count += 1
        self.project = f"p{self.count}"
        self.home = Home(Path("/none"), self.store, Blobs.__new__(Blobs))
        self.requests: dict[str, dict[str, Any]] = {}
        self.held: dict[str, str] = {}
        self.acked: set[str] = set()
        self.current = 0
        self.store.rollouts.announce(self.project, "e", 0)

    @rule(behind=st.integers(0, 3), staleness=st.none() | st.integers(0, 2))
    def ask(self, behind: int, staleness: int | None) -> None:
        version = max(0, self.current - behind)
        request = Request(run=new_run_id(), project=self.project, digest="d", endpoint="e", version=version,
                          max_staleness=staleness, on_stale=OnStale.KEEP, created_at=now())
        too_old = staleness is not None and version < self.current - staleness
        spec = RunSpec(tasks=("/t",), agents=(Agent(name="oracle", harness="oracle"),), attempts=2)
        try:
            shared.submit(self.home, spec, self.tasks, request=request, project=self.project)
        except Conflict:
            assert too_old
            return
        assert not too_old
        standing = self.store.rollouts.standing(request.run)
        attempts = {attempt: self.store.attempt(attempt).task for attempt, _, _ in standing}
        self.requests[request.run] = {"version": version, "staleness": staleness, "stale": False, "open": attempts}

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        waiting = [attempt for one in self.requests.values() for attempt in one["open"]]
        if waiting:
            attempt = data.draw(st.sampled_from(waiting))
            end(self.home, [attempt], data.draw(st.sampled_from([1.0, 0.0, None])))
            self.requests[attempt.rpartition(".")[0]]["open"].pop(attempt)

    @rule(consumer=st.sampled_from(["one", "two"]), most=st.integers(1, 3), again=st.booleans())
    def take(self, consumer: str, most: int, again: bool) -> None:
        for group, _ in self.store.rollouts.take(self.project, consumer, most, lease_s=1e6, again=again):
            asked, name = self.requests[group.run], f"{group.run}.{group.place}"
            assert not asked["stale"]
            assert name not in self.acked
            assert group.task not in asked["open"].values(), "it is whole"
            assert name not in self.held or again
            self.held[name] = f"{name}.{group.delivery}"

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if self.held:
            names = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
            settled = service.ack(self.home, [self.held[name] for name in names], project=self.project)
            assert settled.lost == ()
            self.acked |= set(names)
            for name in names:
                del self.held[name]

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.held:
            name = data.draw(st.sampled_from(sorted(self.held)))
            assert service.give_back(self.home, [self.held.pop(name)], project=self.project).lost == ()

    @rule()
    def crash(self) -> None:
        """Both consumers die, and their leases run out."""
        late = [*self.held.values()]
        with self.store._engine.begin() as connection:
            connection.execute(sa.update(attempt_groups).where(attempt_groups.c.project == self.project)
                               .values(lease_s=0.0))
        self.held.clear()
        for group, _ in self.store.rollouts.take(self.project, "heir", 99, lease_s=1e6):
            self.held[f"{group.run}.{group.place}"] = f"{group.run}.{group.place}.{group.delivery}"
        taken = {delivery.rpartition(".")[0] for delivery in late} & self.held.keys()
        lost = service.ack(self.home, late, project=self.project).lost if late else ()
        assert {delivery.rpartition(".")[0] for delivery in lost} == taken, "late is late"
        self.acked |= {delivery.rpartition(".")[0] for delivery in late} - taken

    @rule(step=st.integers(1, 2))
    def announce(self, step: int) -> None:
        self._announced(self.current + step, back=False)

    @rule(step=st.integers(1, 2))
    def go_back(self, step: int) -> None:
        if self.current >= step:
            self._announced(self.current - step, back=True)

    def _announced(self, version: int, *, back: bool) -> None:
        self.store.rollouts.announce(self.project, "e", version, back=back)
        self.current = version
        for one in self.requests.values():
            if one["staleness"] is not None:
                ahead = back and one["version"] > version
                one["stale"] = one["stale"] or one["version"] < version - one["staleness"] or ahead

    @rule()
    def tend(self) -> None:
        rollouts.tend(self.home)

    @invariant()
    def nothing_is_lost(self) -> None:
        """What is whole and not stale is acknowledged, held, or there to be taken."""
        whole = sum(
            task not in one["open"].values() for one in self.requests.values() if not one["stale"]
            for task in (task.id for task in self.tasks))
        counts = self.store.rollouts.census(self.project)
        gone = sum(not self.requests[name.rpartition(".")[0]]["stale"] for name in self.acked)
        held = sum(not self.requests[name.rpartition(".")[0]]["stale"] for name in self.held)
        assert counts.get("ready", 0) == whole - gone - held
        assert counts.get("acked", 0) == len(self.acked)


def held(store: Store, examples: int) -> None:
    Trainer.store = store
    run_state_machine_as_test(Trainer, settings=settings(max_examples=examples, stateful_step_count=20))


def test_deliveries_in_any_order(tmp_path: Path) -> None:
    """The laws hold over requests, results, leases that run out, and a policy that moves."""
    with blank_home(tmp_path / "home") as home:
        held(home.store, 6)


@pytest.mark.slow
def test_deliveries_in_any_order_on_a_server(tmp_path: Path, postgresql_url: str) -> None:  # noqa: F811  a fixture
    """On PostgreSQL as well, and in many more orders."""
    with Store(postgresql_url, tmp_path) as store:
        held(store, 100)
