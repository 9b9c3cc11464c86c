"""Group commit: executions that wait until their events are durable share a transaction.

While one is written, those that come wait for the next, together. So the cost of a commit (a write to the disk, a round
trip to the database, a hop to a thread and back) is shared by however many wait, and one alone waits for none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from woodshed.errors import StoreFault
from woodshed.store.eventlog import EventLog, keep_all
from woodshed.store.records import Store

_MOST = 256
"""Executions in one transaction: on SQLite nobody else writes meanwhile."""


class Commits:
    """Of one store and one event loop. Its one thread waits for no other blocking work, and ends with it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[EventLog, asyncio.Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, "woodshed-commits")
        self._writing = False

    async def keep(self, log: EventLog) -> None:
        """As :meth:`EventLog.keep`: what ``log`` was told so far is durable. Raises Cancelled and StoreFault as it."""
        loop = asyncio.get_running_loop()
        if log not in self._waiting:
            self._waiting[log] = loop.create_future()
        told = self._waiting[log]
        if not self._writing:
            self._writing = True
            loop.call_soon(self._write, loop)  # with those who come in the same breath
        await asyncio.shield(told)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        """Those who wait now, in one transaction; then those who came meanwhile."""
        logs = list(self._waiting)[:_MOST]
        self._writing = bool(logs)
        if logs:
            told = [self._waiting.pop(log) for log in logs]
            self._thread.submit(self._written, loop, logs, told)

    def _written(
        self, loop: asyncio.AbstractEventLoop, logs: list[EventLog], told: list[asyncio.Future[None]]
    ) -> None:
        """In the thread. Where the loop is gone, so is whoever waited."""
        faults = self._kept(logs)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._tell, loop, told, faults)

    def _tell(
        self, loop: asyncio.AbstractEventLoop, told: list[asyncio.Future[None]], faults: Sequence[Exception | None]
    ) -> None:
        self._write(loop)
        for future, fault in zip(told, faults, strict=True):
            _tell(future, fault)

    def _kept(self, logs: list[EventLog]) -> Sequence[Exception | None]:
        try:
            return keep_all(self._store, logs)
        except StoreFault:
            return [_alone(log) for log in logs]  # one that cannot be written is no reason that others are not
        except Exception as error:  # of ours: nobody waits for ever
            return [error] * len(logs)


def _alone(log: EventLog) -> Exception | None:
    try:
        log.keep()
    except Exception as fault:
        return fault
    return None


def _tell(future: asyncio.Future[None], fault: Exception | None) -> None:
    if fault is None:
        future.set_result(None)
    else:
        future.set_exception(fault)
        future.exception()  # who asked may be gone, and that is no complaint
