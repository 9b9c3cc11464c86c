"""Rows that another version wrote: named, with their field and the remedy, and nothing else of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from queuekit import submit
from woodshed.errors import StoreFault, Unreadable
from woodshed.model import Agent, Assurance, Event, EventKind, Outcome, StopReason, Valid
from woodshed.model.event import now
from woodshed.model.schedule import Cron, Firing, Schedule, Standing
from woodshed.services.ears import Ears
from woodshed.services.home import opened
from woodshed.services.runtimes import Runtimes, Unopened
from woodshed.store import Store
from woodshed.store.ids import new_schedule_id
from woodshed.store.tables import attempts, events, executions, firings, runs, schedules, submissions

PASSED = Outcome(verdict=Valid(rewards={"total": 1.0}, total=1.0, assurance=Assurance.CANARY), stop=StopReason.FINISHED)
SECRET = "sk-of-the-agent"

START = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[Store, str, Schedule]]:
    """A store with one of each: its shared run, and its schedule."""
    with Store(None, tmp_path) as store:
        run = submit(store, 1)
        number = store.begin_execution(f"{run}.1", "h-one")
        assert number == 1
        fact = Event(attempt=f"{run}.1", execution=1, seq=0, kind=EventKind.NOTE, at=now(), data={"text": SECRET})
        store.finish_attempt(f"{run}.1", 1, PASSED, [fact])
        schedule = Schedule(
            id=new_schedule_id(), name="nightly", trigger=Cron(expression="* * * * *"), cursor=START, created_at=START,
            order=Standing(paths=("/tasks",), agents=(Agent(name="oracle", harness="oracle"),)))
        store.schedules.add(schedule)
        store.schedules.fire(schedule, Firing(schedule=schedule.id, due=START, created_at=START))
        yield store, run, schedule


def rewritten(store: Store, table: sa.Table, column: str, change: Callable[[Any], Any]) -> None:
    """Every value of the column, changed as another version might have written it."""
    with store._engine.begin() as connection:
        found = connection.execute(sa.select(table.c[column])).scalars().first()
        connection.execute(sa.update(table).values({column: change(found)}))


def newer(text: str) -> str:
    return json.dumps({**json.loads(text), "dreams": SECRET})


# what is read, where it is changed and how, who reads it, and what is said
READS: dict[str, tuple[sa.Table, str, Callable[[Any], Any], Callable[[Store, str, Schedule], object], str, str]] = {
    "run": (runs, "spec", newer, lambda s, run, _: s.run(run), "run {run}:", "'spec.dreams' is unknown"),
    "runs": (runs, "spec", newer, lambda s, run, _: s.runs(), "run {run}:", "'spec.dreams' is unknown"),
    "attempt": (attempts, "outcome", newer, lambda s, run, _: s.attempts(run), "attempt {run}.1:", "'outcome.dreams'"),
    "execution": (executions, "outcome", newer, lambda s, run, _: s.executions(f"{run}.1"), "execution 1 of {run}.1:",
                  "'outcome.dreams' is unknown"),
    "verdicts": (executions, "outcome", newer, lambda s, run, _: s.last_verdicts(run, START, 9),
                 "an execution of {run}:", "'dreams' is unknown"),
    "schedule": (schedules, "declared", newer, lambda s, _, one: s.schedules.named(one.name), "schedule nightly:",
                 "'dreams' is unknown"),
    "firing": (firings, "state", lambda _: "dreamt", lambda s, _, one: s.schedules.firings(one.id), "firing 2026-05-01",
               "'state' has the value 'dreamt'"),
    "submission": (submissions, "state", lambda _: "asleep", lambda s, run, _: s.queue.submission(run),
                   "submission of {run}:", "'state' has the value 'asleep'"),
}


@pytest.mark.parametrize("what", sorted(READS))
def test_a_row_of_a_newer_version_is_named(filled: tuple[Store, str, Schedule], what: str) -> None:
    """Row, unknown field and remedy stand in one fault that no retry can mend, and nothing an agent may have said."""
    store, run, schedule = filled
    table, column, change, read, name, field = READS[what]
    read(store, run, schedule)
    rewritten(store, table, column, change)
    with pytest.raises(Unreadable) as told:
        read(store, run, schedule)
    assert str(told.value).startswith(name.format(run=run))
    assert field in str(told.value)
    assert str(told.value).endswith("a newer Woodshed wrote it; update Woodshed")
    assert SECRET not in str(told.value)
    assert isinstance(told.value, StoreFault)
    assert not told.value.retryable


def test_events_of_a_newer_version_are_named(filled: tuple[Store, str, Schedule]) -> None:
    """One of an unknown kind, and one whose data is cut; nothing can change an event, but others may add some."""
    store, run, _ = filled
    row = {"attempt": f"{run}.1", "project": "default", "execution": 1, "version": 1, "at": START.isoformat()}
    with store._engine.begin() as connection:
        connection.execute(sa.insert(events), {**row, "seq": 2, "kind": "note", "data": f'{{"text": "{SECRET}'})
    with pytest.raises(Unreadable, match=rf"event 2 of {run}.1, execution 1: the row is damaged .* backup") as told:
        store.events(f"{run}.1")
    assert SECRET not in str(told.value)
    with store._engine.begin() as connection:
        connection.execute(sa.insert(events), {**row, "seq": 1, "kind": "dream", "data": "{}"})
    with pytest.raises(Unreadable, match=rf"event 1 of {run}.1, execution 1: field 'kind' has the value 'dream'"):
        store.events(f"{run}.1")


def test_a_damaged_row_is_named(filled: tuple[Store, str, Schedule]) -> None:
    """Text that is no JSON, and values of another kind, are told apart from what is only new."""
    store, run, schedule = filled
    rewritten(store, schedules, "declared", lambda text: text[:-3])
    with pytest.raises(Unreadable, match="schedule nightly: the row is damaged"):
        store.schedules.named(schedule.id)
    rewritten(store, attempts, "outcome", lambda text: json.dumps({"verdict": SECRET}))
    with pytest.raises(Unreadable, match=r"field 'outcome\.verdict' cannot be read here .*; update Woodshed") as told:
        store.attempt(f"{run}.1")
    assert SECRET not in str(told.value)


async def test_a_worker_that_is_too_old_for_a_run_cannot_execute_it(tmp_path: Path) -> None:
    """Its reason is the row's, so the run is paused with it before anything of it was begun."""
    with opened(tmp_path) as home:
        run = submit(home.store, 1)
        rewritten(home.store, runs, "spec", newer)
        runtimes = Runtimes(home, parallel=1, ears=Ears(home.store.messages))
        with pytest.raises(Unopened, match=rf"run {run}: field 'spec\.dreams' is unknown here"):
            async with runtimes.of(run):
                pass
        await runtimes.close()
