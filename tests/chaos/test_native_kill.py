"""The process that holds native sandboxes is killed at any moment: nothing of it runs on, and the next one sweeps."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import cgroups
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.places import Place, sweep

# Makes, uses and closes boxes until it is killed; says its fork server's pid and each box's.
HOLDER = r"""
import asyncio, sys
from pathlib import Path
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.native.engine import NativeEngine

async def one(engine, policy):
    while True:
        box = await engine.create(EnvironmentSpec(), policy)
        print(box.pid, flush=True)
        await box.start("trap '' TERM HUP INT; setsid sleep " + sys.argv[2] + " & sleep " + sys.argv[2])
        await box.exec("mkdir -p d/d; touch d/d/f; chmod 0 d/d")
        await box.close()

async def main():
    engine = NativeEngine(Path(sys.argv[1]))
    policy = SandboxPolicy(limits=Limits(memory_mb=64))
    await asyncio.gather(*(one(engine, policy) for _ in range(3)))

asyncio.run(main())
"""


ALIVE: list[str] = []


@pytest.fixture(scope="module")
def home(shed_home: Path) -> Path:
    """A home whose image is made, so that a holder's time goes into boxes."""
    Images(shed_home).prepare(EnvironmentSpec())
    return shed_home


@pytest.fixture
def mark() -> str:
    """An argument of sleep that nobody else uses."""
    return f"{os.getpid()}.{random.randrange(10**6):06}"


def sleepers(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes() and b"python" not in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def until_gone(mark: str) -> list[str]:
    """What still runs when nothing more ends; the kernel needs a moment after a kill."""
    for _ in range(1000):
        if not sleepers(mark):
            return []
        time.sleep(0.02)
    return sleepers(mark)


@pytest.mark.parametrize("attempt", range(4))
def test_a_killed_holder_takes_its_boxes_along(home: Path, mark: str, attempt: int) -> None:
    """SIGKILL at a random moment: no process, mount or cgroup remains, and the next engine sweeps the folders."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(home), mark], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        time.sleep(random.random() / 3)
        while attempt == 3 and not sleepers(mark):  # at least once there is something to leave behind
            time.sleep(0.01)
        alive = sleepers(mark)
        instance = next(path.name for path in (home / "sandboxes").iterdir() if path.name.startswith(f"{holder.pid}-"))
        holder.send_signal(signal.SIGKILL)
    ALIVE.extend(alive)
    assert until_gone(mark) == []
    assert str(home) not in Path("/proc/self/mounts").read_text()
    assert instance in sweep(home)
    assert not (home / "sandboxes" / instance).exists()
    assert [path for parent in cgroups.control().parents.values() for path in parent.glob(f"{instance}*")] == []


def test_there_was_something_to_leave_behind() -> None:
    """The control of the test above: in at least one of its tries commands ran when the kill came."""
    assert ALIVE


async def test_a_killed_fork_server_harms_no_live_box(home: Path) -> None:
    """Boxes outlive the process that made them, and the next create starts a new one."""
    engine = NativeEngine(home)
    box = await engine.create(EnvironmentSpec(), SandboxPolicy())
    os.kill(_fork_server(), signal.SIGKILL)
    assert (await box.exec("echo well")).stdout == b"well\n"
    for _ in range(3):  # the first may still meet the dead one
        try:
            other = await engine.create(EnvironmentSpec(), SandboxPolicy())
            break
        except EnvironmentFault:
            await asyncio.sleep(0.05)
    assert (await other.exec("echo new")).stdout == b"new\n"
    await engine.close()


def _fork_server() -> int:
    """Our child that is called like one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "woodshed-box\n")


async def test_a_killed_box_is_said_to_have_died(home: Path) -> None:
    """When PID 1 of a box is killed from outside, its calls raise SandboxDied, and others are unharmed."""
    engine = NativeEngine(home)
    box, other = [await engine.create(EnvironmentSpec(), SandboxPolicy()) for _ in range(2)]
    running = asyncio.ensure_future(box.exec("sleep 600"))
    await asyncio.sleep(0.05)
    os.kill(box.pid, signal.SIGKILL)
    with pytest.raises(SandboxDied):
        await running
    with pytest.raises(SandboxDied):
        await box.exec("true")
    await box.close()
    assert (await other.exec("echo well")).stdout == b"well\n"
    await engine.close()


async def test_cancelled_work_leaves_nothing(home: Path, mark: str) -> None:
    """A create or exec cancelled at any moment leaves no box, and a cancelled exec's processes end."""
    engine = NativeEngine(home)
    box = await engine.create(EnvironmentSpec(), SandboxPolicy())
    for pause_s in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02):
        making = asyncio.ensure_future(engine.create(EnvironmentSpec(), SandboxPolicy()))
        running = asyncio.ensure_future(box.exec(f"setsid sleep {mark} & sleep {mark}"))
        await asyncio.sleep(pause_s)
        for task in (making, running):
            task.cancel()
        made, _ = await asyncio.gather(making, running, return_exceptions=True)
        if not isinstance(made, BaseException):
            await made.close()
    await box.exec("true")  # answered after the kills before it
    assert await asyncio.to_thread(until_gone, mark) == []
    folders = list((home / "sandboxes").glob("*/*/u"))
    assert len(folders) == 1, folders
    await engine.close()


def test_a_sweep_keeps_to_the_dead(tmp_path: Path) -> None:
    """Folders whose lock is held stay; those without a holder go, whatever lies in them."""
    live = Place(tmp_path)
    live.box("1")
    for name in ("dead", "half-made"):
        (tmp_path / "sandboxes" / name / "7" / "u").mkdir(parents=True)
    (tmp_path / "sandboxes" / "dead" / "lock").touch()
    (tmp_path / "sandboxes" / "dead" / "7" / "u" / "out").symlink_to(tmp_path)
    locked = tmp_path / "sandboxes" / "dead" / "7" / "u" / "closed"
    (locked / "in").mkdir(parents=True)
    locked.chmod(0)
    assert sorted(sweep(tmp_path)) == ["dead", "half-made"]
    assert [path.name for path in (tmp_path / "sandboxes").iterdir()] == [live.instance]
    live.close()
    live.close()
    assert sweep(tmp_path) == []


def test_one_instance_has_one_engine(tmp_path: Path) -> None:
    """A second engine of the same instance name is refused while the first lives."""
    first = Place(tmp_path, "same")
    with pytest.raises(EnvironmentFault, match="in use"):
        Place(tmp_path, "same")
    first.close()
    Place(tmp_path, "same").close()


async def test_a_host_that_gives_nothing_more_is_a_fault(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the disk or the descriptors used up, create raises EnvironmentFault and leaves nothing; then it works."""
    engine = NativeEngine(home)
    box = await engine.create(EnvironmentSpec(), SandboxPolicy())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    for spare in range(8):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, limit[1]))
        try:
            made = await engine.create(EnvironmentSpec(), SandboxPolicy())
        except EnvironmentFault:
            continue
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        await made.close()
    monkeypatch.setattr(Place, "box", _full)
    with pytest.raises(EnvironmentFault, match="No space"):
        await engine.create(EnvironmentSpec(), SandboxPolicy())
    monkeypatch.undo()
    assert (await box.exec("echo well")).stdout == b"well\n"
    boxes = [*(home / "sandboxes").glob("*/*/u")]
    for _ in range(100):  # a box that failed to open is cleared away behind the answer
        if len(boxes) == 1:
            break
        await asyncio.sleep(0.05)
        boxes = [*(home / "sandboxes").glob("*/*/u")]
    assert len(boxes) == 1
    await (await engine.create(EnvironmentSpec(), SandboxPolicy())).close()
    await engine.close()


def _full(place: Place, name: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
