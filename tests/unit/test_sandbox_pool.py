"""The pool: sandboxes of kinds that are asked for again stand ready, and what they cost stays bounded."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.interfaces import Sandbox
from woodshed.model import Change, ChangeKind, ChangeSet, EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox import conformance
from woodshed.sandbox.conformance import MemoryBlobs, changes, life
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.pool import Pool, PoolStats

SPEC, POLICY = EnvironmentSpec(), SandboxPolicy()


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


async def until(pool: Pool, holds: Callable[[PoolStats], bool]) -> PoolStats:
    """The pool's figures once they are as wanted, or as they stay."""
    for _ in range(500):
        if holds(pool.stats):
            break
        await asyncio.sleep(0.01)
    return pool.stats


async def ask(pool: Pool, spec: EnvironmentSpec = SPEC, policy: SandboxPolicy = POLICY, times: int = 1) -> None:
    for _ in range(times):
        await (await pool.create(spec, policy)).close()


async def test_what_is_asked_for_again_stands_ready(engine: NativeEngine) -> None:
    """The third sandbox of a kind comes from the reserve, is as fresh as any, and the reserve fills up again."""
    pool = Pool(engine, warm=2)
    spec = EnvironmentSpec(setup="echo made >state", env={"A": "b"})
    first = await pool.create(spec, POLICY)
    await first.write("state", b"changed")
    await asyncio.sleep(0.1)
    assert pool.stats == PoolStats(claims=1)
    second = await pool.create(spec, POLICY)
    stats = await until(pool, lambda stats: stats.idle == 2)
    assert (stats.hits, stats.misses, stats.idle) == (0, 2, 2)
    third = await pool.create(spec, POLICY)
    assert pool.stats.hits == 1
    assert len({box.id for box in (first, second, third)}) == 3
    assert (await third.exec("cat state; echo $A")).stdout == b"made\nb\n"
    assert (await until(pool, lambda stats: stats.idle == 2)).idle == 2
    assert pool.stats.hit_rate == pytest.approx(1 / 3)
    await pool.close()


async def test_kinds_do_not_mix(engine: NativeEngine) -> None:
    """Another environment, setup or policy is another kind."""
    pool = Pool(engine, warm=1)
    kinds = [(EnvironmentSpec(env={"N": "1"}), POLICY), (EnvironmentSpec(env={"N": "2"}), POLICY),
             (EnvironmentSpec(env={"N": "2"}), SandboxPolicy(limits=Limits(output_bytes=10)))]
    for spec, policy in kinds:
        await ask(pool, spec, policy, times=2)
    assert (await until(pool, lambda stats: stats.idle == 3)).idle == 3
    for (spec, policy), expected in zip(kinds, ((b"1\n", False), (b"2\n", False), (b"2\n", True)), strict=True):
        box = await pool.create(spec, policy)
        flood = await box.exec("head -c 100 /dev/zero")
        assert ((await box.exec("echo $N")).stdout, flood.truncated) == expected
        await box.close()
    assert pool.stats.hits == 3
    await pool.close()


async def test_what_cannot_come_from_a_reserve_is_made(engine: NativeEngine) -> None:
    """With changes to restore, a limited life or no reserve wanted, the engine makes it and nothing is kept."""
    blobs = MemoryBlobs()
    change = Change(path="/workspace/f", kind=ChangeKind.FILE, size=1, sha256=blobs.put(b"x"))
    pool, none = Pool(engine, warm=1), Pool(engine, warm=0)
    for _ in range(3):
        box = await pool.create(SPEC, POLICY, restore=(ChangeSet(changes=(change,)), blobs))
        assert await box.read("f") == b"x"
        await box.close()
    await ask(pool, policy=SandboxPolicy(limits=Limits(wall_s=60)), times=3)
    await ask(none, times=3)
    await asyncio.sleep(0.1)
    assert pool.stats == none.stats == PoolStats()
    await pool.close()


async def test_the_dead_are_passed_over(engine: NativeEngine) -> None:
    """A sandbox that died in the reserve is not handed out."""
    pool = Pool(engine, warm=1)
    await ask(pool, times=2)
    await until(pool, lambda stats: stats.idle == 1)
    (waiting,) = engine._boxes.values()
    os.kill(waiting.pid, signal.SIGKILL)
    with pytest.raises(SandboxDied):
        await waiting.exec("sleep 600")
    box = await pool.create(SPEC, POLICY)
    assert (await box.exec("echo well")).stdout == b"well\n"
    assert (pool.stats.died, pool.stats.hits) == (1, 0)
    await pool.close()


async def test_the_reserve_is_bounded(engine: NativeEngine) -> None:
    """No more than ``most`` are kept in all: the kind asked for longest ago gives way."""
    pool = Pool(engine, warm=1, most=2)
    specs = [EnvironmentSpec(env={"N": str(number)}) for number in range(3)]
    for number, spec in enumerate(specs):
        await ask(pool, spec, times=2)
        wanted = min(2, number + 1), number // 2
        await until(pool, lambda stats, wanted=wanted: (stats.idle, stats.evictions) == wanted)  # type: ignore[misc]
    assert (pool.stats.idle, pool.stats.evictions) == (2, 1)
    await ask(pool, specs[2])
    assert pool.stats.hits == 1
    await ask(pool, specs[0])
    assert pool.stats.hits == 1
    await pool.close()


async def test_the_reserve_does_not_last(engine: NativeEngine) -> None:
    """What nobody wanted for ``idle_s`` goes, and does not come back before its kind is asked for again."""
    pool = Pool(engine, warm=2, idle_s=0.1)
    await ask(pool, times=2)
    assert (await until(pool, lambda stats: stats.evictions == 2)).evictions == 2
    await asyncio.sleep(0.05)
    assert pool.stats.idle == 0
    assert not engine._boxes
    await pool.close()


async def test_a_kind_that_fails_has_no_reserve(engine: NativeEngine) -> None:
    """What cannot be made is tried when it is asked for, and the asker meets the reason."""
    pool = Pool(engine, warm=1)
    for _ in range(3):
        with pytest.raises(EnvironmentFault, match="exited 7"):
            await pool.create(EnvironmentSpec(setup="exit 7"), POLICY)
    await ask(pool, times=2)
    assert (await until(pool, lambda stats: stats.idle == 1)).idle == 1
    await pool.close()


async def test_close_ends_the_reserve_and_the_engine(engine: NativeEngine, shed_home: Path) -> None:
    """Nothing is left after close, also when it comes while the reserve is filled; it is idempotent."""
    for pause_s in (0.0, 0.011, 0.013, 0.03):
        pool = Pool(NativeEngine(shed_home, images=engine._images), warm=3)
        box = await pool.create(SPEC, POLICY)
        await ask(pool)
        await asyncio.sleep(pause_s)
        await asyncio.gather(pool.close(), pool.close())
        await pool.close()
        with pytest.raises(SandboxDied):
            await box.exec("true")
        with pytest.raises(EnvironmentFault):
            await pool.create(SPEC, POLICY)
    assert list((shed_home / "sandboxes").iterdir()) == []


async def test_many_ask_at_once(engine: NativeEngine) -> None:
    """Sandboxes of one kind, asked for by many at once again and again, are each one's own."""
    pool = Pool(engine, warm=4)

    async def one(number: int) -> None:
        for _ in range(4):
            box: Sandbox = await pool.create(SPEC, POLICY)
            assert await box.list("/workspace") == []
            await box.write("n", str(number).encode())
            assert await box.read("n") == str(number).encode()
            await box.close()
            await asyncio.sleep(0.03)

    await asyncio.gather(*(one(number) for number in range(8)))
    stats = pool.stats
    assert stats.claims == 32
    assert stats.hits + stats.misses == 32
    assert stats.idle <= 4
    await pool.close()


async def test_an_engine_in_a_pool_is_still_one(engine: NativeEngine) -> None:
    """Life and changes hold of pooled sandboxes as of others, and forks and capabilities are the engine's."""
    pool = Pool(engine, warm=1)
    assert (pool.name, pool.capabilities) == (engine.name, engine.capabilities)
    outcomes = await conformance.run(pool, (*life.CHECKS, *changes.CHECKS))
    assert {name: reason for name, reason in outcomes.items() if reason} == {}
    box = await pool.create(SPEC, POLICY)
    assert isinstance(box, NativeSandbox)
    snapshot = await box.snapshot()
    (fork,) = await pool.fork(snapshot)
    assert isinstance(fork, NativeSandbox)
    blobs = MemoryBlobs()
    adopted = await pool.adopt(await snapshot.export(blobs), blobs, SPEC)
    assert adopted.digest == snapshot.digest
    await pool.close()
