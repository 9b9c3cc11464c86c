"""Group commit: what waits together is written together, and nobody is told of more than is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from woodshed.errors import Cancelled, StoreFault
from woodshed.model import Agent, Attempt, EventKind, Run, RunSpec
from woodshed.model.event import now
from woodshed.store import EventLog, Store
from woodshed.store.commits import Commits

ATTEMPTS = [f"r-1.{number}" for number in range(1, 41)]


class Counting(Store):
    """A store that counts its transactions of several executions."""

    writes = 0

    def append_all(self, parts: Any) -> list[bool]:
        self.writes += 1
        return super().append_all(parts)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Counting]:
    opened = Counting(None, tmp_path)
    with opened:
        spec = RunSpec(tasks=("/t",), agents=(Agent(name="nop", harness="nop"),))
        opened.create_run(Run(id="r-1", spec=spec, created_at=now()), [
            Attempt(id=one, run="r-1", task="t", agent="nop", index=index, seed=0)
            for index, one in enumerate(ATTEMPTS)])
        yield opened


def begun(store: Store, *attempts: str) -> list[EventLog]:
    return [EventLog(store, one, store.begin_execution(one, "h-1") or 0) for one in attempts]


async def test_many_that_wait_share_few_transactions(store: Counting) -> None:
    """Forty executions keep fifty events each: every event is durable when its waiting ends, in far fewer commits."""
    commits, logs = Commits(store), begun(store, *ATTEMPTS)

    async def working(log: EventLog) -> None:
        for number in range(50):
            log.emit(EventKind.NOTE, {"number": number})
            await commits.keep(log)

    await asyncio.gather(*map(working, logs))
    for log in logs:
        assert [event.seq for event in store.events(log.attempt)] == list(range(50))
    assert 50 <= store.writes < 40 * 50 / 4


async def test_what_was_kept_is_durable_when_the_waiting_ends(store: Counting) -> None:
    """Another reader sees it at that moment; what is emitted while a commit is under way is kept by the next."""
    commits, [log] = Commits(store), begun(store, ATTEMPTS[0])
    for number in range(20):
        log.emit(EventKind.NOTE, {"number": number})
        waiting = [asyncio.create_task(commits.keep(log)) for _ in range(3)]
        log.emit(EventKind.NOTE, {"more": number})
        await asyncio.gather(*waiting)
        assert len(store.events(log.attempt)) == 2 * number + 2


async def test_who_was_fenced_is_told_alone(store: Counting) -> None:
    """An execution that others took over is refused, and its events stay with it; its neighbours' are durable."""
    commits, logs = Commits(store), begun(store, *ATTEMPTS[:3])
    assert store.begin_execution(ATTEMPTS[1], "h-2") == 2
    for log in logs:
        log.emit(EventKind.NOTE, {"text": log.attempt})
    told = await asyncio.gather(*(commits.keep(log) for log in logs), return_exceptions=True)
    assert [type(one) for one in told] == [type(None), Cancelled, type(None)]
    assert [len(store.events(one, 1)) for one in ATTEMPTS[:3]] == [1, 0, 1]
    logs[1].flush()  # as evidence
    assert [event.data["text"] for event in store.events(ATTEMPTS[1], 1)] == [ATTEMPTS[1]]


async def test_one_that_cannot_be_written_takes_no_other_with_it(store: Counting) -> None:
    """Events that are there already are refused; whoever waited beside them is durable all the same."""
    commits, logs = Commits(store), begun(store, *ATTEMPTS[:3])
    double = EventLog(store, ATTEMPTS[1], 1)
    for log in (double, *logs):
        log.emit(EventKind.NOTE, {})
    double.flush()
    told = await asyncio.gather(*(commits.keep(log) for log in logs), return_exceptions=True)
    assert [type(one) for one in told] == [type(None), StoreFault, type(None)]
    assert [len(store.events(one)) for one in ATTEMPTS[:3]] == [1, 1, 1]


async def test_who_is_cancelled_while_waiting_loses_nothing(store: Counting) -> None:
    """The commit goes on for all others, and its events are written."""
    commits, logs = Commits(store), begun(store, *ATTEMPTS[:2])
    for log in logs:
        log.emit(EventKind.NOTE, {})
    first, second = (asyncio.create_task(commits.keep(log)) for log in logs)
    await asyncio.sleep(0)
    first.cancel()
    await second
    await asyncio.gather(first, return_exceptions=True)
    assert [len(store.events(one)) for one in ATTEMPTS[:2]] == [1, 1]


async def test_a_failure_of_ours_is_told_to_all_who_wait(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a commit breaks on, nobody waits for ever; what was waiting is written by the next."""
    commits, logs = Commits(store), begun(store, *ATTEMPTS[:2])
    for log in logs:
        log.emit(EventKind.NOTE, {})
    with monkeypatch.context() as patch:
        patch.setattr(store, "append_all", None)
        told = await asyncio.gather(*map(commits.keep, logs), return_exceptions=True)
    assert [type(one) for one in told] == [TypeError, TypeError]
    await asyncio.gather(*map(commits.keep, logs))
    assert [len(store.events(one)) for one in ATTEMPTS[:2]] == [1, 1]
