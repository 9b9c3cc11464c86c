"""The janitor removes what the dead left, says what it was, and touches nothing that lives or is needed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from kit import woodshed
from woodshed.engine.durable import Durable
from woodshed.engine.lease import Lease
from woodshed.model import Agent, Attempt, EventKind, Run, RunSpec
from woodshed.model.event import now
from woodshed.sandbox.native import cgroups
from woodshed.sandbox.native.places import Place, sweep
from woodshed.services.home import Home, opened
from woodshed.services.janitor import Janitor, Swept, nothing
from woodshed.store import EventLog, attempt_id, new_run_id
from woodshed.store.sweeping import OLD_S
from woodshed.store.tables import workers


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with opened(tmp_path) as home:
        yield home


def aged(home: Home, content: bytes) -> str:
    """A blob that was stored two days ago."""
    digest = home.blobs.put(content)
    os.utime(home.blobs.path(digest), (time.time() - 2 * OLD_S,) * 2)
    return digest


def log_of(home: Home) -> EventLog:
    """The log of a run's only attempt, which goes on."""
    run, agent = new_run_id(), Agent(name="nop", harness="nop")
    attempt = Attempt(id=attempt_id(run, 1), run=run, task="t", agent="nop", index=0, seed=0)
    spec = RunSpec(tasks=("/t",), agents=(agent,))
    home.store.create_run(Run(id=run, spec=spec, created_at=now()), [attempt])
    number = home.store.begin_execution(attempt.id, "me")
    assert number == 1
    return EventLog(home.store, attempt.id, number)


async def test_blobs_that_nothing_names_go_and_those_of_any_record_stay(home: Home) -> None:
    """Named by an event, or listed in a blob that is: it stays; the rest goes, once a day unless asked for."""
    log = log_of(home)
    changed, output, listed, lost = (aged(home, word) for word in (b"changed", b"output", b"listed", b"lost"))
    checkpoint = aged(home, json.dumps({"changes": [{"sha256": listed}]}).encode())
    log.emit(EventKind.CHANGES, {"changes": [{"path": "/a", "sha256": changed}]})
    log.emit(EventKind.VERIFIER, {"output_blob": output})
    log.emit(EventKind.CHECKPOINT, {"digest": checkpoint})
    log.flush()
    told: list[str] = []
    janitor = Janitor(home, nothing, tell=told.append)
    assert await janitor.clean() == Swept(blobs=1, blob_bytes=4)
    assert told == ["removed 1 blobs (0 MB)"]
    assert not home.blobs.path(lost).exists()
    assert all(home.blobs.path(digest).exists() for digest in (changed, output, listed, checkpoint))
    aged(home, b"lost")
    assert (await janitor.clean()).kept == "they were looked at within the last day"
    assert (await janitor.clean(blobs=True)).blobs == 1
    assert told == ["removed 1 blobs (0 MB)"] * 2, "nothing to tell where nothing was removed"


async def test_no_blob_goes_where_other_databases_name_some(home: Home) -> None:
    """A folder that runs of another database use, too, is left alone, and the answer says why."""
    lost = aged(home, b"theirs")
    home.blobs.bind("postgresql:elsewhere:5432/woodshed")
    swept = await Janitor(home, nothing).clean(blobs=True)
    assert (swept.blobs, swept.kept) == (0, "other databases name blobs of this folder, too")
    assert home.blobs.path(lost).exists()


async def test_sandboxes_of_the_dead_go_and_those_of_the_living_stay(home: Home) -> None:
    """A folder whose engine died goes with what runs in its groups; the living engine's is untouched."""
    alive = Place(home.path, "alive")
    alive.box("1")
    (home.path / "sandboxes" / "dead" / "1" / "u").mkdir(parents=True)
    swept = await Janitor(home, partial(sweep, home.path)).clean()
    assert swept.sandboxes == ("dead",)
    assert (alive.path / "1" / "u").is_dir()
    alive.close()


@pytest.mark.skipif(not cgroups.control().parents, reason="no cgroups can be made here: run as root or delegate them")
def test_what_still_runs_in_a_dead_engines_group_is_killed(tmp_path: Path) -> None:
    """A process left in a group of a dead engine ends, and its group goes; one beside it, in no group, lives on."""
    control = cgroups.control(tmp_path)
    top = next(iter(control.parents.values()))
    box = top / f"test-{os.getpid()}" / "1"
    box.mkdir(parents=True)
    left, beside = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))
    try:
        (box / "cgroup.procs").write_text(str(left.pid))
        cgroups.sweep(f"test-{os.getpid()}")
        assert left.wait() == -9
        assert beside.poll() is None
        while box.exists():
            cgroups.sweep(f"test-{os.getpid()}")
        assert not box.parent.exists()
    finally:
        for process in (left, beside):
            process.kill()
            process.communicate()


_HANGS = """
import asyncio, sys
from pathlib import Path
from woodshed.engine.durable import Durable
from woodshed.engine.lease import Lease

async def main(home):
    lease = Lease(home)
    async def hang(attempt):
        print(lease.executor, flush=True)
        await asyncio.Event().wait()
    durable = Durable(home, lease.executor, hang, concurrency=1)
    await durable.start()
    await durable.take(["r-1.1"])
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1])))
"""


async def _nobody(attempt: str) -> None:
    raise AssertionError(attempt)


async def test_rows_of_dead_processes_are_cancelled_and_those_of_living_ones_are_not(home: Home) -> None:
    """A workflow that a killed process left pending is cancelled; while the process lives it is left alone."""
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HANGS, str(home.path), stdout=asyncio.subprocess.PIPE)
    assert other.stdout is not None
    assert await other.stdout.readline()
    with Lease(home.path) as lease:
        durable = Durable(home.path, lease.executor, _nobody, concurrency=1)
        await durable.start()
        try:
            janitor = Janitor(home, nothing, durable)
            assert (await janitor.clean()).workflows == 0
            other.kill()
            await other.wait()
            assert (await janitor.clean()).workflows == 1
            assert (await janitor.clean()).workflows == 0
        finally:
            await durable.close()


async def test_it_goes_on_for_as_long_as_it_is_let(home: Home) -> None:
    """On a timer it sweeps again and again, also after the store failed it once; rows of workers long gone go."""
    home.store.queue.enlist("old", host="h", pid=1, slots=1)
    assert home.store.queue.reap_one("old")
    with home.store._engine.begin() as connection:
        connection.execute(sa.update(workers).values(beat=workers.c.beat - 100_000))
    told: list[str] = []
    swept = asyncio.Event()
    calls = 0

    def sweeps() -> tuple[str, ...]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no disk")
        if calls == 3:
            loop.call_soon_threadsafe(swept.set)
        return ()

    loop = asyncio.get_running_loop()
    tending = asyncio.create_task(Janitor(home, sweeps, tell=told.append).tend(every_s=0.01))
    await swept.wait()
    tending.cancel()
    assert told[:2] == ["cleaning up: no disk", "removed 1 workers long gone"]


def test_the_command_says_what_it_removed(tmp_path: Path) -> None:
    """``sandbox gc --json`` tells every kind of thing, by count; a second one finds nothing."""
    with opened(tmp_path) as home:
        aged(home, b"nobody's")
    (tmp_path / "sandboxes" / "dead" / "1").mkdir(parents=True)
    first = json.loads(woodshed("sandbox", "gc", "--json", home=tmp_path).stdout)
    assert (first["swept"], first["sandboxes"], first["blobs"], first["kept"]) == (1, ["dead"], 1, "")
