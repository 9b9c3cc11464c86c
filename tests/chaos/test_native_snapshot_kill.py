"""Whoever takes part in a snapshot is killed in its middle: nothing is left, and no sandbox runs in half a root."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.interfaces import Snapshot
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import cgroups
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.places import sweep

# Takes snapshots of quiet and busy boxes, and forks them, until it is killed.
HOLDER = r"""
import asyncio, sys
from pathlib import Path
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.native.engine import NativeEngine

async def one(engine, busy):
    while True:
        box = await engine.create(EnvironmentSpec(), SandboxPolicy())
        await box.exec("mkdir -p d/d; touch d/d/f; chmod 0 d/d")
        if busy:
            await box.start("exec sleep " + sys.argv[2])
        for _ in range(6):
            await box.exec("echo x >>f")
            snapshot = await box.snapshot()
            print("taken", flush=True)
            fork, = await engine.fork(snapshot)
            blobs = MemoryBlobs()
            adopted = await engine.adopt(await snapshot.export(blobs), blobs, EnvironmentSpec())
            await fork.close()
            for one in (snapshot, adopted):
                await one.release()
        await box.close()

async def main():
    engine = NativeEngine(Path(sys.argv[1]))
    await asyncio.gather(one(engine, False), one(engine, False), one(engine, True))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def home(shed_home: Path) -> Path:
    Images(shed_home).prepare(EnvironmentSpec())
    return shed_home


@pytest.fixture
async def engine(home: Path) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(home)
    yield made
    await made.close()


def alive(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes() and b"python" not in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("attempt", range(4))
def test_a_holder_killed_in_a_snapshot_leaves_nothing(home: Path, attempt: int) -> None:
    """SIGKILL at a random moment of snapshots, forks and exports: no process, no mount, and a sweep removes layers."""
    mark = f"{os.getpid()}.{random.randrange(10**6):06}"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(home), mark], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        for _ in range(2 + attempt):
            assert holder.stdout.readline() == b"taken\n"
        time.sleep(random.random() / 20)
        instance = next(path.name for path in (home / "sandboxes").iterdir() if path.name.startswith(f"{holder.pid}-"))
        holder.send_signal(signal.SIGKILL)
    for _ in range(1000):
        if not alive(mark):
            break
        time.sleep(0.02)
    assert alive(mark) == []
    assert str(home) not in Path("/proc/self/mounts").read_text()
    assert instance in sweep(home)
    assert not (home / "sandboxes" / instance).exists()
    assert [path for parent in cgroups.control().parents.values() for path in parent.glob(f"{instance}*")] == []


class Killer(threading.Thread):
    """Kills what the fork server starts but the boxes, each after a moment."""

    def __init__(self, server: int, boxes: set[int]) -> None:
        super().__init__(daemon=True)
        self.server, self.boxes, self.killed, self.stop = server, boxes, 0, False

    def run(self) -> None:
        children = Path(f"/proc/{self.server}/task/{self.server}/children")
        while not self.stop:
            for child in {int(pid) for pid in children.read_text().split()} - self.boxes:
                time.sleep(random.random() * 0.004)
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                    self.killed += 1


async def test_a_killed_helper_leaves_a_whole_box_or_none(engine: NativeEngine) -> None:
    """Where who changes a root is killed, the box goes on as it was or has died; no layer is seen in it."""
    lived = died = killed = 0
    for _ in range(25):
        box = await engine.create(EnvironmentSpec(), SandboxPolicy())
        await box.exec("echo x >f")
        killer = Killer(_parent(box.pid), {box.pid})
        killer.start()
        try:
            snapshot = await box.snapshot()
            result = await box.exec("cat f; ls /.. | grep -cx '[0-9]'")
            assert result.stdout == b"x\n0\n"
            (fork,) = await _undisturbed(killer, engine, snapshot)
            assert (await fork.exec("cat f")).stdout == b"x\n"
            await fork.close()
            await snapshot.release()
            lived += 1
        except SandboxDied:
            with pytest.raises(SandboxDied):
                await box.exec("true")
            died += 1
        finally:
            killer.stop = True
            await asyncio.to_thread(killer.join)
            killed += killer.killed
            await box.close()
    assert lived + died == 25
    assert killed
    shelf = engine._opening.result().shelf if engine._opening else None
    assert shelf is not None
    assert list(shelf.folder.glob("*")) == []


async def _undisturbed(killer: Killer, engine: NativeEngine, snapshot: Snapshot) -> list[NativeSandbox]:
    killer.stop = True
    await asyncio.to_thread(killer.join)
    return await engine.fork(snapshot)


def _parent(pid: int) -> int:
    """proc_pid_stat(5), the field after the state; a box's name holds no bracket."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_fork_server_killed_in_snapshots_harms_no_box(engine: NativeEngine) -> None:
    """Boxes live on with their files, or are said to have died; the next snapshot but one works again."""
    boxes = [await engine.create(EnvironmentSpec(), SandboxPolicy()) for _ in range(4)]
    for box in boxes:
        await box.exec("echo x >f")
    server = _parent(boxes[0].pid)
    taking = [asyncio.ensure_future(box.snapshot()) for box in boxes]
    await asyncio.sleep(random.random() / 200)
    os.kill(server, signal.SIGKILL)
    taken = await asyncio.gather(*taking, return_exceptions=True)
    for box, snapshot in zip(boxes, taken, strict=True):
        if isinstance(snapshot, BaseException):
            assert isinstance(snapshot, SandboxDied), snapshot
        else:
            assert (await box.exec("cat f")).stdout == b"x\n"
    for _ in range(3):
        with suppress(EnvironmentFault):
            fresh = await engine.create(EnvironmentSpec(), SandboxPolicy())
            break
        await asyncio.sleep(0.05)
    await fresh.exec("echo y >f")
    (fork,) = await engine.fork(await fresh.snapshot())
    assert (await fork.exec("cat f")).stdout == b"y\n"
