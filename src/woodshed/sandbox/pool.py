"""Pool: any sandbox engine, with sandboxes of the kinds that are asked for again standing ready.

A kind is a specification with a policy: equal ones start with equal files, and the engine runs their setup once. The
second sandbox of a kind makes the pool keep some of it in reserve; they are made while nobody waits for a sandbox, so
that a reserve never delays what is wanted now. The kind asked for longest ago gives way first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from woodshed.errors import EnvironmentFault, SandboxDied, Unsupported, WoodshedError
from woodshed.interfaces import BlobSink, Capability, Sandbox, SandboxEngine, Snapshot
from woodshed.model import ChangeSet, EnvironmentSpec, SandboxPolicy, SnapshotManifest

_SETTLE_S = 0.01
"""So long nobody may have asked for a sandbox before one is made for the reserve: those who ask come in bursts."""
_RESERVED_AFTER = 2
_KINDS = 64
"""Kinds remembered, those without a sandbox in reserve included."""

_log = logging.getLogger(__name__)


@runtime_checkable
class Watched(Protocol):
    """A sandbox that knows whether it lives; any other is asked for something."""

    @property
    def alive(self) -> bool:
        """Whether its first process runs."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool has done. ``claims`` are creates that a reserve could have answered; ``idle`` is the reserve now."""

    claims: int = 0
    hits: int = 0
    evictions: int = 0
    died: int = 0
    idle: int = 0

    @property
    def misses(self) -> int:
        """Claims that waited for a new sandbox."""
        return self.claims - self.hits

    @property
    def hit_rate(self) -> float | None:
        """Share of claims answered from the reserve; None before the first."""
        return self.hits / self.claims if self.claims else None


@dataclass(slots=True, eq=False)
class _Kind:
    spec: EnvironmentSpec
    policy: SandboxPolicy
    asked: int = 0
    failed: bool = False
    idle: deque[tuple[float, Sandbox]] = field(default_factory=deque)


class Pool:
    """A SandboxEngine over another one, which it owns. See :class:`woodshed.interfaces.SandboxEngine`."""

    def __init__(self, engine: SandboxEngine, *, warm: int, most: int = 32, idle_s: float = 300.0) -> None:
        """Keep up to ``warm`` sandboxes of a kind, ``most`` in all, none longer than ``idle_s``. 0 keeps none."""
        self.name = engine.name
        self._engine, self._warm, self._most, self._idle_s = engine, warm, max(most, warm), idle_s
        self._kinds: OrderedDict[str, _Kind] = OrderedDict()
        self._stats = PoolStats()
        self._creating, self._last_s = 0, 0.0
        self._changed = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The engine's."""
        return self._engine.capabilities

    @property
    def stats(self) -> PoolStats:
        """So far."""
        return replace(self._stats, idle=sum(len(kind.idle) for kind in self._kinds.values()))

    def check(self, spec: EnvironmentSpec, policy: SandboxPolicy) -> Sequence[str]:
        """As the engine behind says."""
        return self._engine.check(spec, policy)

    async def open(self) -> None:
        """The engine behind is ready to create."""
        await self._engine.open()

    async def create(
        self,
        spec: EnvironmentSpec,
        policy: SandboxPolicy,
        *,
        restore: tuple[ChangeSet, BlobSink] | None = None,
    ) -> Sandbox:
        """A fresh sandbox, from the reserve where there is one. What is restored into one makes it of no kind.

        Raises ImageFault, EnvironmentFault, Unsupported.
        """
        # A life that is limited begins when a sandbox is made, not when it is claimed.
        if restore is not None or policy.limits.wall_s is not None or not self._warm or self._closed:
            with self._asking():
                return await self._engine.create(spec, policy, restore=restore)
        kind = self._kind(spec, policy)
        self._stats = replace(self._stats, claims=self._stats.claims + 1)
        with self._asking():
            while kind.idle:
                _, sandbox = kind.idle.popleft()
                if await _lives(sandbox):
                    self._stats = replace(self._stats, hits=self._stats.hits + 1)
                    return sandbox
                self._stats = replace(self._stats, died=self._stats.died + 1)
                self._leave(sandbox)
            return await self._engine.create(spec, policy)

    def _kind(self, spec: EnvironmentSpec, policy: SandboxPolicy) -> _Kind:
        key = f"{spec.model_dump_json()}\n{policy.model_dump_json()}"
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(spec, policy)
            if len(self._kinds) > _KINDS:
                _, oldest = self._kinds.popitem(last=False)
                self._evict(oldest, len(oldest.idle))
        self._kinds.move_to_end(key)
        kind.asked += 1
        kind.failed = False
        return kind

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._creating += 1
        try:
            yield
        finally:
            self._creating -= 1
            self._last_s = time.monotonic()
            if self._warm and not self._closed:
                self._changed.set()
                if self._tending is None or self._tending.done():
                    self._tending = asyncio.get_running_loop().create_task(self._tend())

    # -- the reserve ---------------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Make what is missing while nobody waits, and let go of what nobody wanted."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_expiry_s()):
                    await self._changed.wait()
            self._changed.clear()
            self._expire()
            while not self._creating and (kind := self._wanting()) is not None:
                quiet_s = time.monotonic() - self._last_s
                if quiet_s < _SETTLE_S:
                    await asyncio.sleep(_SETTLE_S - quiet_s)
                else:
                    await self._add(kind)

    def _wanting(self) -> _Kind | None:
        """The kind asked for last that has too few in reserve and may have more."""
        for kind in reversed(self._kinds.values()):
            if kind.asked >= _RESERVED_AFTER and len(kind.idle) < self._warm and not kind.failed:
                return kind if self._make_room(kind) else None
        return None

    def _make_room(self, wanted: _Kind) -> bool:
        """Whether one more fits; kinds asked for longer ago than ``wanted`` give way."""
        if sum(len(kind.idle) for kind in self._kinds.values()) < self._most:
            return True
        for kind in self._kinds.values():
            if kind is wanted:
                return False
            if kind.idle:
                self._evict(kind, 1)
                kind.asked = 0  # it has to be asked for again before it has a reserve again
                return True
        return False

    async def _add(self, kind: _Kind) -> None:
        try:
            sandbox = await self._engine.create(kind.spec, kind.policy)
        except (WoodshedError, OSError) as error:
            kind.failed = True  # whoever asks next meets the reason
            _log.debug("no sandbox for the reserve: %s", error)
            return
        kind.idle.append((time.monotonic(), sandbox))
        if not any(kind is known for known in self._kinds.values()):
            self._evict(kind, 1)  # forgotten meanwhile

    def _next_expiry_s(self) -> float | None:
        oldest = [kind.idle[0][0] for kind in self._kinds.values() if kind.idle]
        return max(0.0, min(oldest) + self._idle_s - time.monotonic()) if oldest else None

    def _expire(self) -> None:
        until = time.monotonic() - self._idle_s
        for kind in self._kinds.values():
            old = sum(since <= until for since, _ in kind.idle)
            if old:
                self._evict(kind, old)
                kind.asked = 0

    def _evict(self, kind: _Kind, count: int) -> None:
        for _ in range(count):
            self._leave(kind.idle.popleft()[1])
        self._stats = replace(self._stats, evictions=self._stats.evictions + count)

    def _leave(self, sandbox: Sandbox) -> None:
        closing = asyncio.get_running_loop().create_task(sandbox.close())
        self._leaving.add(closing)
        closing.add_done_callback(self._leaving.discard)

    # -- what the engine does ------------------------------------------------------------------------------------------

    async def fork(
        self, snapshot: Snapshot, n: int = 1, *, policy: SandboxPolicy | None = None
    ) -> Sequence[Sandbox]:
        """The engine's."""
        with self._asking():
            return await self._engine.fork(snapshot, n, policy=policy)

    async def adopt(self, manifest: SnapshotManifest, blobs: BlobSink, spec: EnvironmentSpec) -> Snapshot:
        """The engine's."""
        return await self._engine.adopt(manifest, blobs, spec)

    async def close(self) -> None:
        """End the reserve and the engine. Idempotent."""
        self._closed = True
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.wait([self._tending])
            self._tending = None
        for kind in self._kinds.values():
            while kind.idle:
                self._leave(kind.idle.popleft()[1])
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._engine.close()


async def _lives(sandbox: Sandbox) -> bool:
    if isinstance(sandbox, Watched):
        return sandbox.alive
    try:
        await sandbox.stat("/")
    except SandboxDied:
        return False
    except (Unsupported, OSError):
        return True
    except EnvironmentFault:
        return False
    return True
