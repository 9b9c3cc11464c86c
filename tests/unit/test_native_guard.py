"""What no mechanism of the kernel holds: disk, the host's reserve, memory and CPU without cgroups; and freezing."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.errors import SandboxDied, UsageError
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import cgroups, disk, meter, processes
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.places import sweep

SPEC = EnvironmentSpec()


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@pytest.fixture
async def alone(shed_home: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NativeEngine]:
    """An engine on a machine that has no cgroup for it."""
    monkeypatch.setattr(cgroups, "control", lambda folder=None: cgroups.Control({}, 1, folder=folder))
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


async def a_box(engine: NativeEngine, **limits: float) -> NativeSandbox:
    return await engine.create(SPEC, SandboxPolicy(limits=Limits.model_validate(limits)))


async def names(box: NativeSandbox) -> set[str]:
    return {entry.name for entry in await box.list(".")}


# -- disk ----------------------------------------------------------------------------------------------------------


async def test_who_wrote_nothing_outlives_who_filled_the_disk(engine: NativeEngine) -> None:
    """Of two commands and a server only the one that fills the disk is killed; all that ran are told of the limit."""
    box = await a_box(engine, disk_mb=16)
    server = await box.start("echo up >up; exec sleep 614")
    idle = asyncio.ensure_future(box.exec("sleep 1.5; echo lived"))
    filler = await box.exec("for i in $(seq 20); do head -c 3000000 /dev/zero >f$i; sleep 0.05; done; sleep 20")
    assert (filler.exit_code, filler.limits_hit) == (137, ("disk_mb",)), filler
    other = await idle
    assert (other.stdout, other.limits_hit) == (b"lived\n", ("disk_mb",))
    assert (await box.stats()).processes == 1
    await server.kill()


async def test_a_full_box_takes_no_more_until_it_is_emptied(engine: NativeEngine) -> None:
    """Over the limit each further command that writes is killed in turn, and one that deletes is not."""
    box = await a_box(engine, disk_mb=16)
    fill = "for i in $(seq 20); do head -c 3000000 /dev/zero >$0$i; sleep 0.05; done; sleep 20"
    for name in ("a", "b"):
        result = await box.exec(["sh", "-c", fill, name])
        assert (result.exit_code, result.limits_hit) == (137, ("disk_mb",)), result
    assert (await box.stats()).disk_bytes < 3 * (16 << 20)
    emptied = await box.exec("for f in a* b*; do rm $f; sleep 0.05; done")
    assert (emptied.exit_code, emptied.limits_hit) == (0, ())
    await asyncio.sleep(0.2)
    again = await box.exec("for i in 1 2 3; do head -c 3000000 /dev/zero >c$i; sleep 0.1; done")
    assert (again.exit_code, again.limits_hit) == (0, ())


async def test_a_writer_that_nobody_waits_for_is_found(engine: NativeEngine) -> None:
    """A daemon that goes on filling the disk when its command has ended is killed; nothing of it is left running."""
    box = await a_box(engine, disk_mb=16)
    loop = "i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero >d$i; sleep 0.02; done"
    started = await box.exec(f"setsid sh -c '{loop}' >/dev/null 2>&1 &")
    assert started.exit_code == 0
    for _ in range(200):
        if not (await box.stats()).processes:
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("it still writes")
    assert (await box.exec("true")).exit_code == 0


async def test_a_sessions_shell_outlives_its_commands_disk(engine: NativeEngine) -> None:
    """In a session the command that fills the disk is killed and told; the shell with its variables stays."""
    box = await a_box(engine, disk_mb=16)
    session = await box.session()
    await session.run("kept=yes")
    fill = "for i in $(seq 20); do head -c 3000000 /dev/zero >f$i; sleep 0.05; done; sleep 20"
    filled = await session.run(f"sh -c '{fill}'")
    assert (filled.exit_code, filled.limits_hit) == (137, ("disk_mb",)), filled
    after = await session.run("rm -f f*; echo $kept")
    assert (after.stdout, after.limits_hit) == (b"yes\n", ())
    await session.close()


async def test_files_without_a_name_count(engine: NativeEngine) -> None:
    """Files that were deleted while they are open take room all the same."""
    box = await a_box(engine, disk_mb=16)
    script = ("import os, time\nheld = []\nfor i in range(20):\n f = open(f'z{i}', 'wb'); os.unlink(f'z{i}')\n"
              " f.write(bytes(3000000)); f.flush(); held.append(f); time.sleep(0.05)\ntime.sleep(20)")
    result = await box.exec(["python3", "-c", script])
    assert (result.exit_code, result.limits_hit) == (137, ("disk_mb",)), result
    assert await names(box) == set()


async def test_a_box_that_ended_or_rests_is_not_looked_at(engine: NativeEngine) -> None:
    """The one timer stops when nothing runs, begins again with a command, and goes when the engine does."""
    box = await a_box(engine)
    await box.exec("true")
    assert engine._opening is not None
    watcher = engine._opening.result().guard
    for _ in range(100):
        if watcher._timer is None:
            break
        await asyncio.sleep(0.02)
    assert (watcher._timer, watcher._active) == (None, {})
    waiting = await box.start("sleep 615")
    assert watcher._timer is not None
    await asyncio.sleep(0.2)
    assert list(watcher._active) == [box.id]
    await waiting.kill()
    await box.close()
    assert (watcher._active, watcher._boxes) == ({}, {})


async def test_the_hosts_reserve_ends_the_box_that_writes(
    shed_home: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the host has no room left, a box within its limits that writes is ended as the environment's fault."""
    room = disk.room(shed_home)
    monkeypatch.setenv("WOODSHED_DISK_RESERVE_MB", str((room.bytes >> 20) + 100_000))
    engine = NativeEngine(shed_home, images=images)
    try:
        quiet, writer = await a_box(engine), await a_box(engine)
        resting = asyncio.ensure_future(quiet.exec("sleep 1; echo lived"))
        with pytest.raises(SandboxDied, match="disk is nearly full"):
            await writer.exec("for i in $(seq 100); do head -c 3000000 /dev/zero >f$i; sleep 0.05; done")
        assert (await resting).stdout == b"lived\n"
    finally:
        await engine.close()
    monkeypatch.setenv("WOODSHED_DISK_RESERVE_MB", "much")
    with pytest.raises(UsageError, match="WOODSHED_DISK_RESERVE_MB"):
        await a_box(NativeEngine(shed_home, images=images))


@given(paths=st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5), max_size=15),
       sizes=st.lists(st.integers(0, 20_000), min_size=15, max_size=15),
       closed=st.sampled_from([None, 0, 0o400, 0o100]))
@settings(deadline=None, max_examples=40)
def test_what_is_counted_is_what_lies_there(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]], sizes: list[int], closed: int | None
) -> None:
    """Bytes are du's, entries are find's, closed directories included; links count as links, second names once."""
    base = tmp_path_factory.mktemp("count")
    (outside := base / "outside").mkdir()
    (outside / "large").write_bytes(bytes(300_000))
    (top := base / "top").mkdir()
    for path, size in zip(paths, sizes, strict=False):
        (directory := top.joinpath(*path)).mkdir(parents=True, exist_ok=True)
        (directory / "file").write_bytes(os.urandom(size))
        if not (directory / "link").is_symlink():
            (directory / "link").symlink_to(outside)
            (directory / "again").hardlink_to(directory / "file")
    entries = list(top.rglob("*"))
    blocks = {info.st_ino: info.st_blocks * 512 for info in (entry.lstat() for entry in entries)}
    shut = next((entry for entry in entries if entry.is_dir() and not entry.is_symlink()), None)
    if closed is not None and shut is not None:
        shut.chmod(closed)
    found = disk.used(top)
    assert (found.bytes, found.files, found.whole) == (sum(blocks.values()), len(entries), True)
    if closed is not None and shut is not None:
        assert stat.S_IMODE(shut.stat().st_mode) == closed
        shut.chmod(0o700)
    if len(entries) > 3:
        assert not disk.used(top, at_most=3).whole


def test_depth_is_counted_to_a_bound(tmp_path: Path) -> None:
    """Paths longer than the kernel takes are counted as well; absurd ones end the count, which says so."""
    name = "d" * 250
    for levels, whole in ((100, True), (560, False)):
        fd = os.open(tmp_path, os.O_RDONLY)
        for _ in range(levels):
            with_name = f"{name}{levels}"[:255]
            os.mkdir(with_name, dir_fd=fd)
            below = os.open(with_name, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
        found = disk.used(tmp_path)
        assert found.whole == whole
        assert found.files >= (100 if whole else 400)
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


# -- memory and CPU without cgroups --------------------------------------------------------------------------------


async def test_without_cgroups_the_largest_process_is_killed(alone: NativeEngine) -> None:
    """A box over its memory loses its largest process, the command is told, and smaller ones live."""
    box = await a_box(alone, memory_mb=64)
    small = await box.start("exec sleep 616")
    hog = await box.exec(["python3", "-c", "import time\nx = b'x' * (200 << 20)\ntime.sleep(20)"])
    assert (hog.exit_code, hog.oom_killed, hog.limits_hit) == (137, False, ("memory_mb",)), hog
    assert (await box.stats()).processes == 1
    await small.kill()
    modest = await box.exec(["python3", "-c", "import time\nx = bytearray(20 << 20)\ntime.sleep(0.3)\nprint(len(x))"])
    assert (modest.stdout, modest.limits_hit) == (b"20971520\n", ())


async def test_without_cgroups_a_busy_box_stands_still_in_between(alone: NativeEngine) -> None:
    """With a fifth of a CPU, 0.3 s of CPU take over a second; a command within its share is never stopped."""
    box = await a_box(alone, cpus=0.2)
    busy = await box.exec(["python3", "-c", "import time\nwhile time.process_time() < 0.3: pass"])
    assert busy.exit_code == 0
    assert busy.seconds > 1
    assert (await box.exec("sleep 0.3; echo well")).stdout == b"well\n"


async def test_memory_shared_between_processes_counts_once(alone: NativeEngine) -> None:
    """Forked children that only read what their parent made do not add up to a breach."""
    box = await a_box(alone, memory_mb=120)
    script = ("import os, time\nx = b'x' * (60 << 20)\nfor _ in range(4):\n if not os.fork():\n  time.sleep(1)\n"
              "  os._exit(0)\nfor _ in range(4): os.wait()\nprint('well')")
    result = await box.exec(["python3", "-c", script])
    assert (result.stdout, result.limits_hit) == (b"well\n", ())


# -- figures and freezing ------------------------------------------------------------------------------------------


def test_pressure_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    """The ten-second average of 'some', as a share; None where the kernel does not tell."""
    for name, value in (("cpu", 12.5), ("memory", 0.0), ("io", 100.0)):
        (tmp_path / name).write_text(f"some avg10={value:.2f} avg60=1.00 avg300=2.00 total=3\nfull avg10=9.00 total=1")
    told = meter.pressure(tmp_path)
    assert told is not None
    assert (told.cpu, told.memory, told.io) == (0.125, 0.0, 1.0)
    (tmp_path / "io").write_text("nonsense")
    assert meter.pressure(tmp_path) is None
    assert meter.pressure(tmp_path / "nothing") is None


async def test_stats_tell_cpu_memory_and_disk(engine: NativeEngine, alone: NativeEngine) -> None:
    """With cgroups and without: CPU of ended commands, memory of live ones and of memory files, bytes written."""
    for made in (engine, alone):
        box = await a_box(made, memory_mb=300, cpus=2)
        await box.exec(["python3", "-c", "import time\nwhile time.process_time() < 0.2: pass"])
        await box.exec("head -c 3000000 /dev/urandom >big; sync big; head -c 5000000 /dev/zero >/tmp/x")
        await box.start(["python3", "-c", "import time\nx = b'x' * (40 << 20)\nopen('made', 'w')\ntime.sleep(600)"])
        while "made" not in await names(box):  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0.02)
        told = await box.stats()
        assert told.cpu_s is not None
        assert 0.2 <= told.cpu_s < 5, told
        assert told.memory_bytes is not None
        assert told.memory_bytes > 44 << 20, told
        assert told.memory_peak_bytes is not None
        assert told.memory_peak_bytes > 40 << 20
        assert told.disk_bytes >= 3_000_000
        assert told.processes == 1
        await box.close()
        with pytest.raises(SandboxDied):
            await box.stats()


async def test_without_a_frozen_group_signals_stop_and_jobs_stay_stopped(alone: NativeEngine) -> None:
    """SIGSTOP does where no cgroup can; a process that was stopped before stays so when the box is thawed."""
    box = await a_box(alone)
    script = "sleep 617 & sleep 0.2; kill -STOP $!; while :; do date +%N >ticks; sleep 0.02; done"
    shell = await box.start(script)
    while "ticks" not in await names(box):  # noqa: ASYNC110 (no event tells)
        await asyncio.sleep(0.02)
    await box.freeze()
    stood = await box.read("ticks")
    await asyncio.sleep(0.1)
    assert await box.read("ticks") == stood
    await box.thaw()
    await asyncio.sleep(0.1)
    assert await box.read("ticks") != stood
    states = (await box.exec("cat /proc/[0-9]*/stat")).stdout
    assert b"(sleep) T" in states
    assert b"(sh) T" not in states
    await shell.kill()


async def test_freezing_stops_a_fork_bomb(engine: NativeEngine, alone: NativeEngine) -> None:
    """However fast processes multiply, all of them stand still, and afterwards all can be killed."""
    for made in (engine, alone):
        box = await a_box(made, pids=60)
        await box.start(["python3", "-c", "import os\nwhile True:\n try: os.fork()\n except OSError: pass"])
        await asyncio.sleep(0.3)
        await box.freeze()
        used = processes.total(box.pid, processes.descendants(box.pid)).cpu_s
        await asyncio.sleep(0.2)
        assert processes.total(box.pid, processes.descendants(box.pid)).cpu_s == used
        await box.kill_all()
        await box.thaw()
        assert (await box.exec("echo well")).stdout == b"well\n"
        await box.close()


HOLDER = """
import asyncio, sys
from pathlib import Path
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.native.engine import NativeEngine

async def main():
    engine = NativeEngine(Path(sys.argv[1]))
    box = await engine.create(EnvironmentSpec(), SandboxPolicy(limits=Limits(memory_mb=128, cpus=1)))
    await box.start(["sleep", sys.argv[2]])
    await box.freeze()
    print(box.id.rpartition("-")[0], flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_killed_engine_leaves_no_frozen_box(shed_home: Path) -> None:
    """What stood still ends with its engine, and the sweep removes the groups it stood in."""
    control, nap = cgroups.control(), f"619.{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(shed_home), nap], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        instance = holder.stdout.readline().decode().strip()
        made = [top for top in control._tops(instance) if top.exists()]
        assert bool(made) == bool(control.parents or control.freezer)
        holder.kill()
    for _ in range(500):
        if not any(nap.encode() in _words(path) for path in Path("/proc").glob("[0-9]*/cmdline")):
            break
        time.sleep(0.02)
    else:
        raise AssertionError("a frozen process outlived its engine")
    assert instance in sweep(shed_home)
    assert not any(top.exists() for top in made)


def _words(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")[:2]
    except OSError:
        return []


def test_descendants_are_found_without_the_kernels_help() -> None:
    """By parents alone the same processes are found as by the kernel's own lists of children."""
    script = "sleep 620 & (sleep 620 & sleep 620; true) & wait"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as shell:
        try:
            for _ in range(500):
                if len(processes.descendants(shell.pid)) == 4:
                    break
                time.sleep(0.01)
            assert sorted(processes._by_parent(shell.pid)) == sorted(processes.descendants(shell.pid))
            assert shell.pid in processes.descendants(os.getpid())
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


async def test_a_wall_limit_of_one_box_is_not_anothers(engine: NativeEngine) -> None:
    """The box whose time is over says so; another lives on, and closing in time ends the clock."""
    short, other = await a_box(engine, wall_s=0.4), await a_box(engine)
    started = time.monotonic()
    with pytest.raises(SandboxDied, match=r"wall time of 0\.4 s is over"):
        await short.exec("sleep 618")
    assert time.monotonic() - started >= 0.3
    early = await a_box(engine, wall_s=0.5)
    await early.close()
    await asyncio.sleep(0.6)
    with pytest.raises(SandboxDied, match="it was closed"):
        await early.exec("true")
    assert (await other.exec("echo well")).stdout == b"well\n"


async def test_a_box_near_its_limit_is_counted_more_often(engine: NativeEngine) -> None:
    """What makes a count due shrinks with what is left, and never below what directories may take."""
    box = await a_box(engine, disk_mb=1024, files=10_000)
    assert engine._opening is not None
    watched = engine._opening.result().guard._boxes[box.id]
    near = []
    for used in (0, 512 << 20, 1000 << 20, 1024 << 20, 2048 << 20):
        watched.used = disk.Used(used, 10)
        near.append(watched.near()[0])
    assert near == [512 << 20, 256 << 20, 12 << 20, 4 << 20, 4 << 20]
