"""Crew: one process that works on one run alone: its lease, its durable workflows, its retries and its runtime."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from types import TracebackType
from typing import Self

from woodshed import plugins, settings
from woodshed.engine.durable import Durable
from woodshed.engine.lease import Lease, claim
from woodshed.errors import Cancelled, Paused, StoreFault
from woodshed.interfaces import SandboxEngine
from woodshed.model import Attempt, EventKind, Outcome, Run, RunState, Task
from woodshed.model.retry import Breaker
from woodshed.services.ears import Ears
from woodshed.services.hearing import hears
from woodshed.services.home import Home
from woodshed.services.janitor import FIRST_S, Janitor, Sweep, ended, nothing
from woodshed.services.runtime import EndState, Runtime, again_in_s, cancelled_by, interrupted, overdue
from woodshed.store.eventlog import EventLog

Finished = Callable[[Outcome], None]
_HEED_S = 0.5
"""So often it looks whether somebody elsewhere cancelled or paused the run: what runs is stopped within two seconds."""


class Crew:
    """Everything live that executes the attempts of a run here. Leaving it closes all of it."""

    def __init__(
        self, home: Home, run: Run, tasks: Sequence[Task], *, sweep: Sweep = nothing,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``sweep`` removes what dead sandbox engines left, on a timer; an engine that opens does so by itself.

        ``tell`` hears what people should know of the run's models.
        """
        self._home, self._run, self._sweep = home, run, sweep
        # The durable engine begins one more than may act: its sandbox opens, and records are written, beside them.
        slots = asyncio.Semaphore(run.spec.concurrency)
        self._ears = Ears(home.store.messages)
        self._runtime = Runtime(home, run, tasks, slots=slots, parallel=run.spec.concurrency, ears=self._ears,
                                tell=tell)
        self._stack = AsyncExitStack()
        self._lease = Lease(home.path)
        self._durable = Durable(
            home.path,
            self._lease.executor,
            self._execute,
            concurrency=run.spec.concurrency + 1,
            url=settings.setting("database_url") or None,
        )
        self._attempts: dict[str, Attempt] = {}
        self._later: set[asyncio.Task[None]] = set()
        self._chance = random.Random()  # noqa: S311 (spreads retries; nothing secret)
        self._breaker = Breaker(run.spec.retry.breaker) if run.spec.retry.breaker is not None else None
        self._paused: str | None = None
        self._cancelled: str | None = None
        self._finished: Finished = lambda outcome: None

    @property
    def executor(self) -> str:
        """The id of this process in the durable engine; its lock says that we live."""
        return self._lease.executor

    @property
    def engine(self) -> SandboxEngine:
        """The engine that all sandboxes of the run come from."""
        return self._runtime.engine

    def give(self, given: Callable[[Attempt], EndState | None]) -> None:
        """From now on ``given`` is asked of every attempt: an end state is judged in the place of what it would do."""
        self._runtime.given = given

    async def __aenter__(self) -> Self:
        self._stack.callback(self._lease.release)
        try:
            await self._stack.enter_async_context(self._runtime)  # whose engine opens beside the durable one
            try:
                await self._durable.start()
            finally:
                await self._runtime.ready()
            self._stack.push_async_callback(self._durable.close)
            tending = asyncio.create_task(Janitor(self._home, self._sweep, self._durable).tend(first_s=FIRST_S))
            self._stack.push_async_callback(ended, tending)
            if any(hears(plugins.harness(agent.harness)) for agent in self._run.spec.agents):
                self._stack.push_async_callback(ended, asyncio.create_task(self._ears.listen(self._run.id)))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for later in self._later:
            later.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)
        await self._stack.aclose()

    async def prepare(self) -> None:
        """What all attempts of the run begin from stands. Raises UsageError where it cannot be made."""
        await self._runtime.prepare()

    def take_over(self) -> None:
        """Become the owner of the run; its lost executions are marked. Raises UsageError while its owner lives."""
        claim(self._home.store, self._run.id, self._lease, self._home.path)

    async def work(self, attempts: Sequence[Attempt], finished: Finished) -> None:
        """Execute the attempts durably; ``finished`` hears of each outcome that counts. Returns when all are done.

        What broke and may be tried again waits outside, without a slot. Raises Paused when most executions break, at
        the end of :meth:`within` and where somebody pauses the run, Cancelled where somebody cancels it.
        """
        self._finished = finished
        self._attempts = {attempt.id: attempt for attempt in attempts}
        await self._durable.submit(self._run.id, list(self._attempts))
        while self._attempts:
            for fault in (await self._durable.wait()).values():
                raise fault
            if self._paused is None and self._later:
                done, _ = await asyncio.wait(self._later, return_when=asyncio.FIRST_COMPLETED)
                self._later -= done
                for again in done:
                    if not again.cancelled():
                        again.result()
            if self._attempts and self._cancelled is not None:
                raise Cancelled(self._cancelled)
            if self._attempts and self._paused is not None:
                raise Paused(self._paused)

    async def _execute(self, attempt_id: str) -> None:
        attempt = self._attempts[attempt_id]
        number = self._home.store.begin_execution(attempt_id, self.executor)
        if number is None:
            del self._attempts[attempt_id]
            return
        log = EventLog(self._home.store, attempt_id, number)
        outcome = await self._executed(attempt, log)
        self._watch(outcome)
        wait_s = again_in_s(self._home, self._run, attempt, outcome, self._chance.random())
        if wait_s is not None:
            log.emit(EventKind.STATE, {"state": "to_be_retried", "in_s": round(wait_s, 3)})
            await asyncio.to_thread(log.set_aside, outcome)
            self._later.add(asyncio.create_task(self._resubmit(attempt_id, wait_s)))
            return
        if await asyncio.to_thread(log.finish, outcome):
            self._finished(outcome)
        del self._attempts[attempt_id]

    async def _executed(self, attempt: Attempt, log: EventLog) -> Outcome:
        """One execution's outcome; cut off, it is set aside as evidence."""
        try:
            return await self._runtime.execute(attempt, log)
        except asyncio.CancelledError:
            cancelled = None if self._cancelled is None else cancelled_by(self._cancelled)
            log.set_aside(interrupted(cancelled or self._paused or "the run was interrupted"))
            raise

    async def _resubmit(self, attempt_id: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        await self._durable.submit(self._run.id, [attempt_id])

    def _watch(self, outcome: Outcome) -> None:
        """Pause the run when most of what it does breaks."""
        reason = self._breaker.add(outcome.verdict) if self._breaker is not None else None
        if reason is not None:
            self._pause(reason)

    def _pause(self, reason: str) -> None:
        """Begin nothing more; what runs goes on to its end."""
        if self._paused is None:
            self._paused = reason
            self._durable.halt()
            for later in self._later:
                later.cancel()

    @contextmanager
    def steered(self) -> Iterator[None]:
        """Meanwhile whoever cancels or pauses the run from elsewhere is heeded; :meth:`work` raises what says so.

        What runs of a paused run goes on to its end, or to its next turn where it is fine; of a cancelled one it is cut
        off, its evidence kept.
        """
        looking = asyncio.create_task(self._heed())
        try:
            yield
        finally:
            looking.cancel()

    async def _heed(self) -> None:
        while self._cancelled is None:
            await asyncio.sleep(_HEED_S)
            with suppress(StoreFault):  # the next look is soon
                mark = await asyncio.to_thread(self._home.store.alone.of, self._run.id)
                if mark is not None and mark.state is RunState.PAUSED and self._paused is None:
                    self._runtime.leaving = True
                    self._pause(mark.reason or "somebody paused it")
                if mark is not None and mark.state is RunState.CANCELLED:
                    self._cancelled = mark.reason or "somebody cancelled it"
                    self._pause(self._cancelled)
        await self._durable.cancel()

    @contextmanager
    def within(self, run_s: float | None) -> Iterator[None]:
        """In so many seconds nothing more begins, and what runs is cut off: :meth:`work` raises Paused, which says so.

        What was cut off has no result, and so no reward; its evidence is kept. None: there is no such time.
        """
        cutting: list[asyncio.Task[None]] = []

        def over() -> None:
            self._pause(overdue(run_s or 0.0))
            cutting.append(asyncio.ensure_future(self._durable.cancel()))

        alarm = None if run_s is None else asyncio.get_running_loop().call_later(run_s, over)
        try:
            yield
        finally:
            if alarm is not None:
                alarm.cancel()
            for task in cutting:
                task.cancel()
