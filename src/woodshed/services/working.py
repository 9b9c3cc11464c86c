"""A worker: takes attempts of shared runs, executes each durably, and sees to what the dead left behind."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from woodshed import settings
from woodshed.engine.capacity import Need, Slots, measure
from woodshed.engine.control import Control
from woodshed.engine.durable import Durable
from woodshed.engine.lease import Lease
from woodshed.errors import StoreFault
from woodshed.model import Attempt, Outcome
from woodshed.model.counted import counted
from woodshed.services import report
from woodshed.services.ears import Ears
from woodshed.services.firing import Scheduler
from woodshed.services.heart import SILENT_S, Heart
from woodshed.services.home import Home
from woodshed.services.janitor import Janitor, Sweep, ended, nothing
from woodshed.services.runtime import cancelled_by
from woodshed.services.runtimes import Runtimes
from woodshed.services.settling import Settling, Tell, Worked, whole
from woodshed.store.ids import run_of
from woodshed.store.queue import Beat, Lane, Reaped, SubmissionState

MB = 1 << 20
OWN_MB = 16.0
"""Of memory, beside what runs in its sandboxes: their first process, and what is kept of an attempt here."""
CEILING = 256
"""Slots that a worker has at most, however large its machine: one process feeds them all."""
_CHORES_S = 1.0
_IDLE_S = (0.05, 1.0)  # how soon an idle worker looks again: at first, and in the end
_SWEEPS, _SWEEP_S = 5, 0.2
_AGAIN_S, _FAULTS = 5.0, 3  # after a fault of the store an attempt is tried again so soon, and so often


@dataclass(frozen=True, slots=True)
class Terms:
    """How a worker works. ``slots`` None: as many as the machine carries. ``aside`` is the command that starts a

    worker of the quarantine lane as a process of its own; without it nobody here executes what waits there. ``sweep``
    removes what dead processes left on this machine, as far as it has ended by then. With an ``end``, whoever sets that
    asks for the end, and signals are another's to hear.
    """

    slots: int | None = None
    pool: str = ""
    lane: Lane = Lane.MAIN
    until_empty: bool = False
    aside: Sequence[str] = ()
    sweep: Sweep = nothing
    end: asyncio.Event | None = None


async def work(home: Home, terms: Terms, tell: Tell) -> Worked:
    """Work until there is nothing left (where ``terms`` say so) or a signal asks for the end.

    SIGTERM or SIGINT: nothing more is taken, and what runs goes on to its end; a second one stops that, too.
    """
    worker = _Worker(home, terms, tell)
    async with worker.stack:
        await worker.begin()
        return await worker.until_the_end()


class _Worker:
    def __init__(self, home: Home, terms: Terms, tell: Tell) -> None:
        self.home, self.terms, self.tell = home, terms, tell
        self.queue, self.control = home.store.queue, Control(home.store)
        self.slots = Slots(most=CEILING) if terms.slots is None else \
            Slots(least=terms.slots, most=terms.slots, first=terms.slots)
        self.stack = AsyncExitStack()
        self.lease = Lease(home.path)
        self.stack.callback(self.lease.release)
        most = self.slots.most or CEILING
        self.ears = Ears(home.store.messages)
        self.runtimes = Runtimes(home, parallel=most, ears=self.ears)
        self.durable = Durable(home.path, self.lease.executor, self._execute, concurrency=most,
                               url=settings.setting("database_url") or None)
        self.worked = Worked(self.lease.executor)
        self.claimed: dict[str, Attempt] = {}
        self.running: dict[str, asyncio.Task[Any]] = {}
        self.called_off: set[str] = set()
        self.cut: set[str] = set()
        self.heart: Heart
        self.loop: asyncio.AbstractEventLoop
        self.draining = self.stopped = self.reaped = False
        self.signals = 0
        self.wake = asyncio.Event()
        self.child: asyncio.subprocess.Process | None = None
        self.settling = Settling(home, terms.lane, self.runtimes, self.worked, self._why, tell, self._seen)
        self.scheduler = Scheduler(home, self.lease.executor, tell)
        self.looking: asyncio.Task[None] | None = None
        self.need = Need()
        self.faulted: Counter[str] = Counter()
        self.to_sweep = 0

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
        tending = asyncio.create_task(Janitor(self.home, self.terms.sweep, self.durable, self.tell).tend())
        self.stack.push_async_callback(ended, tending)
        loop = self.loop = asyncio.get_running_loop()
        self.heart = Heart(self.queue, self.executor, lambda: (self.slots.count, len(self.claimed)),
                           lambda answer: loop.call_soon_threadsafe(self._heard, answer))
        self.stack.callback(self.heart.stop)
        if self.terms.end is None:
            for signum in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(signum, self._asked_to_end)

    async def until_the_end(self) -> Worked:
        idle_s, chores_at = _IDLE_S[0], 0.0
        try:
            while True:
                self.wake.clear()
                if self.terms.end is not None and self.terms.end.is_set():
                    self._drain()
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
        while self.to_sweep:
            await self._sweep()
            await asyncio.sleep(_SWEEP_S)
        await self._stop_looking()
        self.heart.stop()
        if not self.reaped:
            with suppress(StoreFault):  # then others find us silent
                self.queue.leave(self.executor)

    def _heard(self, answer: Beat | None) -> None:
        """A beat's answer: what to heed, or None where this worker was taken for dead."""
        if answer is None and not self.reaped:
            self.reaped = True
            self.tell("this worker was silent for too long: others have its attempts, and nothing of it counts")
            self.durable.halt()
            self.wake.set()
        if answer is not None:
            self.ears.wake(answer.spoken)
        for attempt in [*self.running] if answer is None else answer.off:
            if attempt not in self.called_off:
                self.called_off.add(attempt)
                self._cut(attempt)

    def _cut(self, attempt: str) -> None:
        """Cancel what runs of it, once: a second time would interrupt its cleaning up."""
        if attempt in self.running and attempt not in self.cut:
            self.cut.add(attempt)
            self.running[attempt].cancel()

    def _asked_to_end(self) -> None:
        self.signals += 1
        if self.signals == 1:
            self._drain()
        else:
            self.stopped = True
            self.durable.halt()
            for attempt in [*self.running]:
                self._cut(attempt)
        self._end_child()
        self.wake.set()

    def _drain(self) -> None:
        """Nothing more is taken. What runs goes on to its end or, where others can go on with it, to its next turn."""
        if not self.draining:
            self.draining = True
            self.runtimes.leave()
            self.tell(f"draining: {counted(len(self.claimed), 'attempt')} at work, to the end, or to a checkpoint "
                      "where durability is fine; nothing more is taken (a second signal stops what runs)")

    async def _over(self) -> bool:
        """Whether this worker has ended, and in ``worked`` why."""
        if self.reaped or self.stopped:
            self.worked.ended = "reaped" if self.reaped else "stopped"
            return not self.running
        if self.claimed or self.child is not None:
            return False
        if self.draining:
            self.worked.ended = "drained"
            with suppress(StoreFault):  # then whoever comes next does it
                await self._close_runs()
            return True
        if not self.terms.until_empty:
            return False
        if self.looking is not None:  # waited for, not asked: the next look begins before this is asked again
            await asyncio.wait([self.looking])
        self.worked.ended = "empty"
        if self.terms.lane is Lane.QUARANTINE:
            return True
        try:
            depth = await asyncio.to_thread(self.queue.depth, self.terms.pool)
            left = depth.ready or depth.delayed or depth.running or depth.quarantined
            return not left and not await self._close_runs()
        except StoreFault as fault:
            self.tell(f"{fault}; trying again")
            return False

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
                await self.settling.attempt(attempt)
        finally:
            self._forget(attempt, task)

    def _forget(self, attempt: Attempt, task: asyncio.Task[Any]) -> None:
        """The execution ended. What it gave back may be claimed here already, anew: that is kept."""
        if self.running.get(attempt.id) is task:
            del self.running[attempt.id]
            self.cut.discard(attempt.id)
        if self.claimed.get(attempt.id) is attempt:
            del self.claimed[attempt.id]
            if attempt.id in self.called_off and not self.reaped:
                self.queue.called_off(attempt.id, self.executor)
            self.called_off.discard(attempt.id)
        self.wake.set()

    def _why(self, attempt_id: str) -> str:
        """Why the attempt was cut off."""
        if self.reaped:
            return "the worker was taken for dead"
        if attempt_id in self.called_off:
            found = self.queue.submission(run_of(attempt_id))
            if found is not None and found.state is SubmissionState.OVERDUE and found.reason:
                return found.reason
            return cancelled_by(found.reason if found is not None else None)
        return "the worker was stopped" if attempt_id in self.cut else "it was left at a turn, to be gone on with"

    def _seen(self, outcome: Outcome) -> None:
        """What an attempt took at its peak is what the next ones will need, as far as it is known."""
        used = outcome.used_in_all
        memory_mb = self.need.memory_mb if used.memory_peak_bytes is None else used.memory_peak_bytes / MB + OWN_MB
        disk_mb = self.need.disk_mb if used.disk_bytes is None else used.disk_bytes / MB
        self.need = self.need.seen(memory_mb, disk_mb)

    # -- chores --------------------------------------------------------------------------------------------------------

    async def _chores(self) -> None:
        """What a worker does for itself and for all, every second. A fault of the store is told, and it goes on."""
        try:
            if self.draining:
                await asyncio.to_thread(self.queue.drain, self.executor)
            if not self.reaped:
                await self._mend()
            for reaped in await asyncio.to_thread(self._reap):
                await self._bury(reaped)
            await self._close_runs()
            for run_id in await asyncio.to_thread(self.queue.overdue):
                self.tell(f"{run_id} is paused: its deadline is over")
            await self.runtimes.sweep()
            await self._sweep()
            await self._look_aside()
            await self._look_at_schedules()
            host = await asyncio.to_thread(measure, self.home.path)
            self.slots.adjust(host, self.need, len(self.claimed))
        except StoreFault as fault:
            self.tell(f"{fault}; trying again")

    async def _mend(self) -> None:
        """What the queue calls ours and we know nothing of is free again, soon.

        The store or the durable engine failed when it was to be counted or given back, or an answer was lost.
        """
        for attempt, fault in self.durable.faults().items():
            self.claimed.pop(attempt, None)
            self.faulted[attempt] += 1
            self.tell(f"{attempt}: {fault}; it is tried again")
            if self.faulted[attempt] >= _FAULTS:
                await whole(self.settling.pause, run_of(attempt), f"{attempt} cannot be recorded: {fault}")
        for attempt in await asyncio.to_thread(self.queue.held, self.executor):
            if attempt not in self.claimed:
                await whole(partial(self.queue.give_back, attempt, self.executor, after_s=_AGAIN_S))

    def _reap(self) -> list[Reaped]:
        """The dead: by their silence, and those of this home at once, as the lock of their process is free."""
        for worker in self.control.workers():
            if worker.executor == self.executor and worker.state == "draining":  # as someone else asked for
                self.loop.call_soon_threadsafe(self._drain)
        silent_s = SILENT_S if self.heart.steady() else None
        return self.control.recover(self.home.path, silent_s=silent_s, without=self.executor)

    async def _bury(self, reaped: Reaped) -> None:
        self.worked.reaped.append(reaped.executor)
        self.to_sweep = _SWEEPS
        self.tell(f"worker {reaped.executor} died; free again: {', '.join(reaped.attempts) or 'nothing'}"
                  + (f"; to run alone: {', '.join(reaped.suspects)}" if reaped.suspects else ""))
        await self.durable.bury(reaped.executor)

    async def _sweep(self) -> None:
        """Remove what the dead left; again a few times, as their sandboxes end a moment after them."""
        if self.to_sweep:
            self.to_sweep -= 1
            await asyncio.to_thread(self.terms.sweep)

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
                and await asyncio.to_thread(self.queue.suspected, self.terms.pool):
            self.child = await asyncio.create_subprocess_exec(
                *self.terms.aside, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is ours to pass on
            )

    async def _look_at_schedules(self) -> None:
        """Fire what is due, beside everything else: planning a run may read many folders. Raises StoreFault."""
        if self.looking is not None and self.looking.done():
            looked, self.looking = self.looking, None
            await looked
        if self.looking is None and self.terms.lane is Lane.MAIN and not self.draining and not self.reaped:
            self.looking = asyncio.create_task(asyncio.to_thread(self.scheduler.tick))

    async def _stop_looking(self) -> None:
        self.scheduler.halt()
        if self.looking is not None:
            with suppress(StoreFault):  # what is due stays due, for whoever looks next
                await self.looking
        if self.terms.lane is Lane.MAIN and not self.reaped:
            with suppress(StoreFault):
                await asyncio.to_thread(self.scheduler.leave)

    def _end_child(self) -> None:
        if self.child is not None and self.child.returncode is None:
            with suppress(ProcessLookupError):
                self.child.terminate()
