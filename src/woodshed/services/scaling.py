"""Scaling: watches the queue of one pool, and has a provider start and drain workers."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Protocol

from woodshed.engine.scaling import Bounds, Load, Scaler
from woodshed.errors import EnvironmentFault, StoreFault
from woodshed.services.home import Home
from woodshed.store.queue import Depth, Queue, Worker

_AGAIN_S = (5.0, 60.0)  # how soon a provider that failed is asked again: at first, and in the end
_KEPT = 1000

Tell = Callable[[str], None]


class Provider(Protocol):
    """Brings about a number of workers. ``slots`` is what one is taken to have before one has said so.

    While fewer or more live than are wanted it is told again every ``retell_s``: machines die, too.
    """

    slots: float
    retell_s: float

    async def scale(self, wanted: int, workers: Sequence[Worker]) -> None:
        """Have ``wanted`` workers; ``workers`` are those of the pool that live. Raises EnvironmentFault."""

    async def close(self) -> None:
        """The controller ends; who must not outlive it drains."""

    def hurry(self) -> None:
        """Asked to end a second time: what drains is stopped."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What is scaled, and how. ``drains`` asks surplus workers through the queue to drain before the provider hears.

    With ``until_empty`` nobody is wanted any more once nothing is left, whatever the bounds.
    """

    pool: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    interval_s: float = 5.0
    until_empty: bool = False
    drains: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """One look at the queue. ``drain_s`` is how long it takes with the workers wanted; None: not known, or never."""

    at_s: float
    ready: int
    running: int
    living: int
    wanted: int
    drain_s: float | None


@dataclass(slots=True)
class Scaled:
    """What a controller did until it ended, ``empty`` or ``stopped``: its last decisions, those that changed nothing

    left out; how often its provider failed.
    """

    pool: str
    ended: str = ""
    most: int = 0
    failures: int = 0
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "decisions": [asdict(one) for one in self.decisions]}


async def scale(home: Home, terms: Terms, provider: Provider, tell: Tell) -> Scaled:
    """Keep the pool at the size that its queue wants, until a signal, or, where ``terms`` say so, nothing is left.

    SIGTERM or SIGINT ends it; what the provider must not leave behind drains first, and a second one stops that.
    """
    controller = _Controller(home.store.queue, terms, provider, tell)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, controller.asked_to_end)
    try:
        await controller.until_the_end()
    finally:
        await provider.close()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(signum)
    return controller.scaled


class _Controller:
    def __init__(self, queue: Queue, terms: Terms, provider: Provider, tell: Tell) -> None:
        self.queue, self.terms, self.provider, self.tell = queue, terms, provider, tell
        self.scaler = Scaler(terms.bounds)
        self.scaled = Scaled(terms.pool)
        self.asked = asyncio.Event()
        self.told: int | None = None  # what the provider has last done; None after it failed
        self.tell_at, self.again_s = 0.0, _AGAIN_S[0]
        self.began = time.monotonic()

    def asked_to_end(self) -> None:
        if self.asked.is_set():
            self.provider.hurry()
        self.asked.set()

    async def until_the_end(self) -> None:
        while not self.asked.is_set():
            with suppress(StoreFault):  # the database is away; the next look comes soon enough
                if await self._look():
                    self.scaled.ended = "empty"
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self.asked.wait(), self.terms.interval_s)
        self.scaled.ended = "stopped"

    async def _look(self) -> bool:
        """Decide, and have it done; whether there is nothing left, and nobody."""
        pool = self.terms.pool
        depth, workers, pace = await asyncio.to_thread(
            lambda: (self.queue.depth(pool), self.queue.workers(), self.queue.pace(pool)))
        workers = [one for one in workers if one.pool == pool and one.state != "gone"]
        at_work = [one for one in workers if one.state == "working"]
        slots = median([one.slots for one in at_work]) if at_work else self.provider.slots
        load = Load(depth.ready + depth.quarantined, depth.running, float(slots), pace)
        at = time.monotonic()
        wanted = self.scaler.decide(load, at)
        if self.terms.until_empty and not _any(depth):
            wanted = 0
            if not workers:
                return True
        if not self.scaled.decisions or wanted != self.scaled.decisions[-1].wanted:
            self._note(depth, len(at_work), wanted, load.drain_s(wanted))
        due, new = at >= self.tell_at, wanted != self.told
        if (new and (due or self.told is not None)) or (due and len(at_work) != wanted):
            await self._ask(wanted, workers, at)
        return False

    def _note(self, depth: Depth, living: int, wanted: int, drain_s: float | None) -> None:
        self.scaled.most = max(self.scaled.most, wanted)
        self.scaled.decisions.append(Decision(round(time.monotonic() - self.began, 3), depth.ready, depth.running,
                                              living, wanted, drain_s))
        self.tell(f"{depth.ready} wait, {depth.running} at work: {wanted} workers wanted, {living} live")

    async def _ask(self, wanted: int, workers: Sequence[Worker], at: float) -> None:
        """Tell the provider; when it fails that is told, and it is asked again later, less and less often."""
        try:
            if self.terms.drains:
                await asyncio.to_thread(self._drain, wanted, workers)
            await self.provider.scale(wanted, workers)
        except EnvironmentFault as fault:
            self.scaled.failures += 1
            self.tell(f"{fault}; asked again in {self.again_s:.0f} s")
            self.told, self.tell_at = None, at + self.again_s
            self.again_s = min(2 * self.again_s, _AGAIN_S[1])
        else:
            self.told, self.tell_at, self.again_s = wanted, at + self.provider.retell_s, _AGAIN_S[0]

    def _drain(self, wanted: int, workers: Sequence[Worker]) -> None:
        for one in surplus(wanted, workers):
            self.queue.drain(one.executor)


def surplus(wanted: int, workers: Sequence[Worker]) -> list[Worker]:
    """Who leaves when so many stay: those with the least at work, the newest first."""
    at_work = [one for one in workers if one.state == "working"]
    ordered = sorted(at_work, key=lambda one: (one.busy, -one.started_at.timestamp()))
    return ordered[:max(0, len(at_work) - wanted)]


def _any(depth: Depth) -> bool:
    return bool(depth.ready or depth.delayed or depth.running or depth.quarantined)
