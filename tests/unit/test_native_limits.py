"""Limits of native sandboxes: processes, files, memory, time and output; and what holds without cgroups."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.errors import Unsupported
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.native import cgroups
from woodshed.sandbox.native.engine import NativeEngine

CONTROL = cgroups.control()
NEEDS_MEMORY = pytest.mark.skipif(
    "memory" not in CONTROL.parents, reason="memory cgroups are not ours to make here: run as root or delegate them"
)
SPEC = EnvironmentSpec()


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@NEEDS_MEMORY
async def test_a_memory_hog_is_killed_and_said_to_be(engine: NativeEngine) -> None:
    """Beyond the limit the kernel kills the command: oom_killed says so, and the box lives on. A modest one passes."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(memory_mb=64)))
    hog = await box.exec(["python3", "-c", "print(len(bytearray(300 << 20)))"])
    assert (hog.oom_killed, hog.limits_hit) == (True, ("memory_mb",)), hog
    assert hog.exit_code == 137
    modest = await box.exec(["python3", "-c", "print(len(bytearray(5 << 20)))"])
    assert (modest.oom_killed, modest.stdout) == (False, b"5242880\n")
    killed = await box.exec("kill -9 $$")
    assert (killed.oom_killed, killed.exit_code) == (False, 137)
    paths = box.world.groups.paths
    assert paths
    assert all(path.exists() for path in paths)
    await box.close()
    assert not any(path.exists() for path in paths)


@NEEDS_MEMORY
async def test_filling_memory_files_costs_a_command_not_the_box(engine: NativeEngine) -> None:
    """Files in /tmp count as memory: the writer is killed or refused, and the box still runs small commands."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(memory_mb=64)))
    for place in ("/tmp", "/dev/shm"):
        assert (await box.exec(f"dd if=/dev/zero of={place}/fill bs=1M count=300")).exit_code != 0
    result = await box.exec("python3 -c 'print(6)'; rm /tmp/fill /dev/shm/fill; echo well")
    assert result.stdout == b"6\nwell\n", result


@pytest.mark.skipif("cpu" not in CONTROL.parents, reason="cpu cgroups are not ours to make here: run as root")
async def test_a_cpu_limit_slows_a_busy_command(engine: NativeEngine) -> None:
    """With a tenth of a CPU a command that is busy for 0.2 s of CPU takes well over a second of time."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(cpus=0.1)))
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    result = await box.exec(["python3", "-c", busy])
    assert result.seconds > 1
    assert result.cpu_s is not None
    assert 0.15 < result.cpu_s < 1.0


async def test_without_a_limit_no_cgroup_is_made(engine: NativeEngine) -> None:
    """A box whose policy names neither memory nor CPU costs no cgroup, and no note of one."""
    box = await engine.create(SPEC, SandboxPolicy())
    assert box.world.groups.paths == ()
    assert not (box.world.folder.parent / "cgroups").exists()


async def test_one_file_cannot_outgrow_the_disk_limit(engine: NativeEngine) -> None:
    """A write past disk_mb fails for the writer (SIGXFSZ or EFBIG); files below it are fine; so is /tmp's size."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(disk_mb=4)))
    assert (await box.exec("head -c 6000000 /dev/zero >big")).exit_code != 0
    assert (await box.exec("rm -f big && head -c 3000000 /dev/zero >small")).exit_code == 0
    assert (await box.exec("for i in 1 2 3; do head -c 2000000 /dev/zero >/tmp/$i || exit 1; done")).exit_code != 0


async def test_a_full_process_table_is_said_plainly(engine: NativeEngine) -> None:
    """At the process limit an exec is refused with 126 and the reason; after kill_all commands run again."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(pids=10)))
    script = "import os, time\nwhile True:\n try:\n  os.fork() or time.sleep(600)\n except OSError: time.sleep(0.01)"
    await box.start(["python3", "-c", script])
    while sum(entry.name.isdigit() for entry in await box.list("/proc")) < 11:  # noqa: ASYNC110 (no event inside tells)
        await asyncio.sleep(0.02)
    result = await box.exec("true")
    assert (result.exit_code, result.limits_hit) == (126, ("pids",))
    assert b"processes" in result.stderr
    await box.kill_all()
    assert (await box.exec("echo well")).stdout == b"well\n"


@pytest.mark.skipif("pids" not in CONTROL.parents, reason="pids cgroups are not ours to make here: run as root")
async def test_refused_processes_are_told(engine: NativeEngine) -> None:
    """Where a cgroup counts them, a command that was refused a process says so, whatever it made of that."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(pids=8, cpus=2)))
    script = "import os, time\nfor _ in range(20):\n try:\n  os.fork() or time.sleep(600)\n except OSError: pass"
    bomb = await box.exec(["timeout", "5", "python3", "-c", script])
    assert (bomb.exit_code, bomb.limits_hit) == (0, ("pids",)), bomb
    await box.kill_all()
    assert (await box.exec("true")).limits_hit == ()


async def test_a_hundred_megabytes_of_output_stay_small(engine: NativeEngine) -> None:
    """Of a flood no more than the limit is kept, marked; our own memory does not grow with it."""
    box = await engine.create(SPEC, SandboxPolicy(limits=Limits(output_bytes=100_000)))
    before = _resident_kb()
    result = await box.exec("head -c 100000000 /dev/zero; head -c 100000000 /dev/zero >&2")
    assert (result.exit_code, result.truncated) == (0, True)
    assert len(result.stdout) == len(result.stderr) == 100_000
    assert _resident_kb() - before < 30_000


def _resident_kb() -> int:
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


async def test_long_arguments_pass_and_too_long_ones_are_refused(engine: NativeEngine) -> None:
    """A command larger than a packet arrives whole; one the kernel cannot take is 126 with its reason, no exception."""
    box = await engine.create(SPEC, SandboxPolicy())
    words = ["word" * 20] * 5000
    result = await box.exec(["sh", "-c", 'echo $#', "sh", *words], env={"LARGE": "x" * 100_000})
    assert result.stdout == b"5000\n"
    beyond = await box.exec("true " + "x" * 200_000)
    assert beyond.exit_code == 126
    assert b"too long" in beyond.stderr
    assert (await box.exec(["echo", "a\0b"])).exit_code == 126


async def test_many_entries_are_listed_whole(engine: NativeEngine) -> None:
    """A directory listing larger than a packet arrives whole."""
    box = await engine.create(SPEC, SandboxPolicy())
    await box.exec("for i in $(seq 1500); do echo; done | split -l 1 -a 4 - some-rather-long-file-name-")
    assert len(await box.list(".")) == 1500


async def test_what_the_engine_lacks_is_named(engine: NativeEngine) -> None:
    """Other users where only one exists raise Unsupported with that name."""
    box = await engine.create(SPEC, SandboxPolicy())
    if os.geteuid():
        with pytest.raises(Unsupported, match="user"):
            await box.exec("true", user=1000)
    else:
        assert (await box.exec("id -u; id -g; id -G", user=1000)).stdout == b"1000\n1000\n1000\n"
