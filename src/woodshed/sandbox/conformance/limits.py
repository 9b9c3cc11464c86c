"""Declared limits hold while commands run, are told, and cost a command, not the sandbox; and it can be measured."""

from __future__ import annotations

import asyncio

from woodshed.errors import SandboxDied
from woodshed.interfaces import Sandbox, SandboxEngine
from woodshed.model import Limits, SandboxPolicy
from woodshed.sandbox.conformance.kit import SPEC, Check, MemoryBlobs, captured, needs, opened, raises, shell

_HOG = "(head -c 300000000 /dev/zero; sleep 1) | tail -n 1"  # one line without an end: tail keeps all of it


async def _well(sandbox: Sandbox) -> None:
    assert await shell(sandbox, "echo well") == "well\n"


@needs("memory")
async def memory_beyond_the_limit_costs_a_command(engine: SandboxEngine) -> None:
    """A command that takes more than memory_mb is killed, its result says so, and the sandbox goes on."""
    async with opened(engine, limits=Limits(memory_mb=64)) as sandbox:
        hog = await sandbox.exec(_HOG)
        assert "memory_mb" in hog.limits_hit, hog
        assert hog.exit_code != 0, hog
        modest = await sandbox.exec("head -c 3000000 /dev/zero | tail -n 1 | wc -c")
        assert (modest.stdout.strip(), modest.limits_hit, modest.oom_killed) == (b"3000000", (), False), modest


@needs("memory")
async def memory_files_do_not_use_up_the_memory(engine: SandboxEngine) -> None:
    """Whatever fills /tmp and /dev/shm is refused or killed, and afterwards commands run all the same."""
    async with opened(engine, limits=Limits(memory_mb=64)) as sandbox:
        for target in ("/tmp/fill", "/dev/shm/fill"):  # noqa: S108 (of the sandbox)
            await sandbox.exec(f"head -c 300000000 /dev/zero >{target}")
        assert await shell(sandbox, "rm -f /tmp/fill /dev/shm/fill; echo well") == "well\n"


@needs("cpus")
async def cpu_time_is_bounded(engine: SandboxEngine) -> None:
    """Two busy loops with a fifth of a CPU get about that much of the time, whatever else the machine has to do."""
    async with opened(engine, limits=Limits(cpus=0.2)) as sandbox:
        loop = "timeout 1.5 sh -c 'while :; do :; done'"
        result = await sandbox.exec(f"{loop} & {loop} & wait")
        assert result.cpu_s is not None
        assert result.cpu_s < 0.5 * result.seconds, result


@needs("disk")
async def a_full_disk_costs_a_command(engine: SandboxEngine) -> None:
    """What writes more than disk_mb, in however many files, is ended while it runs; then files can be deleted."""
    async with opened(engine, limits=Limits(disk_mb=24)) as sandbox:
        filler = "for i in $(seq 40); do head -c 4000000 /dev/zero >fill$i; sleep 0.02; done; sleep 20"
        filled = await sandbox.exec(filler)
        assert filled.limits_hit == ("disk_mb",), filled
        assert filled.exit_code != 0, filled
        assert await shell(sandbox, "rm -f fill*; sleep 0.2; ls") == ""
        again = await sandbox.exec(filler)
        assert again.limits_hit == ("disk_mb",), again
        await _well(sandbox)


@needs("disk")
async def too_many_files_cost_a_command(engine: SandboxEngine) -> None:
    """What makes more entries than files is ended while it runs, though they are empty; the sandbox goes on."""
    async with opened(engine, limits=Limits(files=1000)) as sandbox:
        made = await sandbox.exec("i=0; while [ $i -lt 40000 ]; do : >n$i; i=$((i+1)); done; sleep 20")
        assert made.limits_hit == ("files",), made
        await shell(sandbox, "find . -name 'n*' -delete")
        await _well(sandbox)


async def wall_time_ends_the_sandbox(engine: SandboxEngine) -> None:
    """After wall_s whoever waits for a command, or asks later, gets SandboxDied, which names the limit."""
    async with opened(engine, limits=Limits(wall_s=0.6)) as sandbox:
        fault = await raises(SandboxDied, sandbox.exec("sleep 30"))
        assert "wall" in str(fault), fault
        assert "wall" in str(await raises(SandboxDied, sandbox.exec("true")))
    async with opened(engine, limits=Limits(wall_s=600)) as sandbox:
        await _well(sandbox)


async def open_files_are_bounded(engine: SandboxEngine) -> None:
    """No process may raise its bound of open descriptors beyond open_files."""
    async with opened(engine, limits=Limits(open_files=200)) as sandbox:
        assert await shell(sandbox, "ulimit -Hn; ulimit -n 201 2>/dev/null && echo raised; true") == "200\n"


async def cut_output_is_told(engine: SandboxEngine) -> None:
    """More than output_bytes of a stream is a limit reached; a smaller bound of one call is none."""
    async with opened(engine, limits=Limits(output_bytes=5000)) as sandbox:
        cut = await sandbox.exec("head -c 10000 /dev/zero")
        assert (cut.truncated, cut.limits_hit) == (True, ("output_bytes",))
        asked = await sandbox.exec("head -c 3000 /dev/zero", output_bytes=1000)
        assert (asked.truncated, asked.limits_hit) == (True, ())


_CLOCK = "while :; do date +%s%N >now; sleep 0.02; done"


@needs("freeze")
async def frozen_means_that_nothing_runs(engine: SandboxEngine) -> None:
    """From freeze to thaw nothing changes and no command begins; each may be called twice; then everything goes on."""
    async with opened(engine) as sandbox:
        clock = await sandbox.start(_CLOCK)
        while not any(entry.name == "now" for entry in await sandbox.list(".")):  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0.02)
        await sandbox.freeze()
        await sandbox.freeze()
        stood = await sandbox.read("now")
        waiting = asyncio.ensure_future(sandbox.exec("echo begun >begun"))
        late = await sandbox.exec("echo late >late", timeout_s=0.1)
        assert late.timed_out
        assert await sandbox.read("now") == stood
        assert not waiting.done()
        await sandbox.thaw()
        await sandbox.thaw()
        assert (await waiting).exit_code == 0
        async with asyncio.timeout(60):
            while await sandbox.read("now") == stood:  # noqa: ASYNC110 (no event tells)
                await asyncio.sleep(0.02)
        assert {entry.name for entry in await sandbox.list(".")} == {"now", "begun"}
        await clock.kill()


@needs("freeze")
async def what_is_frozen_can_be_ended(engine: SandboxEngine) -> None:
    """Killing and closing work while a sandbox stands still."""
    async with opened(engine) as sandbox:
        clock = await sandbox.start(_CLOCK)
        await sandbox.freeze()
        await clock.kill()
        assert await clock.wait() == 137
        await sandbox.start(_CLOCK)
        await sandbox.kill_all()
        await sandbox.thaw()
        await _well(sandbox)
        await sandbox.start(_CLOCK)
        await sandbox.freeze()
    await raises(SandboxDied, sandbox.exec("true"))


@needs("freeze")
async def what_is_frozen_can_be_captured(engine: SandboxEngine) -> None:
    """Changes are captured while a sandbox stands still, as of that moment, and make the same files elsewhere."""
    async with opened(engine) as sandbox:
        clock = await sandbox.start(_CLOCK)
        await shell(sandbox, "until test -e now; do sleep 0.01; done")
        await shell(sandbox, "mkdir -p d/e; echo one >d/e/f; rm -f /etc/motd; echo two >/etc/two; ln -s d link")
        await sandbox.freeze()
        stood, blobs = await sandbox.read("now"), MemoryBlobs()
        changes = await sandbox.changes(blobs, roots=("/",))
        await sandbox.thaw()
        await clock.kill()
        await _well(sandbox)
    restored = await engine.create(SPEC, SandboxPolicy(), restore=(changes, blobs))
    try:
        assert await restored.read("now") == stood
        assert await shell(restored, "cat link/e/f /etc/two; ls /etc/motd 2>&1 | grep -c '^/etc/motd$'; true") \
            == "one\ntwo\n0\n"
        again, _ = await captured(restored, "/")
        assert {change.path for change in changes.changes} <= {change.path for change in again.changes}
    finally:
        await restored.close()


async def stats_grow_with_use(engine: SandboxEngine) -> None:
    """CPU time, disk use, entries and live processes are counted; pressure lies between 0 and 1."""
    async with opened(engine) as sandbox:
        before = await sandbox.stats()
        await sandbox.exec("head -c 3000000 /dev/zero >big; i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; sync")
        await sandbox.start("exec sleep 613")
        after = await sandbox.stats()
        assert after.disk_bytes - before.disk_bytes >= 3_000_000, (before, after)
        assert after.files > before.files
        assert after.processes == before.processes + 1
        if before.cpu_s is not None and after.cpu_s is not None:
            assert after.cpu_s > before.cpu_s
        if after.memory_peak_bytes is not None:
            assert after.memory_peak_bytes > 100_000
        if after.pressure is not None:
            assert all(0 <= share <= 1 for share in (after.pressure.cpu, after.pressure.memory, after.pressure.io))


CHECKS: tuple[Check, ...] = (
    memory_beyond_the_limit_costs_a_command, memory_files_do_not_use_up_the_memory, cpu_time_is_bounded,
    a_full_disk_costs_a_command, too_many_files_cost_a_command, wall_time_ends_the_sandbox, open_files_are_bounded,
    cut_output_is_told, frozen_means_that_nothing_runs, what_is_frozen_can_be_ended,
    what_is_frozen_can_be_captured, stats_grow_with_use,
)
