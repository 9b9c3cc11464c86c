"""A lock says whether a run's owner lives: refused while it does, taken over once it is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from woodshed.engine import Lease, claim, owner
from woodshed.errors import StoreFault, UsageError
from woodshed.model import Agent, Run, RunSpec, RunState
from woodshed.model.event import now
from woodshed.store import Store

HOLDER = """
import os, sys, time
from pathlib import Path
from woodshed.engine import Lease
lease = Lease(Path(sys.argv[1]))
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(child, flush=True)
print(lease.executor, flush=True)
sys.stdin.read(1)
lease.release()
print("released", flush=True)
sys.stdin.read(1)
"""


@contextmanager
def holder(home: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lease on ``home``, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home), *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("x")
    process.stdin.flush()


def run_of(store: Store, executor: str | None) -> Run:
    spec = RunSpec(tasks=("/t",), agents=(Agent(name="nop", harness="nop"),))
    run = Run(id="r-1", spec=spec, executor=executor, created_at=now())
    store.create_run(run, [])
    return run


def test_a_living_process_is_seen_with_pid_and_host(tmp_path: Path) -> None:
    """While it holds its lease another process reads who it is; looking does not take the lock from it."""
    with holder(tmp_path) as process:
        executor = line(process)
        for _ in range(3):
            found = owner(tmp_path, executor)
            assert found is not None
            assert found.pid == process.pid
            assert found.host == os.uname().nodename
            assert str(process.pid) in str(found)


def test_a_killed_process_is_gone_at_once(tmp_path: Path) -> None:
    """After SIGKILL nobody holds the lock, and the file it left is swept by the next lease."""
    with holder(tmp_path) as process:
        executor = line(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = tmp_path / "locks" / f"{executor}.lock"
    assert left.exists()
    assert owner(tmp_path, executor) is None
    with Lease(tmp_path) as lease:
        assert not left.exists()
        assert [path.stem for path in (tmp_path / "locks").glob("*.lock")] == [lease.executor]
    assert owner(tmp_path, executor) is None


def test_a_forked_child_does_not_keep_its_dead_parent_alive(tmp_path: Path) -> None:
    """A child that outlives its killed parent holds nothing: the parent counts as gone."""
    with holder(tmp_path, "fork") as process:
        child, executor = int(line(process)), line(process)
        try:
            assert owner(tmp_path, executor) is not None
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.kill(child, 0)
            assert owner(tmp_path, executor) is None
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_frozen_process_still_lives(tmp_path: Path) -> None:
    """A stopped process may wake up again, so its runs are not for others."""
    with holder(tmp_path) as process:
        executor = line(process)
        process.send_signal(signal.SIGSTOP)
        assert owner(tmp_path, executor) is not None


def test_release_frees_the_lock_while_the_process_lives(tmp_path: Path) -> None:
    """After release nobody holds it and the file is gone; releasing twice is harmless."""
    with holder(tmp_path) as process:
        executor = line(process)
        say(process)
        assert line(process) == "released"
        assert owner(tmp_path, executor) is None
    lease = Lease(tmp_path)
    lease.release()
    lease.release()
    assert list((tmp_path / "locks").glob("*.lock")) == []


def test_a_process_sees_its_own_leases_and_sweeps_none_of_them(tmp_path: Path) -> None:
    """Two leases of one process have different names, both are alive, and a third sweep leaves them."""
    with Lease(tmp_path) as one, Lease(tmp_path) as two:
        assert one.executor != two.executor
        with Lease(tmp_path):
            pass
        for lease in (one, two):
            found = owner(tmp_path, lease.executor)
            assert found is not None
            assert found.pid == os.getpid()
        code = "import sys; from pathlib import Path; from woodshed.engine import owner;" \
               "print(owner(Path(sys.argv[1]), sys.argv[2]).pid)"
        seen = subprocess.check_output([sys.executable, "-c", code, str(tmp_path), one.executor], text=True)
        assert int(seen) == os.getpid()


def test_an_executor_of_another_home_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Its lock cannot be seen from here, so it counts as alive and its run is refused."""
    with Lease(tmp_path / "one") as lease:
        foreign = lease.executor
    assert owner(tmp_path / "one", foreign) is None
    found = owner(tmp_path / "two", foreign)
    assert found is not None
    assert found.pid is None


def test_a_run_whose_owner_lives_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """The message names run, process and host, and how to end it; the run keeps its owner."""
    with holder(tmp_path) as process, Store(None, tmp_path) as store, Lease(tmp_path) as lease:
        run = run_of(store, line(process))
        with pytest.raises(UsageError, match=rf"r-1 is still .*process {process.pid} on .*kill {process.pid}"):
            claim(store, "last", lease, tmp_path)
        assert store.run("r-1") == run


def test_a_run_whose_owner_is_gone_is_taken_over_once(tmp_path: Path) -> None:
    """After a kill the run is the claimer's; claiming again is harmless; the next claimer is refused."""
    with holder(tmp_path) as process:
        dead = line(process)
    with Store(None, tmp_path) as store, Lease(tmp_path) as one, Lease(tmp_path) as two:
        run_of(store, dead)
        assert claim(store, "r-1", one, tmp_path).executor == one.executor
        assert claim(store, "last", one, tmp_path).executor == one.executor
        with pytest.raises(UsageError, match=f"process {os.getpid()}"):
            claim(store, "r-1", two, tmp_path)


def test_a_run_that_nobody_owns_may_be_claimed(tmp_path: Path) -> None:
    """A run without executor is free."""
    with Store(None, tmp_path) as store, Lease(tmp_path) as lease:
        run_of(store, None)
        assert claim(store, "r-1", lease, tmp_path).executor == lease.executor


def test_a_finished_run_is_returned_as_it_is(tmp_path: Path) -> None:
    """There is nothing to take over, whoever owned it, and its end stays recorded."""
    with holder(tmp_path) as process, Store(None, tmp_path) as store, Lease(tmp_path) as lease:
        run_of(store, line(process))
        store.set_run_state("r-1", RunState.FINISHED)
        finished = store.run("r-1")
        assert claim(store, "r-1", lease, tmp_path) == finished == store.run("r-1")


def test_a_lock_with_strange_content_is_still_a_lock(tmp_path: Path) -> None:
    """What stands in the file is only for the message: unreadable content does not make the owner dead."""
    with holder(tmp_path) as process:
        executor = line(process)
        path = tmp_path / "locks" / f"{executor}.lock"
        assert json.loads(path.read_text())["pid"] == process.pid
        path.write_bytes(b"\xff not json")
        found = owner(tmp_path, executor)
        assert found is not None
        assert found.pid is None


def test_a_home_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    """A file in the folder's place is a StoreFault that names the home."""
    (tmp_path / "home").touch()
    with pytest.raises(StoreFault, match="taking the lock"):
        Lease(tmp_path / "home")
