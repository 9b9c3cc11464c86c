"""The life of a sandbox: apart from others, set up, limited, and gone when it is closed."""

from __future__ import annotations

import asyncio

from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.interfaces import SandboxEngine
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.conformance.kit import SPEC, Check, MemoryBlobs, opened, raises, shell, sleepers


async def sandboxes_do_not_see_each_other(engine: SandboxEngine) -> None:
    """Files, processes, the loopback network and shared memory of one are not another's."""
    async with opened(engine) as one, opened(engine) as two:
        await one.write("/workspace/mine", b"1")
        await one.write("/dev/shm/mine", b"1")  # noqa: S108
        await one.start("exec sleep 609")
        assert await two.list("/workspace") == []
        assert await two.list("/dev/shm") == []  # noqa: S108
        assert "sleep 609" not in await sleepers(two)
        assert one.id != two.id


async def setup_runs_and_its_failure_is_the_environments(engine: SandboxEngine) -> None:
    """What setup made is there; a setup that fails is an EnvironmentFault with the end of its output."""
    async with opened(engine, EnvironmentSpec(setup="echo ready >state")) as sandbox:
        assert await sandbox.read("/workspace/state") == b"ready\n"
    fault = await raises(
        EnvironmentFault, engine.create(EnvironmentSpec(setup="echo the reason >&2; exit 9"), SandboxPolicy()))
    assert "the reason" in str(fault)


async def limits_hold(engine: SandboxEngine) -> None:
    """Processes beyond the limit are refused inside, and the sandbox answers all the while."""
    async with opened(engine, limits=Limits(pids=40)) as sandbox:
        await sandbox.start("i=0; while [ $i -lt 200 ]; do sleep 610 & i=$((i+1)); done")
        most = before = 0
        for _ in range(40):
            await asyncio.sleep(0.05)
            before, most = most, sum(entry.name.isdigit() for entry in await sandbox.list("/proc"))
            if most == before > 30:
                break
        assert 30 < most <= 42, most  # the sandbox's own first process is not counted
        await sandbox.kill_all()
        assert await shell(sandbox, "echo well") == "well\n"


async def close_ends_everything_at_once(engine: SandboxEngine) -> None:
    """close() is idempotent, works beside a running command, and afterwards every call raises SandboxDied."""
    sandbox = await engine.create(SPEC, SandboxPolicy())
    running = asyncio.ensure_future(sandbox.exec("trap '' TERM; sleep 611"))
    process = await sandbox.start("sleep 612")
    await asyncio.sleep(0.05)
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    await raises(SandboxDied, running)
    await raises(SandboxDied, process.wait())
    for doing in (sandbox.exec("true"), sandbox.read("x"), sandbox.kill_all(), sandbox.changes(MemoryBlobs())):
        await raises(SandboxDied, doing)


async def many_sandboxes_work_at_once(engine: SandboxEngine) -> None:
    """Twenty at a time, each with commands and files of its own, do not mix."""

    async def one(number: int) -> None:
        async with opened(engine) as sandbox:
            await sandbox.write("n", str(number).encode())
            results = await asyncio.gather(*(sandbox.exec(f"cat n; echo -{index}") for index in range(3)))
            assert [result.stdout for result in results] == [f"{number}-{index}\n".encode() for index in range(3)]

    await asyncio.gather(*(one(number) for number in range(20)))


CHECKS: tuple[Check, ...] = (
    sandboxes_do_not_see_each_other, setup_runs_and_its_failure_is_the_environments, limits_hold,
    close_ends_everything_at_once, many_sandboxes_work_at_once,
)
