"""Pools: a model may be served at several addresses. Which of them a call goes to, and what is known of each.

A call goes where its attempt's calls went before, whose prefix that server has in its cache, as long as the endpoint
is well; a first one, or one whose endpoint is not, goes where the load is least. An endpoint that failed several times
in a row rests: it gets no call, then one, and with that one's answer it is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from woodshed.errors import ModelFault, ModelGarbled, ModelRateLimited, ModelUnreachable
from woodshed.gateway.capture.probe import Capturing
from woodshed.model import ModelSpec

FAILURES = 3
"""So many failures in a row, and an endpoint rests."""
REST_S, LONGEST_REST_S = 10.0, 160.0
"""Its first rest, which doubles each time that it is tried in vain, up to the longest."""
BUSY_S = 1.0
"""One that asks to slow down, and does not say for how long, is passed over for this, where there are others."""


@dataclass(eq=False)
class Endpoint:
    """One address. ``load`` counts calls that are there, or wait for room."""

    url: str
    room: asyncio.Semaphore | None = None
    load: int = 0
    sent: int = 0
    capturing: dict[tuple[str, str, int | None], Capturing] = field(default_factory=dict)
    """How it is asked for tokens, by model and by what was asked for: found by probing, once."""
    thought: tuple[str, ...] = ()
    """In which field it tells what a model thought, once it told any."""
    probing: asyncio.Lock = field(default_factory=asyncio.Lock)
    busy_until: float = 0.0
    failures: int = 0
    rests_until: float = 0.0
    trying: bool = False

    @property
    def resting(self) -> bool:
        """It failed too often to be relied upon."""
        return self.failures >= FAILURES

    def takes(self, now: float) -> bool:
        """It is well; or its rest is over, and nobody tries it."""
        return now >= self.busy_until and (not self.resting or (now >= self.rests_until and not self.trying))

    def answered(self) -> None:
        """It is well."""
        self.failures, self.busy_until = 0, 0.0

    def failed(self, now: float) -> None:
        """Once more. From the third time on it rests."""
        self.failures += 1
        if self.resting:
            self.rests_until = now + min(LONGEST_REST_S, REST_S * 2.0 ** (self.failures - FAILURES))


@dataclass(slots=True)
class Stay:
    """Where the calls of one attempt go."""

    endpoint: Endpoint | None = None


class Pools:
    """The endpoints of one gateway, by address: what is known of one counts for every model that is served there."""

    def __init__(self, *, concurrent: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """At most ``concurrent`` calls are at one endpoint at a time; None: as many as there are."""
        self._concurrent, self._clock = concurrent, clock
        self._endpoints: dict[str, Endpoint] = {}

    def endpoint(self, url: str) -> Endpoint:
        """What is known of this address."""
        url = url.rstrip("/")
        if url not in self._endpoints:
            room = asyncio.Semaphore(self._concurrent) if self._concurrent is not None else None
            self._endpoints[url] = Endpoint(url, room)
        return self._endpoints[url]

    def elsewhere(self, spec: ModelSpec) -> bool:
        """Another endpoint than the one that just failed would take the call."""
        now = self._clock()
        return bool(spec.others) and any(self.endpoint(url).takes(now) for url in spec.addresses)

    @asynccontextmanager
    async def taken(
        self, spec: ModelSpec, stay: Stay, *, hold: Callable[[float], Awaitable[None]] | None = None
    ) -> AsyncIterator[Endpoint]:
        """An endpoint that has room, while one call is made there; what comes of it is what is known of it then.

        Where every endpoint was asked to be left alone for so many seconds, ``hold`` is awaited with them.
        """
        endpoint = await self._entered(spec, stay, hold)
        trial = endpoint.resting
        endpoint.trying = endpoint.trying or trial
        endpoint.sent += 1
        try:
            yield endpoint
            endpoint.answered()
        except ModelRateLimited as fault:
            endpoint.failures = 0
            if fault.retry_after_s or spec.others:
                endpoint.busy_until = self._clock() + (fault.retry_after_s or BUSY_S)
            raise
        except (ModelUnreachable, ModelGarbled):
            endpoint.failed(self._clock())
            raise
        except ModelFault:
            endpoint.answered()
            raise
        finally:
            endpoint.trying = endpoint.trying and not trial
            endpoint.load -= 1
            if endpoint.room is not None:
                endpoint.room.release()

    async def _entered(
        self, spec: ModelSpec, stay: Stay, hold: Callable[[float], Awaitable[None]] | None
    ) -> Endpoint:
        while True:
            endpoint = self._chosen(spec, stay)
            endpoint.load += 1
            try:
                left_s = endpoint.busy_until - self._clock()
                if hold is not None and left_s > 0:
                    await hold(left_s)
                    hold = None
                if endpoint.room is not None:
                    await endpoint.room.acquire()
            except BaseException:
                endpoint.load -= 1
                raise
            if endpoint.takes(self._clock()) or not self.elsewhere(spec):
                stay.endpoint = endpoint
                return endpoint
            endpoint.load -= 1  # it fell ill while the call waited for room
            if endpoint.room is not None:
                endpoint.room.release()

    def _chosen(self, spec: ModelSpec, stay: Stay) -> Endpoint:
        """Where none is well, each is as good as another: a pool that is down as a whole is asked like one endpoint."""
        endpoints = [self.endpoint(url) for url in spec.addresses]
        now = self._clock()
        well = [one for one in endpoints if one.takes(now)] or endpoints
        if stay.endpoint in well:
            return stay.endpoint
        return min(well, key=lambda one: (one.load, one.sent))
