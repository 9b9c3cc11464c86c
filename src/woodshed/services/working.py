"""A worker: takes attempts of shared runs, executes each durably, and settles them so that every one counts once.

The order of settling makes a crash between two steps harmless. A result is written before the attempt leaves the queue:
who finds it there again sees that it is done, and takes it out. A retry is set aside before it is given back: who finds
it still held by a dead worker frees it, a little early. Nothing of a worker that was reaped counts: the store's fence
refuses its results, and it can begin nothing that the queue no longer calls its own.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from woodshed import settings
from woodshed.engine.capacity import Need, Slots, measure
from woodshed.engine.durable import Durable
from woodshed.engine.lease import Lease, owner
from woodshed.errors import Cancelled, Cause, StoreFault, UsageError, WoodshedError
from woodshed.model import Attempt, EventKind, Invalid, Outcome, StopReason, Valid
from woodshed.model.event import now
from woodshed.model.retry import Breaker, Broken
from woodshed.services import report
from woodshed.services.heart import SILENT_S, Heart
from woodshed.services.home import Home
from woodshed.services.runtime import again_in_s, interrupted
from woodshed.services.runtimes import Live, Runtimes, Unopened
from woodshed.store.eventlog import EventLog
from woodshed.store.queue import Lane, Reaped, SubmissionState

CEILING = 256
"""Slots that a worker has at most, however large its machine: one process feeds them all."""
KILLS = 3
"""An attempt at work at so many deaths of its worker, the last of them alone, is what killed it."""
_CHORES_S = 1.0
_IDLE_S = (0.05, 1.0)  # how soon an idle worker looks again: at first, and in the end
_AGAIN_S = 5.0  # after a fault of the store

T = TypeVar("T")


@dataclass(slots=True)
class Worked:
    """What a worker did until it ended, and why it ended: ``empty``, ``drained``, ``stopped`` or ``reaped``."""

    executor: str
    done: int = 0
    valid: int = 0
    passed: int = 0
    invalid: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    reaped: list[str] = field(default_factory=list)
    ended: str = ""

    def add(self, outcome: Outcome) -> None:
        """Count one attempt that has its result."""
        self.done += 1
        match outcome.verdict:
            case Valid() as verdict:
                self.valid += 1
                self.passed += verdict.passed
            case Invalid() as verdict:
                self.invalid[verdict.cause.value] += 1


@dataclass(frozen=True, slots=True)
class Terms:
    """How a worker works. ``slots`` None: as many as the machine carries. ``aside`` is the command that starts a

    worker of the quarantine lane as a process of its own; without it nobody here executes what waits there.
    """

    slots: int | None = None
    pool: str = ""
    lane: Lane = Lane.MAIN
    until_empty: bool = False
    aside: Sequence[str] = ()


async def work(home: Home, terms: Terms, tell: Callable[[str], None]) -> Worked:
    """Work until there is nothing left (where ``terms`` say so) or a signal asks for the end.

    SIGTERM or SIGINT: nothing more is taken, and what runs goes on to its end; a second one stops that, too.
    """
    worker = _Worker(home, terms, tell)
    async with worker.stack:
        await worker.begin()
        return await worker.until_the_end()


class _Worker:
    def __init__(self, home: Home, terms: Terms, tell: Callable[[str], None]) -> None:
        self.home, self.terms, self.tell = home, terms, tell
        self.queue = home.store.queue
        self.slots = Slots(most=CEILING) if terms.slots is None else \
            Slots(least=terms.slots, most=terms.slots, first=terms.slots)
        self.stack = AsyncExitStack()
        self.lease = Lease(home.path)
        self.stack.callback(self.lease.release)
        most = self.slots.most or CEILING
        self.runtimes = Runtimes(home, parallel=most)
        self.durable = Durable(home.path, self.lease.executor, self._execute, concurrency=most,
                               url=settings.setting("database_url") or None)
        self.worked = Worked(self.lease.executor)
        self.claimed: dict[str, Attempt] = {}
        self.running: dict[str, asyncio.Task[Any]] = {}
        self.called_off: set[str] = set()
        self.cut: set[str] = set()
        self.heart: Heart
        self.draining = self.stopped = self.reaped = False
        self.wake = asyncio.Event()
        self.child: asyncio.subprocess.Process | None = None
        self.chance = random.Random()  # noqa: S311 (spreads retries; nothing secret)

    @property
    def executor(self) -> str:
        return self.lease.executor

    # -- life ----------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        await self.durable.start()
        self.stack.push_async_callback(self.runtimes.close)
        self.stack.push_async_callback(self.durable.close)  # first, so that nothing uses a runtime any more
        self.queue.enlist(self.executor, host=platform.node(), pid=os.getpid(), slots=self.slots.count,
                          pool=self.terms.pool)
        loop = asyncio.get_running_loop()
        self.heart = Heart(self.queue, self.executor, lambda: (self.slots.count, len(self.claimed)),
                           lambda answer: loop.call_soon_threadsafe(self._heard, answer))
        self.stack.callback(self.heart.stop)
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._asked_to_end)

    async def until_the_end(self) -> Worked:
        idle_s, chores_at = _IDLE_S[0], 0.0
        try:
            while True:
                self.wake.clear()
                took = await self._take()
                if time.monotonic() >= chores_at:
                    await self._chores()
                    chores_at = time.monotonic() + _CHORES_S
                if not took and await self._over():
                    return self.worked
                idle_s = _IDLE_S[0] if took or self.wake.is_set() else min(2 * idle_s, _IDLE_S[1])
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.wake.wait(), idle_s)
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self.durable.halt()
        running = [*self.running.values()]
        for attempt in [*self.running]:
            self._cut(attempt)
        await asyncio.gather(*running, return_exceptions=True)
        if self.child is not None:
            self._end_child()
            await self.child.wait()
        self.heart.stop()
        if not self.reaped:
            with suppress(StoreFault):  # then others find us silent
                self.queue.leave(self.executor)

    def _heard(self, answer: list[str] | None) -> None:
        """A beat's answer: attempts of cancelled runs, or None where this worker was taken for dead."""
        if answer is None and not self.reaped:
            self.reaped = True
            self.tell("this worker was silent for too long: others have its attempts, and nothing of it counts")
            self.durable.halt()
            self.wake.set()
        for attempt in [*self.running] if answer is None else answer:
            if attempt not in self.called_off:
                self.called_off.add(attempt)
                self._cut(attempt)

    def _cut(self, attempt: str) -> None:
        """Cancel what runs of it, once: a second time would interrupt its cleaning up."""
        if attempt in self.running and attempt not in self.cut:
            self.cut.add(attempt)
            self.running[attempt].cancel()

    def _asked_to_end(self) -> None:
        if not self.draining:
            self.draining = True
            self.tell(f"draining: {len(self.claimed)} attempts go on to their end, nothing more is taken "
                      "(a second signal stops them)")
        else:
            self.stopped = True
            self.durable.halt()
            for attempt in [*self.running]:
                self._cut(attempt)
        self._end_child()
        self.wake.set()

    async def _over(self) -> bool:
        """Whether this worker has ended, and in ``worked`` why."""
        if self.reaped or self.stopped:
            self.worked.ended = "reaped" if self.reaped else "stopped"
            return not self.running
        if self.claimed or self.child is not None:
            return False
        if self.draining:
            self.worked.ended = "drained"
            return True
        if not self.terms.until_empty:
            return False
        self.worked.ended = "empty"
        if self.terms.lane is Lane.QUARANTINE:
            return True
        depth = await asyncio.to_thread(self.queue.depth)
        return not (depth.ready or depth.delayed or depth.running or depth.quarantined) and not await self._close_runs()

    async def _take(self) -> bool:
        """Claim as many attempts as slots are free; whether there were any."""
        if self.draining or self.reaped or len(self.claimed) >= self.slots.count:
            return False
        free = self.slots.count - len(self.claimed)
        try:
            found = await asyncio.to_thread(self.queue.claim, self.executor, free, self.terms.lane)
        except StoreFault as fault:
            self.tell(f"{fault}; trying again")
            return False
        self.claimed |= {attempt.id: attempt for attempt in found}
        await self.durable.take([attempt.id for attempt in found])
        return bool(found)

    # -- one attempt ---------------------------------------------------------------------------------------------------

    async def _execute(self, attempt_id: str) -> None:
        """One execution; the durable engine calls it."""
        attempt, task = self.claimed[attempt_id], asyncio.current_task()
        assert task is not None
        self.running[attempt_id] = task
        try:
            if attempt_id not in self.called_off:
                await self._attempt(attempt)
        finally:
            del self.running[attempt_id]
            if attempt_id in self.called_off and not self.reaped:
                self.queue.done(attempt_id)  # of a cancelled run: nothing of it waits any more
            self.claimed.pop(attempt_id, None)
            self.called_off.discard(attempt_id)
            self.cut.discard(attempt_id)
            self.wake.set()

    async def _attempt(self, attempt: Attempt) -> None:
        try:
            if self.terms.lane is Lane.QUARANTINE and await self._condemned(attempt):
                return
            async with self.runtimes.of(attempt.run) as live:
                log = await self._begun(attempt)
                if log is not None:
                    await self._settle(live, attempt, log, await self._executed(live, attempt, log))
        except Unopened as fault:
            await whole(self._pause, attempt.run, f"{platform.node()} cannot execute its attempts: {fault}")
            await whole(self.queue.give_back, attempt.id, self.executor)
        except Cancelled:
            return  # not ours any more: somebody else's beat, or reap, was faster
        except WoodshedError:
            raise
        except Exception as error:
            said = f"{attempt.id} broke as nobody foresaw: {type(error).__name__}: {error}"
            await whole(self._pause, attempt.run, said)
            raise

    async def _begun(self, attempt: Attempt) -> EventLog | None:
        """The log of a new execution; None where the attempt is done, and was only left in the queue."""
        number = await whole(lambda: self.home.store.begin_execution(attempt.id, self.executor, claimed=True))
        if number is None:
            await whole(self.queue.done, attempt.id)
            return None
        return EventLog(self.home.store, attempt.id, number)

    async def _executed(self, live: Live, attempt: Attempt, log: EventLog) -> Outcome:
        """One execution's outcome; cut off, it is set aside as evidence."""
        try:
            return await live.runtime.execute(attempt, log)
        except asyncio.CancelledError:
            why = "the worker was taken for dead" if self.reaped else \
                "the run was cancelled" if attempt.id in self.called_off else "the worker was stopped"
            log.set_aside(interrupted(why))
            raise

    async def _settle(self, live: Live, attempt: Attempt, log: EventLog, outcome: Outcome) -> None:
        """Count the outcome, or give the attempt back; see the module for the order."""
        await self._hold(live, attempt, outcome)
        wait_s = await whole(again_in_s, self.home, live.run, attempt, outcome, self.chance.random())
        if wait_s is not None:
            log.emit(EventKind.STATE, {"state": "to_be_retried", "in_s": round(wait_s, 3)})
            await whole(log.set_aside, outcome)
            await whole(lambda: self.queue.give_back(attempt.id, self.executor, after_s=wait_s))
            self.worked.retried += 1
        else:
            await self._count(attempt, log, outcome)
        await self._watch(live, outcome)

    async def _count(self, attempt: Attempt, log: EventLog, outcome: Outcome) -> None:
        if await whole(log.finish, outcome):
            await whole(self.queue.done, attempt.id)
            self.worked.add(outcome)
        else:
            await whole(self.queue.give_back, attempt.id, self.executor)

    async def _hold(self, live: Live, attempt: Attempt, outcome: Outcome) -> None:
        """An endpoint that asked for patience gets it: nothing that loads it begins anywhere until then."""
        broke = outcome.broke
        if broke is None or broke.cause is not Cause.MODEL_API or not broke.asked_s:
            return
        model = next(agent for agent in live.run.spec.agents if agent.name == attempt.agent).model
        if model is not None:
            await whole(self.queue.hold, f"endpoint:{model.base_url}", broke.asked_s)

    async def _watch(self, live: Live, outcome: Outcome) -> None:
        """Pause the run when most of what its workers do breaks."""
        rule = live.run.spec.retry.breaker
        if rule is None or isinstance(outcome.verdict, Valid):
            return
        breaker, reason = Breaker(rule), None
        for verdict in await whole(self.home.store.last_verdicts, live.run.id, live.since, rule.over):
            reason = breaker.add(verdict)
        if reason is not None:
            live.since = now()
            await whole(self._pause, live.run.id, reason)

    def _pause(self, run_id: str, reason: str) -> None:
        found = self.queue.submission(run_id)
        if found is not None and found.state is SubmissionState.OPEN:
            with suppress(UsageError):  # it was over in between
                self.queue.turn(run_id, SubmissionState.PAUSED, reason)
                self.tell(f"{run_id} is paused: {reason}")

    async def _condemned(self, attempt: Attempt) -> bool:
        """Whether the attempt has killed its workers so often that it is not tried again; then it has its result."""
        if await whole(self.queue.deaths, attempt.id) < KILLS:
            return False
        log = await self._begun(attempt)
        if log is not None:
            detail = f"it was at work at {KILLS} deaths of its worker, the last time alone: it killed them"
            verdict = Invalid(cause=Cause.ENVIRONMENT, detail=detail, retryable=False)
            log.emit(EventKind.ERROR, {"cause": verdict.cause.value, "type": "EnvironmentFault", "message": detail,
                                       "retryable": False})
            log.emit(EventKind.VERDICT, verdict.to_json())
            broke = Broken(cause=verdict.cause, stage=None)
            await self._count(attempt, log, Outcome(verdict=verdict, stop=StopReason.ERROR, broke=broke))
        return True

    # -- chores --------------------------------------------------------------------------------------------------------

    async def _chores(self) -> None:
        """What a worker does for itself and for all, every second. A fault of the store is told, and it goes on."""
        try:
            if self.draining:
                await asyncio.to_thread(self.queue.drain, self.executor)
            await self._mend()
            for reaped in await asyncio.to_thread(self._reap):
                await self._bury(reaped)
            await self._close_runs()
            await self.runtimes.sweep()
            await self._look_aside()
            host = await asyncio.to_thread(measure, self.home.path)
            self.slots.adjust(host, Need(), len(self.claimed))
        except StoreFault as fault:
            self.tell(f"{fault}; trying again")

    async def _mend(self) -> None:
        """Attempts neither counted nor given back, as the store or the durable engine failed, are free again."""
        for attempt, fault in self.durable.faults().items():
            self.claimed.pop(attempt, None)
            if not self.reaped:
                self.tell(f"{attempt}: {fault}; it is tried again")
                await whole(lambda attempt=attempt: self.queue.give_back(attempt, self.executor, after_s=_AGAIN_S))

    def _reap(self) -> list[Reaped]:
        """The dead: by their silence, and those of this home at once, as the lock of their process is free."""
        found = self.queue.reap(SILENT_S)
        for worker in self.queue.workers():
            if worker.executor == self.executor:
                self.draining = self.draining or worker.state == "draining"  # as someone else asked for
            elif worker.state != "gone" and owner(self.home.path, worker.executor) is None:
                one = self.queue.reap_one(worker.executor)
                found += [one] if one is not None else []
        return found

    async def _bury(self, reaped: Reaped) -> None:
        self.worked.reaped.append(reaped.executor)
        self.tell(f"worker {reaped.executor} died; free again: {', '.join(reaped.attempts) or 'nothing'}"
                  + (f"; to run alone: {', '.join(reaped.suspects)}" if reaped.suspects else ""))
        await self.durable.bury(reaped.executor)

    async def _close_runs(self) -> bool:
        """Runs of which nothing is left are finished; whether there were any."""
        closed = await asyncio.to_thread(self.queue.close_exhausted)
        for run_id in closed:
            await asyncio.to_thread(self._write_results, run_id)
            self.tell(f"{run_id} is finished")
        return bool(closed)

    def _write_results(self, run_id: str) -> None:
        run = self.home.store.run(run_id)
        report.write_results(self.home, run, report.summary(self.home, run))

    async def _look_aside(self) -> None:
        """See to the process that executes what waits in quarantine."""
        if self.child is not None and self.child.returncode is not None:
            self.child = None
        if self.child is None and self.terms.aside and not self.draining and not self.reaped \
                and await asyncio.to_thread(self.queue.suspected):
            self.child = await asyncio.create_subprocess_exec(
                *self.terms.aside, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is ours to pass on
            )

    def _end_child(self) -> None:
        if self.child is not None and self.child.returncode is None:
            with suppress(ProcessLookupError):
                self.child.terminate()


async def whole(call: Callable[..., T], *args: Any) -> T:
    """What ``call`` returns, from a thread. It is never left half heard: cancellation comes after it."""
    working, cancelled = asyncio.ensure_future(asyncio.to_thread(call, *args)), False
    while not working.done():
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:
            break
    if cancelled and (task := asyncio.current_task()) is not None:
        task.cancel()
    return working.result()
