"""Durable: every attempt is one tiny DBOS workflow whose row says that it was begun, and whether it ended.

What is durable is little and enough. A row holds ids only; our own store is the truth, and its fence decides what
counts. Each process has an executor id that never comes again, so DBOS by itself recovers nothing: whoever resumes a
run cancels the rows its dead owner left pending and submits the unfinished attempts anew (:meth:`Durable.submit`). In
coarse durability the workflow's body is the one step; recording it again as a DBOS step would double the cost and tell
nothing.

Workflows are started directly and not through a DBOS queue. A queue hands out work on a poll tick, and then no more
than ``concurrency`` workflows: measured with two slots, 30 ms attempts and a 0.1 s tick, 17 attempts/s at 9-13 ms CPU
each, against 54/s at 3.5 ms for direct starts (300 attempts, SQLite WAL, two cores).

DBOS lives on an event loop in a thread of its own (:mod:`woodshed.engine.aside`): a workflow there asks the main loop
to run its attempt, and is told the end. On the main loop each of its five blocking calls an attempt would go to a pool
and back: ten wake-ups instead of two, and 2.8 ms CPU instead of 1.9 (400 attempts that do nothing).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from woodshed.engine.aside import Aside, InOrder
from woodshed.errors import StoreFault
from woodshed.store.opening import explain, guest_sqlite

if TYPE_CHECKING:
    from dbos import DBOSConfig

T = TypeVar("T")
Execute = Callable[[str], Awaitable[None]]
"""Runs one execution of the attempt with this id and finishes it in the store. Raising leaves the attempt open."""

VERSION = "woodshed-1"
"""DBOS's application version, pinned: by default it is a hash of the source, and rows of an older hash are orphans."""

AHEAD = 2
"""Workflows begun beyond the running ones, so that writing their rows overlaps with other attempts' work."""

_THREADS = 64  # of DBOS's pool, which it uses on a server's database and for its own chores
_POLL_S = 0.02  # bounds how long stopping takes; DBOS sleeps this long between looks for notifications

_active: Durable | None = None


class Durable:
    """Runs attempts, at most ``concurrency`` at once, each recorded as a durable workflow.

    ``url`` is the store's: on PostgreSQL, DBOS's tables stand in the same database, in the schema ``dbos``; otherwise
    they have a file of their own, ``dbos.db`` in ``home``. One at a time in a process. Use it from one event loop:
    start, submit (as often as you like), wait, close.
    """

    def __init__(
        self, home: Path, executor: str, execute: Execute, *, concurrency: int, url: str | None = None
    ) -> None:
        self._home, self._executor, self._execute = home, executor, execute
        self._url = url if url is not None and url.startswith("postgres") else None
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._cancelled = False
        self._faults: dict[str, Exception] = {}  # either thread adds to it
        self._main: asyncio.AbstractEventLoop
        self._aside: Aside | None = None
        # DBOS's thread alone touches these.
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self._submitted = 0
        self._engine: Any = None

    async def start(self) -> None:
        """Open DBOS and begin to work on what is submitted. Raises StoreFault, or RuntimeError if one is active."""
        global _active  # DBOS is one instance a process, so its workflow function must find us here
        if _active is not None:
            raise RuntimeError("another Durable is active in this process; close it first")
        _active = self
        self._main = asyncio.get_running_loop()
        # A transaction in a file is short. A server is waited for, so there DBOS's own pool does the waiting.
        self._aside = Aside("woodshed-durable", InOrder() if self._url is None else asyncio.new_event_loop())
        try:
            await self._aside.call(self._launch())
        except BaseException as error:
            await self.close()
            if not isinstance(error, Exception):
                raise
            raise StoreFault(f"opening the durable engine in {self._home}: {explain(error)}") from error

    async def submit(self, run_id: str, attempts: Sequence[str]) -> None:
        """Take on these attempts, about in this order. The run's rows that a dead process left are cancelled first."""
        await self._there(self._take(run_id, attempts))

    async def take(self, attempts: Sequence[str]) -> None:
        """Take on attempts of runs that others work on, too: no row of theirs is touched."""
        await self._there(self._put(attempts))

    async def bury(self, executor: str) -> None:
        """Cancel the rows that a dead process left, of whatever run. Raises StoreFault."""
        try:
            await self._there(self._end(None, executor))
        except Exception as error:
            raise StoreFault(f"cancelling what {executor} left: {explain(error)}") from error

    async def bury_all(self, dead: Callable[[str], bool]) -> int:
        """Cancel the rows that processes left which are ``dead`` by their executor ids; how many. Raises StoreFault."""
        try:
            return await self._there(self._end_of(dead))
        except Exception as error:
            raise StoreFault(f"cancelling what dead processes left: {explain(error)}") from error

    def faults(self) -> dict[str, Exception]:
        """What went wrong since this was last asked, as :meth:`wait` tells it; each is told once."""
        found: dict[str, Exception] = {}
        while self._faults:
            attempt, fault = self._faults.popitem()
            found[attempt] = fault
        return found

    async def wait(self) -> dict[str, Exception]:
        """Wait until everything submitted has ended or been cancelled; what went wrong, by attempt id.

        That is what ``execute`` raised, or a StoreFault where DBOS could not write its row. Such an attempt is most
        likely still open in the store, and resuming the run tries it again.
        """
        await self._there(self._queue.join())
        return dict(self._faults)

    def halt(self) -> None:
        """Begin nothing more of what is submitted; what runs goes on to its end."""
        self._cancelled = True

    async def cancel(self) -> None:
        """Begin nothing more, cancel what runs, and return when it has cleaned up. Unfinished attempts stay open."""
        self._cancelled = True
        for task in self._running:
            task.cancel()
        if self._aside is not None:
            await self._aside.call(self._queue.join())

    async def close(self) -> None:
        """Cancel what is left and stop DBOS. Idempotent."""
        global _active
        if _active is not self:
            return
        try:
            await self.cancel()
            await self._there(self._stop())
        finally:
            if self._aside is not None:
                self._aside.close()
            self._aside = None
            _active = None

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, done in DBOS's thread."""
        if self._aside is None:
            work.close()
            raise RuntimeError("this Durable is not started, or closed")
        return await self._aside.call(work)

    async def _launch(self) -> None:
        from dbos import DBOS, DBOSPortableJSONSerializer

        # Before DBOS adds its own handler: quiet by default, and the application's logging decides.
        logger = logging.getLogger("dbos")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        _workflow()
        config: DBOSConfig = {
            "name": "woodshed",
            "application_version": VERSION,
            "executor_id": self._executor,
            "serializer": DBOSPortableJSONSerializer(),  # the default one is pickle
            "log_level": "WARNING",
            "notification_listener_polling_interval_sec": _POLL_S,
            "max_executor_threads": _THREADS,
        }
        if self._url is None:
            # Not as DBOS opens a file itself: WAL mode has four times the throughput.
            self._engine = guest_sqlite(self._home / "dbos.db", _connected)
            config["system_database_engine"] = self._engine
            config["system_database_url"] = self._engine.url.render_as_string(hide_password=False)
        else:
            config["system_database_url"] = self._url
        DBOS(config=config)
        DBOS.launch()
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._concurrency + AHEAD)]

    async def _stop(self) -> None:
        from dbos import DBOS

        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        DBOS.destroy()
        if self._engine is not None:
            self._engine.dispose()

    async def _take(self, run_id: str, attempts: Sequence[str]) -> None:
        await self._end(f"{run_id}.", None)
        await self._put(attempts)

    async def _put(self, attempts: Sequence[str]) -> None:
        for attempt in attempts:
            self._queue.put_nowait(attempt)

    async def _end(self, prefix: str | None, executor: str | None) -> None:
        """Cancel pending rows of others: of a run, or of one process."""
        from dbos import DBOS

        rows = await DBOS.list_workflows_async(
            workflow_id_prefix=prefix, executor_id=executor, status="PENDING", load_input=False, load_output=False
        )
        dead = [row.workflow_id for row in rows if row.executor_id != self._executor]
        if dead:
            await DBOS.cancel_workflows_async(dead)

    async def _end_of(self, dead: Callable[[str], bool]) -> int:
        from dbos import DBOS

        rows = await DBOS.list_workflows_async(status="PENDING", load_input=False, load_output=False)
        executors = {row.executor_id for row in rows if row.executor_id} - {self._executor}
        gone = {executor for executor in executors if await asyncio.to_thread(dead, executor)}
        left = [row.workflow_id for row in rows if row.executor_id in gone]
        if left:
            await DBOS.cancel_workflows_async(left)
        return len(left)

    async def _work(self) -> None:
        while True:
            attempt = await self._queue.get()
            try:
                if not self._cancelled:
                    await self._begin(attempt)
            except Exception as error:  # DBOS could not write: this attempt stays open, the others go on
                self._faults.setdefault(attempt, StoreFault(f"recording {attempt} as durable: {explain(error)}"))
            finally:
                self._queue.task_done()

    async def _begin(self, attempt: str) -> None:
        from dbos import DBOS, SetWorkflowID

        self._submitted += 1
        with SetWorkflowID(f"{attempt}@{self._executor}.{self._submitted}"):
            handle = await DBOS.start_workflow_async(_workflow(), attempt)
        await handle.get_result()

    async def body(self, attempt: str) -> str:
        """The workflow's body: one execution, on the main loop. Says how it ended.

        In a context of its own: what it submits, and tasks it leaves behind, are no part of this workflow.
        """
        ended = Context().run(asyncio.run_coroutine_threadsafe, self._run(attempt), self._main)
        return await asyncio.wrap_future(ended)

    async def _run(self, attempt: str) -> str:
        """One execution, in its own task so that it can be cancelled."""
        async with self._slots:
            if self._cancelled:
                return "cancelled"
            task = asyncio.ensure_future(self._execute(attempt))
            self._running.add(task)
            await asyncio.wait([task])
            self._running.discard(task)
        if task.cancelled():
            return "cancelled"
        error = task.exception()
        if error is None:
            return "ended"
        self._faults[attempt] = error if isinstance(error, Exception) else RuntimeError(f"{attempt}: {error!r}")
        return type(error).__name__


def _connected(connection: sqlite3.Connection) -> None:
    if sqlite3.sqlite_version_info < (3, 42):
        connection.create_function("unixepoch", 1, _unixepoch)


def _unixepoch(modifier: str) -> float:
    """SQLite's own knows 'subsec' from 3.42 on, before it answers NULL; DBOS relies on it from Python 3.12 on."""
    if modifier != "subsec":
        raise ValueError(modifier)
    return time.time()


@functools.cache
def _workflow() -> Callable[[str], Any]:
    """The one workflow function, registered once a process."""
    from dbos import DBOS

    @DBOS.workflow(name="woodshed.attempt")
    async def attempt(attempt_id: str) -> str:
        if _active is None:
            return "stopped"
        return await _active.body(attempt_id)

    return attempt
