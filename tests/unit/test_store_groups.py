"""Groups: complete in one moment with their last attempt, handed out whole in that order, and lost by no death."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from hypothesis import given, settings
from hypothesis import strategies as st

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.errors import Cause
from woodshed.model import Agent, Assurance, Attempt, Invalid, Outcome, Run, RunSpec, RunState, StopReason, Valid
from woodshed.model.event import now
from woodshed.services import groups as service
from woodshed.services.home import Home
from woodshed.store import Blobs, Store, attempt_id, new_run_id
from woodshed.store.groups import Group, GroupState
from woodshed.store.migrations.versions import m0005_groups

GOOD = Outcome(verdict=Valid(rewards={}, total=1.0, assurance=Assurance.CANARY), stop=StopReason.FINISHED)
BROKEN = Outcome(verdict=Invalid(cause=Cause.HARNESS, detail="x"), stop=StopReason.ERROR)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on either database."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as store:
        yield store


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all examples of a property, each with a run of its own."""
    with Store(None, tmp_path_factory.mktemp("groups")) as store:
        yield store


def planned(run: str, tasks: int, each: int, first: int = 1, agent: str = "oracle") -> list[Attempt]:
    """First tries of all tasks before second ones."""
    order = [(index, f"t{task}") for index in range(each) for task in range(tasks)]
    return [Attempt(id=attempt_id(run, n), run=run, task=task, agent=agent, index=index, seed=n)
            for n, (index, task) in enumerate(order, first)]


def begun(store: Store, tasks: int = 2, each: int = 2) -> tuple[str, list[Attempt]]:
    """A run; all its attempts have begun."""
    run = new_run_id()
    spec = RunSpec(tasks=("/t",), agents=(Agent(name="oracle", harness="oracle"),), attempts=each)
    attempts = planned(run, tasks, each)
    store.create_run(Run(id=run, spec=spec, created_at=now()), attempts)
    for attempt in attempts:
        store.begin_execution(attempt.id, "me")
    return run, attempts


def stands(store: Store, run: str) -> list[tuple[str, str, int | None]]:
    return [(group.task, group.state.value, group.place) for group in store.groups.of(run)]


def place(group: Group) -> int:
    assert group.place is not None
    return group.place


def test_a_group_completes_with_its_last_attempt(store: Store) -> None:
    """Whatever its verdicts; places follow the order of completion, and who was fenced or comes twice adds nothing."""
    run, (a1, b1, a2, b2) = begun(store)
    assert stands(store, run) == [("t0", "partial", None), ("t1", "partial", None)]
    assert store.finish_attempt(b1.id, 1, GOOD)
    assert not store.finish_attempt(b1.id, 1, GOOD)
    assert store.begin_execution(b2.id, "me") == 2
    assert not store.finish_attempt(b2.id, 1, GOOD)
    assert [group.open for group in store.groups.of(run)] == [2, 1]
    assert store.finish_attempt(b2.id, 2, BROKEN)
    assert stands(store, run) == [("t1", "complete", 1), ("t0", "partial", None)]
    assert store.groups.left(run) == (1, 1)
    for attempt in (a1, a2):
        store.finish_attempt(attempt.id, 1, GOOD)
    assert stands(store, run) == [("t1", "complete", 1), ("t0", "complete", 2)]


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_the_last_two_attempts_may_end_at_once(store: Store, rounds: int) -> None:
    """Of many threads that finish all attempts of many groups together, one completes each; places have no gap."""
    for _ in range(rounds):
        run, attempts = begun(store, tasks=4, each=4)
        ready = threading.Barrier(8)

        def finish(mine: list[Attempt], ready: threading.Barrier = ready) -> None:
            ready.wait()
            for attempt in mine:
                assert store.finish_attempt(attempt.id, 1, GOOD)

        threads = [threading.Thread(target=finish, args=(attempts[n::8],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        groups = store.groups.of(run)
        assert [group.place for group in groups] == [1, 2, 3, 4]
        assert [group.open for group in groups] == [0, 0, 0, 0]


def test_consumers_that_take_at_once_share_the_groups(store: Store) -> None:
    """Each group is one consumer's, and each gets its own in order of completion."""
    run, attempts = begun(store, tasks=12, each=1)
    for attempt in reversed(attempts):
        store.finish_attempt(attempt.id, 1, GOOD)
    got: dict[str, list[int]] = {"one": [], "two": []}

    def consume(name: str) -> None:
        while taken := store.groups.take(run, name, 2, lease_s=60):
            got[name] += [place(group) for group in taken]

    threads = [threading.Thread(target=consume, args=[name]) for name in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got["one"] + got["two"]) == list(range(1, 13))
    assert all(places == sorted(places) for places in got.values())
    assert [group.task for group in store.groups.of(run)] == [f"t{n}" for n in reversed(range(12))]


def test_a_consumer_that_dies_loses_and_repeats_nothing(store: Store) -> None:
    """Its lease runs out and another gets the group; what it acknowledged stays so, its late word is refused."""
    run, attempts = begun(store, tasks=2, each=1)
    for attempt in attempts:
        store.finish_attempt(attempt.id, 1, GOOD)
    first, second = store.groups.take(run, "dies", 2, lease_s=0.2)
    assert (first.state, first.consumer, first.delivery) == (GroupState.TAKEN, "dies", 1)
    assert store.groups.ack(run, 1, 1)
    assert store.groups.ack(run, 1, 1), "an answer may be lost: saying it again does no harm"
    assert store.groups.take(run, "other", 2, lease_s=60) == []
    time.sleep(0.25)
    [again] = store.groups.take(run, "other", 2, lease_s=60)
    assert (again.place, again.delivery, again.consumer) == (second.place, 2, "other")
    assert not store.groups.ack(run, place(second), 1)
    assert not store.groups.give_back(run, place(second), 1)
    assert not store.groups.renew(run, place(second), 1, lease_s=60)
    assert stands(store, run) == [("t0", "acked", 1), ("t1", "taken", 2)]
    assert store.groups.give_back(run, 2, 2)
    assert stands(store, run)[1] == ("t1", "complete", 2)
    [third] = store.groups.take(run, "other", 2, lease_s=0.01)
    assert store.groups.renew(run, 2, third.delivery, lease_s=60)
    time.sleep(0.02)
    assert store.groups.take(run, "more", 2, lease_s=60) == []
    assert store.groups.ack(run, 2, third.delivery)
    assert store.groups.left(run) == (0, 0)


def test_a_group_that_gets_more_attempts_is_partial_again(store: Store) -> None:
    """Until they are done, and then it is the last one to complete."""
    run, attempts = begun(store, tasks=2, each=1)
    for attempt in attempts:
        store.finish_attempt(attempt.id, 1, GOOD)
    [more] = planned(run, 1, 1, first=3)
    store.add_attempts(run, [more])
    assert stands(store, run) == [("t1", "complete", 2), ("t0", "partial", None)]
    store.begin_execution(more.id, "me")
    store.finish_attempt(more.id, 1, GOOD)
    assert stands(store, run) == [("t1", "complete", 2), ("t0", "complete", 3)]


def test_runs_of_an_earlier_schema_have_their_groups(store: Store) -> None:
    """The migration finds the groups of what was recorded before it, and what was complete has its place."""
    run, attempts = begun(store, tasks=3, each=2)
    for attempt in (*attempts[1::3], attempts[2], attempts[0], attempts[3]):
        store.finish_attempt(attempt.id, 1, GOOD)
    before = store.groups.of(run)
    with store._engine.begin() as connection:
        for change in ("DROP TABLE attempt_groups", "DROP INDEX ix_attempts_group"):
            connection.execute(sa.text(change))
        with Operations.context(MigrationContext.configure(connection)):
            m0005_groups.upgrade()
    after = store.groups.of(run)
    assert [one.task for one in after] == [one.task for one in before]
    assert [(group.task, group.place, group.open) for group in after] == [("t1", 1, 0), ("t0", 2, 0), ("t2", None, 1)]


async def test_a_consumer_waits_for_the_next_group(store: Store, tmp_path: Path) -> None:
    """A long poll answers when a group completes, with attempts and rewards; with none after its time; then over."""
    home = Home(tmp_path, store, Blobs(tmp_path / "blobs"))
    run, (a1, _, a2, _) = begun(store)
    none = await service.next_group(home, run, "trainer", wait_s=0.05)
    assert (none.groups, none.over) == ((), False)
    waiting = asyncio.create_task(service.next_group(home, run, "trainer", wait_s=600))
    await asyncio.sleep(0.05)
    for attempt, outcome in ((a1, GOOD), (a2, BROKEN)):
        await asyncio.to_thread(store.finish_attempt, attempt.id, 1, outcome)
    [got] = (await waiting).groups
    assert (got.group.task, [one.id for one in got.attempts], got.rewards) == ("t0", [a1.id, a2.id], [1.0, None])
    assert (got.told()["valid"], got.told()["done"], got.told()["state"]) == (1, 2, "taken")
    partial = service.listing(home, run)[1].told()
    assert (partial["state"], partial["done"], partial["total"], partial["rewards"]) == ("partial", 0, 2, [None, None])
    assert not (await service.next_group(home, run, "other", wait_s=0)).over, "the first lease may still run out"
    assert service.ack(home, got.group)
    store.set_run_state(run, RunState.CANCELLED)
    last = await service.next_group(home, run, "other", wait_s=600)
    assert (last.groups, last.over) == ((), True)


@settings(max_examples=25)
@given(data=st.data())
def test_every_group_is_acknowledged_once_whatever_consumers_suffer(data: st.DataObject, one_store: Store) -> None:
    """Takes, acknowledgements, returns and expired leases in any order: in the end each group was acknowledged once."""
    store = one_store
    run, attempts = begun(store, tasks=4, each=1)
    to_finish, held, acked = list(attempts), list[Group](), set[int]()
    for step in data.draw(st.lists(st.sampled_from(["finish", "take", "ack", "back", "expire"]), max_size=24)):
        if step == "finish" and to_finish:
            store.finish_attempt(to_finish.pop().id, 1, GOOD)
        elif step in ("take", "expire"):
            lease_s, taken = (60 if step == "take" else -1), data.draw(st.integers(1, 3))
            got = store.groups.take(run, "c", taken, lease_s=lease_s)
            assert not {place(one) for one in got} & acked
            held += got
        elif held and step in ("ack", "back"):
            one = held.pop(data.draw(st.integers(0, len(held) - 1)))
            if step == "back":
                store.groups.give_back(run, place(one), one.delivery)
            elif store.groups.ack(run, place(one), one.delivery):
                acked.add(place(one))
    for attempt in to_finish:
        store.finish_attempt(attempt.id, 1, GOOD)
    for one in [*held, *store.groups.take(run, "last", 9, lease_s=60)]:
        if store.groups.ack(run, place(one), one.delivery):
            acked.add(place(one))
    assert acked == {1, 2, 3, 4}
    assert store.groups.take(run, "nobody", 9, lease_s=60) == []
