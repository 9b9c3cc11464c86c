"""Group commit: executions that wait until their events are durable share a transaction.

While one is written, those that come wait for the next, together. So the cost of a commit (a write to the disk, a round
trip to the database, a hop to a thread and back) is shared by however many wait, and one alone waits for none.
"""

from __future__ import annotations

import asyncio

from woodshed.errors import StoreFault
from woodshed.store.eventlog import EventLog, keep_all
from woodshed.store.records import Store

_MOST = 256
"""Executions in one transaction: on SQLite nobody else writes meanwhile."""


class Commits:
    """Of one store and one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[EventLog, asyncio.Future[None]] = {}
        self._writing: asyncio.Task[None] | None = None

    async def keep(self, log: EventLog) -> None:
        """As :meth:`EventLog.keep`: what ``log`` was told so far is durable. Raises Cancelled and StoreFault as it."""
        if log not in self._waiting:
            self._waiting[log] = asyncio.get_running_loop().create_future()
        told = self._waiting[log]
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await asyncio.shield(told)

    async def _write(self) -> None:
        try:
            while self._waiting:
                logs = list(self._waiting)[:_MOST]
                told = {log: self._waiting.pop(log) for log in logs}
                for log, fault in zip(logs, await asyncio.to_thread(self._kept, logs), strict=True):
                    _tell(told[log], fault)
        finally:
            self._writing = None

    def _kept(self, logs: list[EventLog]) -> list[Exception | None]:
        try:
            return list(keep_all(self._store, logs))
        except StoreFault:
            return [_alone(log) for log in logs]  # one that cannot be written is no reason that others are not


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
