"""Janitor: finds what dead processes left and nobody needs, removes it, and says what it was.

What lives is never touched: a sandbox folder goes when its engine's lock is free, a workflow's row when its process's
lock is, and then an acted attempt has its result; a worker's row goes a day after the worker was reaped, a blob when it
is a day old and nothing recorded names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from woodshed import settings
from woodshed.engine.durable import Durable
from woodshed.engine.lease import Lease, owner
from woodshed.errors import StoreFault
from woodshed.model import Record
from woodshed.model.counted import counted
from woodshed.services import orphaned
from woodshed.services.home import Home
from woodshed.store.sweeping import OLD_S, sweep

EVERY_S = 3600.0
FIRST_S = 5.0
"""A process that lives no longer than this has better things to do."""
_DAY_S = 86_400.0

Tell = Callable[[str], None]
Sweep = Callable[[], Sequence[str]]
"""Removes what dead sandbox engines left on this machine (processes, cgroups, directories); the engines' names."""

_log = logging.getLogger(__name__)


class Swept(Record):
    """What was removed. ``kept`` says why no blob was looked at, where none was."""

    sandboxes: tuple[str, ...] = ()
    workflows: int = 0
    workers: int = 0
    acted: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    kept: str = ""

    def __bool__(self) -> bool:
        return bool(self.sandboxes or self.workflows or self.workers or self.acted or self.blobs)

    def __str__(self) -> str:
        found = ((len(self.sandboxes), "leftover sandbox folders"), (self.workflows, "workflows of dead processes"),
                 (self.workers, "workers long gone"), (self.blobs, f"blobs ({self.blob_bytes >> 20} MB)"))
        said = ", ".join(f"{count} {what}" for count, what in found if count)
        told = [f"removed {said}"] if said else []
        told += [f"ended {counted(self.acted, 'acted attempt')} of dead processes"] if self.acted else []
        return ", ".join(told) or "nothing was left behind"


class Janitor:
    """Cleans up after others in ``home``, with ``durable`` where that is open. ``tell`` hears of what was removed."""

    def __init__(self, home: Home, sweep: Sweep, durable: Durable | None = None, tell: Tell | None = None) -> None:
        self._home, self._sweep, self._durable = home, sweep, durable
        self._tell = tell or _log.info

    async def tend(self, *, first_s: float = 0.0, every_s: float = EVERY_S) -> None:
        """Sweep in ``first_s`` seconds and then every so many, until cancelled. A fault is told, and it goes on."""
        await asyncio.sleep(first_s)
        while True:
            try:
                await self.clean()
            except StoreFault as fault:
                self._tell(str(fault))
            await asyncio.sleep(every_s)

    async def clean(self, *, blobs: bool = False) -> Swept:
        """Remove what there is. Blobs are looked for once a day, or now where that is asked for. Raises StoreFault."""
        try:
            sandboxes = tuple(await asyncio.to_thread(self._sweep))
            workflows = await self._durable.bury_all(self._dead) if self._durable is not None else 0
            workers = await asyncio.to_thread(self._home.store.queue.forget, _DAY_S)
            acted = len(await asyncio.to_thread(orphaned.end, self._home))
            swept = Swept(sandboxes=sandboxes, workflows=workflows, workers=workers, acted=acted)
            swept = swept.model_copy(update=await asyncio.to_thread(self._blobs, blobs))
        except OSError as error:
            raise StoreFault(f"cleaning up: {error}") from error
        if swept:
            self._tell(str(swept))
        return swept

    def _dead(self, executor: str) -> bool:
        """Of this home, and nobody holds its lock. Of others only a worker's end is known: who reaped it did this."""
        return owner(self._home.path, executor) is None

    def _blobs(self, now: bool) -> dict[str, object]:
        if not self._home.blobs.bind(self._home.store.identity):
            return {"kept": "other databases name blobs of this folder, too"}
        stamp = self._home.blobs.root / "swept"
        if not now and _age_s(stamp, self._home.blobs.root) < _DAY_S:
            return {"kept": "they were looked at within the last day"}
        found = sweep(self._home.blobs, self._home.store.named, old_s=OLD_S)
        stamp.touch()
        return {"blobs": found.blobs, "blob_bytes": found.blob_bytes}


async def clean_now(home: Home, sweep: Sweep) -> Swept:
    """All of it, now, by a process that does nothing else. Raises StoreFault."""
    url = settings.setting("database_url") or None
    if url is None and not (home.path / "dbos.db").exists():
        return await Janitor(home, sweep).clean(blobs=True)
    with Lease(home.path) as lease:
        durable = Durable(home.path, lease.executor, _none, concurrency=1, url=url)
        await durable.start()
        try:
            return await Janitor(home, sweep, durable).clean(blobs=True)
        finally:
            await durable.close()


async def _none(attempt: str) -> None:
    """Nothing is executed by who only cleans up."""


def nothing() -> Sequence[str]:
    """A Sweep where no sandboxes are made."""
    return ()


async def ended(tending: asyncio.Task[None]) -> None:
    """The tending is over."""
    tending.cancel()
    await asyncio.gather(tending, return_exceptions=True)


def _age_s(stamp: Path, beside: Path) -> float:
    """How long ago ``stamp`` was touched, by the clock of its file system; endless where it never was."""
    if not stamp.exists():
        return float("inf")
    probe = beside / "lock"
    probe.touch()
    return probe.stat().st_mtime - stamp.stat().st_mtime
