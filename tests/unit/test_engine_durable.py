"""Attempts as durable workflows: all of them, no more than so many at once, and rows that say what happened."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from smalldisk import on_small_disk
from woodshed.engine import Durable
from woodshed.engine.durable import VERSION, Execute
from woodshed.errors import StoreFault


@asynccontextmanager
async def working(
    home: Path, execute: Execute, *, concurrency: int = 2, executor: str = "h-one", url: str | None = None
) -> AsyncIterator[Durable]:
    durable = Durable(home, executor, execute, concurrency=concurrency, url=url)
    await durable.start()
    try:
        yield durable
    finally:
        await durable.close()


def ids(count: int, run: str = "r-1") -> list[str]:
    return [f"{run}.{n}" for n in range(1, count + 1)]


def rows(home: Path) -> list[tuple[str, str, str, str]]:
    connection = sqlite3.connect(home / "dbos.db")
    try:
        return connection.execute(
            "SELECT workflow_uuid, status, executor_id, application_version FROM workflow_status ORDER BY created_at, 1"
        ).fetchall()
    finally:
        connection.close()


async def test_every_attempt_runs_once_and_never_too_many_at_once(tmp_path: Path) -> None:
    """Thirty attempts with three slots: each ran once, three were seen together and never four."""
    ran: Counter[str] = Counter()
    now, most = 0, 0

    async def execute(attempt: str) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.005)
        ran[attempt] += 1
        now -= 1

    async with working(tmp_path, execute, concurrency=3) as durable:
        await durable.submit("r-1", ids(20))
        await durable.submit("r-1", ids(30)[20:])
        assert await durable.wait() == {}
    assert ran == Counter(ids(30))
    assert most == 3


async def test_rows_are_finished_carry_ids_only_and_name_version_and_executor(tmp_path: Path) -> None:
    """Each attempt has one row, done, of the pinned version; no input, output or result of ours is in the file."""

    async def execute(attempt: str) -> None:
        await asyncio.sleep(0)

    async with working(tmp_path, execute) as durable:
        await durable.submit("r-1", ids(3))
        await durable.wait()
    found = rows(tmp_path)
    assert sorted((row[0].partition("@")[0], *row[1:]) for row in found) == [
        (attempt, "SUCCESS", "h-one", VERSION) for attempt in ids(3)
    ]
    connection = sqlite3.connect(tmp_path / "dbos.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    (serializers,) = connection.execute("SELECT group_concat(DISTINCT serialization) FROM workflow_status").fetchone()
    connection.close()
    assert serializers == "portable_json"
    assert (tmp_path / "dbos.db").stat().st_mode & 0o077 == 0


async def test_a_failing_execution_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    """What execute raised comes back by attempt; the rest are executed."""
    ran: list[str] = []

    async def execute(attempt: str) -> None:
        if attempt == "r-1.2":
            raise StoreFault("the disk is full")
        ran.append(attempt)

    async with working(tmp_path, execute) as durable:
        await durable.submit("r-1", ids(4))
        faults = await durable.wait()
    assert set(faults) == {"r-1.2"}
    assert isinstance(faults["r-1.2"], StoreFault)
    assert sorted(ran) == ["r-1.1", "r-1.3", "r-1.4"]


async def test_cancelling_ends_what_runs_and_begins_nothing_more(tmp_path: Path) -> None:
    """Running executions see a cancellation and may clean up before cancel returns; those waiting never begin."""
    begun, cleaned = asyncio.Event(), []
    ran: list[str] = []

    async def execute(attempt: str) -> None:
        ran.append(attempt)
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.02)
            cleaned.append(attempt)

    async with working(tmp_path, execute) as durable:
        await durable.submit("r-1", ids(10))
        await begun.wait()
        await durable.cancel()
        assert sorted(cleaned) == sorted(ran)
        assert len(ran) <= 2
        assert await durable.wait() == {}


async def test_closing_cancels_what_still_runs(tmp_path: Path) -> None:
    """Leaving without waiting ends the executions; closing again is harmless."""
    cancelled: list[str] = []
    begun = asyncio.Event()

    async def execute(attempt: str) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(attempt)
            raise

    durable = Durable(tmp_path, "h-one", execute, concurrency=1)
    await durable.start()
    await durable.submit("r-1", ids(2))
    await begun.wait()
    await durable.close()
    await durable.close()
    assert len(cancelled) == 1  # one slot; which of the two came first is not promised


async def test_it_can_be_started_again_in_one_process(tmp_path: Path) -> None:
    """Three in a row, in two homes, each do their work; threads do not pile up, and the loop's own threads work."""
    ran: list[str] = []

    async def execute(attempt: str) -> None:
        ran.append(await asyncio.to_thread(lambda: attempt))

    for round_, home in enumerate(["one", "two", "one"]):
        async with working(tmp_path / home, execute, executor=f"h-{round_}") as durable:
            await durable.submit(f"r-{round_}", ids(2, f"r-{round_}"))
            await durable.wait()
        assert await asyncio.to_thread(lambda: "works") == "works"
    assert len(ran) == 6
    assert not [thread for thread in threading.enumerate() if "dbos" in thread.name]


async def test_two_at_once_in_one_process_are_refused(tmp_path: Path) -> None:
    """The second start fails plainly and leaves the first one working."""
    ran: list[str] = []

    async def execute(attempt: str) -> None:
        ran.append(attempt)

    async with working(tmp_path, execute) as durable:
        second = Durable(tmp_path, "h-two", execute, concurrency=1)
        with pytest.raises(RuntimeError, match="another Durable is active"):
            await second.start()
        await second.close()
        await durable.submit("r-1", ids(1))
        await durable.wait()
    assert ran == ["r-1.1"]


async def test_rows_of_a_dead_process_are_cancelled_and_its_attempts_run_anew(tmp_path: Path) -> None:
    """A pending row of another executor is neither recovered by itself nor left behind when its run is resumed."""

    async def nothing(attempt: str) -> None:
        await asyncio.sleep(0)

    async with working(tmp_path, nothing, executor="h-dead") as durable:
        await durable.submit("r-1", ids(2))
        await durable.submit("r-2", ids(1, "r-2"))
        await durable.wait()
    connection = sqlite3.connect(tmp_path / "dbos.db")
    connection.execute("UPDATE workflow_status SET status = 'PENDING'")
    connection.commit()
    connection.close()
    ran: list[str] = []

    async def execute(attempt: str) -> None:
        ran.append(attempt)

    async with working(tmp_path, execute, executor="h-new") as durable:
        await asyncio.sleep(0.3)
        assert ran == []
        await durable.submit("r-1", ["r-1.2"])
        await durable.wait()
    assert ran == ["r-1.2"]
    states = {row[0].rpartition(".")[0]: row[1] for row in rows(tmp_path)}
    assert states == {
        "r-1.1@h-dead": "CANCELLED", "r-1.2@h-dead": "CANCELLED", "r-2.1@h-dead": "PENDING", "r-1.2@h-new": "SUCCESS",
    }


async def test_an_attempt_may_be_submitted_again(tmp_path: Path) -> None:
    """A retry of the same attempt in the same process runs again; whether it counts is the store's to say."""
    ran: list[str] = []

    async def execute(attempt: str) -> None:
        ran.append(attempt)

    async with working(tmp_path, execute) as durable:
        for _ in range(2):
            await durable.submit("r-1", ["r-1.1"])
            await durable.wait()
    assert ran == ["r-1.1", "r-1.1"]


async def test_it_says_nothing_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither start, work, a failing execution nor stop print a line; warnings go to logging alone."""

    async def execute(attempt: str) -> None:
        raise ValueError("no")

    caplog.set_level(logging.WARNING)
    async with working(tmp_path, execute) as durable:
        await durable.submit("r-1", ids(2))
        await durable.wait()
    assert capfd.readouterr() == ("", "")


async def test_a_database_that_cannot_be_opened_is_a_fault_and_another_start_works(tmp_path: Path) -> None:
    """A damaged file is named; afterwards a sound home starts in the same process."""

    async def execute(attempt: str) -> None:
        await asyncio.sleep(0)

    (tmp_path / "dbos.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreFault, match="not a database"):
        await Durable(tmp_path, "h-one", execute, concurrency=1).start()
    async with working(tmp_path / "sound", execute) as durable:
        await durable.submit("r-1", ids(1))
        assert await durable.wait() == {}


async def test_it_works_on_postgresql(
    tmp_path: Path, postgresql_url: str  # noqa: F811  the fixture imported above
) -> None:
    """With a server's URL the rows are in its schema 'dbos', and no file is made."""
    ran: list[str] = []

    async def execute(attempt: str) -> None:
        ran.append(attempt)

    async with working(tmp_path, execute, url=postgresql_url) as durable:
        await durable.submit("r-1", ids(5))
        assert await durable.wait() == {}
    assert sorted(ran) == ids(5)
    assert not (tmp_path / "dbos.db").exists()
    with psycopg.connect(postgresql_url) as connection:
        found = connection.execute("SELECT status, count(*) FROM dbos.workflow_status GROUP BY 1").fetchall()
    assert found == [("SUCCESS", 5)]


def test_a_disk_that_fills_stops_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """Attempts that cannot be recorded come back as faults in plain words; with room, all are finished."""
    script = Path(__file__).parent / "data" / "full_engine.py"
    command = [*on_small_disk(tmp_path, "12m"), sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "kept everything\n"


async def test_a_start_that_is_cancelled_leaves_room_for_another(tmp_path: Path) -> None:
    """Cancelled while DBOS opens, it is closed again: its threads are gone and the next one starts."""
    opening = asyncio.ensure_future(Durable(tmp_path, "h-one", _idle, concurrency=1).start())
    await asyncio.sleep(0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not [thread for thread in threading.enumerate() if thread.name == "woodshed-durable"]
    async with working(tmp_path, _idle) as durable:
        await durable.submit("r-1", ids(1))
        assert await durable.wait() == {}


async def _idle(attempt: str) -> None:
    await asyncio.sleep(0)
