"""An engine of ours under measurement, through the protocol that everything else uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from woodshed.errors import EnvironmentFault
from woodshed.interfaces import Sandbox, SandboxEngine, Snapshot
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.pool import Pool
from woodshed.services.benching.subject import BURST, CREATE, EXEC, FORK, SNAPSHOT, WARM, Missing, Subject

TRUE = ("/bin/true",)
RESERVE = BURST + 1
"""What a burst claims, its first sample included."""
_WANTED_AFTER, _FILLED_WITHIN_S = 2, 30.0


class Shed:
    """Its bursts. What stands between them (a sandbox to run in, a snapshot to fork) is made when first needed."""

    def __init__(
        self, engine: SandboxEngine, spec: EnvironmentSpec, policy: SandboxPolicy, *, pool: Pool | None = None
    ) -> None:
        """``pool``, over an engine of its own, keeps :data:`RESERVE` sandboxes ready; without it none is claimed."""
        self.engine, self.spec, self.policy, self._pool = engine, spec, policy, pool
        self._standing: Sandbox | None = None
        self._snapshot: Snapshot | None = None
        self.phases: dict[str, list[float]] = {"create": [], "first_exec": [], "close": []}

    def subject(self, name: str, about: str, *, lacks: str = "", whole: bool = True) -> Subject:
        """All that can be measured of it; what depends on no image or policy only where ``whole``."""
        bursts = {CREATE: self.create, EXEC: self.exec, WARM: self.warm, SNAPSHOT: self.snapshot, FORK: self.fork}
        if not whole:
            bursts = {CREATE: self.create, EXEC: self.exec}
        return Subject(name, about, lacks, dict(bursts), close=self.close, phases=self.phases)

    async def create(self, count: int) -> list[float]:
        """Create, run true, close."""
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            box = await self.engine.create(self.spec, self.policy)
            created = time.perf_counter()
            await _true(box)
            ran = time.perf_counter()
            await box.close()
            ended = time.perf_counter()
            samples.append(1000 * (ended - began))
            for phase, seconds in (("create", created - began), ("first_exec", ran - created), ("close", ended - ran)):
                self.phases[phase].append(1000 * seconds)
        for values in self.phases.values():
            del values[-count]  # the sample that is thrown away
        return samples

    async def exec(self, count: int) -> list[float]:
        """Run true in a sandbox that stands."""
        if self._standing is None:
            self._standing = await self.engine.create(self.spec, self.policy)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            await _true(self._standing)
            samples.append(1000 * (time.perf_counter() - began))
        return samples

    async def warm(self, count: int) -> list[float]:
        """Claim a sandbox that was made in advance, and run true in it."""
        if self._pool is None:
            raise Missing("no pool is measured")
        await self._filled(self._pool)
        hits, samples, claimed = self._pool.stats.hits, list[float](), list[Sandbox]()
        for _ in range(count):  # closed afterwards: a pool makes new ones when nobody has asked for a moment
            began = time.perf_counter()
            claimed.append(await self._pool.create(self.spec, self.policy))
            await _true(claimed[-1])
            samples.append(1000 * (time.perf_counter() - began))
        for box in claimed:
            await box.close()
        if self._pool.stats.hits - hits < count:
            raise Missing("the pool had fewer sandboxes ready than were claimed")
        await self._filled(self._pool)  # or it would fill up while something else is measured
        return samples

    async def _filled(self, pool: Pool) -> None:
        """Its reserve is complete. Raises Missing where that takes unreasonably long."""
        until = time.monotonic() + _FILLED_WITHIN_S
        while pool.stats.claims < _WANTED_AFTER:
            await (await pool.create(self.spec, self.policy)).close()
        while pool.stats.idle < RESERVE:
            if time.monotonic() > until:
                raise Missing(f"the pool was not filled within {_FILLED_WITHIN_S:.0f} s")
            await asyncio.sleep(0.01)

    async def snapshot(self, count: int) -> list[float]:
        """Keep the files of a live sandbox in which nothing runs, with a change since the last time."""
        samples = []
        async with self._fresh() as box:
            for number in range(count):
                await box.write("/workspace/change", str(number).encode())
                began = time.perf_counter()
                taken = await box.snapshot()
                samples.append(1000 * (time.perf_counter() - began))
                await taken.release()
        return samples

    async def fork(self, count: int) -> list[float]:
        """Fork a snapshot, run true, close."""
        if self._snapshot is None:
            async with self._fresh() as box:
                await box.write("/workspace/change", b"kept")
                self._snapshot = await box.snapshot()
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            [child] = await self.engine.fork(self._snapshot)
            await _true(child)
            await child.close()
            samples.append(1000 * (time.perf_counter() - began))
        return samples

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Sandbox]:
        box = await self.engine.create(self.spec, self.policy)
        try:
            yield box
        finally:
            await box.close()

    async def close(self) -> None:
        """End the engine, the pool and all that stands on them."""
        if self._pool is not None:
            await self._pool.close()
        await self.engine.close()


async def _true(box: Sandbox) -> None:
    result = await box.exec(TRUE)
    if result.exit_code:
        raise EnvironmentFault(f"true ended with {result.exit_code}: {result.stderr.decode(errors='replace')[-300:]}")
