"""Settling: a worker's attempt from its claim to its result, in an order in which every one counts once.

A result takes the attempt out of the queue as it is written. A retry is set aside before it is given back: who finds
it still held by a dead worker frees it, a little early. Nothing of a worker that was reaped counts: the store's fence
refuses its results, and it can begin nothing that the queue no longer calls its own.
"""

from __future__ import annotations

import asyncio
import platform
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from woodshed.errors import Cancelled, Cause, UsageError, WoodshedError
from woodshed.model import Attempt, EventKind, Invalid, Outcome, StopReason, Valid
from woodshed.model.event import now
from woodshed.model.retry import Breaker, Broken
from woodshed.services.home import Home
from woodshed.services.runtime import again_in_s, interrupted
from woodshed.services.runtimes import Live, Runtimes, Unopened
from woodshed.store.eventlog import EventLog
from woodshed.store.queue import Lane, SubmissionState

KILLS = 3
"""An attempt at work at so many deaths of its worker, the last of them alone, is what killed it."""

T = TypeVar("T")
Tell = Callable[[str], None]


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


class Settling:
    """Executes attempts that ``worked.executor`` has claimed, and settles each. ``why`` says why one was cut off."""

    def __init__(
        self, home: Home, lane: Lane, runtimes: Runtimes, worked: Worked, why: Callable[[str], str], tell: Tell,
        seen: Callable[[Outcome], object] = lambda outcome: None,
    ) -> None:
        self._home, self._queue, self._lane = home, home.store.queue, lane
        self._runtimes, self._worked, self._why, self._tell = runtimes, worked, why, tell
        self._executor, self._seen = worked.executor, seen
        self._pausing = threading.Lock()
        self._chance = random.Random()  # noqa: S311 (spreads retries; nothing secret)

    async def attempt(self, attempt: Attempt) -> None:
        """One execution, settled. Raises StoreFault, and whatever nobody foresaw; the attempt is still held then."""
        try:
            if self._lane is Lane.QUARANTINE and await self._condemned(attempt):
                return
            again_s = None
            async with self._runtimes.of(attempt.run) as live:
                log = await self._begun(attempt)
                if log is not None:
                    again_s = await self._settle(live, attempt, log, await self._executed(live, attempt, log))
            if again_s is not None:  # last of all: from then on it is anybody's, ours too
                await whole(partial(self._queue.give_back, attempt.id, self._executor, after_s=again_s))
        except Unopened as fault:
            await whole(self.pause, attempt.run, f"{platform.node()} cannot execute its attempts: {fault}")
            await whole(self._queue.give_back, attempt.id, self._executor)
        except Cancelled:
            return  # not ours any more: somebody else's beat, or reap, was faster
        except WoodshedError:
            raise
        except Exception as error:
            said = f"{attempt.id} broke as nobody foresaw: {type(error).__name__}: {error}"
            await whole(self.pause, attempt.run, said)
            raise

    async def _begun(self, attempt: Attempt) -> EventLog | None:
        """The log of a new execution; None where the attempt is done, and was only left in the queue."""
        number = await whole(partial(self._home.store.begin_execution, attempt.id, self._executor, claimed=True))
        if number is None:
            await whole(self._queue.done, attempt.id)
            return None
        return EventLog(self._home.store, attempt.id, number, worker=self._executor)

    async def _executed(self, live: Live, attempt: Attempt, log: EventLog) -> Outcome:
        """One execution's outcome; cut off, it is set aside as evidence."""
        try:
            return await live.runtime.execute(attempt, log)
        except asyncio.CancelledError:
            log.set_aside(interrupted(self._why(attempt.id)))
            if live.runtime.leaving:
                self._queue.give_back(attempt.id, self._executor)
            raise

    async def _settle(self, live: Live, attempt: Attempt, log: EventLog, outcome: Outcome) -> float | None:
        """Count the outcome, or set it aside: then in so many seconds the attempt is to be tried again."""
        self._seen(outcome)
        await self._hold(live, attempt, outcome)
        wait_s = None
        if outcome.broke is not None:
            wait_s = await whole(again_in_s, self._home, live.run, attempt, outcome, self._chance.random())
        if wait_s is not None:
            log.emit(EventKind.STATE, {"state": "to_be_retried", "in_s": round(wait_s, 3)})
            await whole(log.set_aside, outcome)
            self._worked.retried += 1
        elif not await self._counted(log, outcome):
            wait_s = 0.0
        await self._watch(live, outcome)
        return wait_s

    async def _counted(self, log: EventLog, outcome: Outcome) -> bool:
        if not await whole(log.finish, outcome):
            return False
        self._worked.add(outcome)
        return True

    async def _hold(self, live: Live, attempt: Attempt, outcome: Outcome) -> None:
        """An endpoint that asked for patience gets it: nothing that loads it begins anywhere until then."""
        broke = outcome.broke
        if broke is None or broke.cause is not Cause.MODEL_API or not broke.asked_s:
            return
        model = next(agent for agent in live.run.spec.agents if agent.name == attempt.agent).model
        if model is not None:
            await whole(self._home.store.limits.hold, f"endpoint:{model.base_url}", broke.asked_s)

    async def _watch(self, live: Live, outcome: Outcome) -> None:
        """Pause the run when most of what its workers do breaks."""
        rule = live.run.spec.retry.breaker
        if rule is None or isinstance(outcome.verdict, Valid):
            return
        breaker, reason = Breaker(rule), None
        for verdict in await whole(self._home.store.last_verdicts, live.run.id, live.since, rule.over):
            reason = breaker.add(verdict)
        if reason is not None:
            live.since = now()
            await whole(self.pause, live.run.id, reason)

    def pause(self, run_id: str, reason: str) -> None:
        """Nothing more is handed out of a run that was open."""
        with self._pausing:  # attempts of a run break together: one of them pauses it, and tells
            found = self._queue.submission(run_id)
            if found is not None and found.state is SubmissionState.OPEN:
                with suppress(UsageError):  # it was over in between
                    self._queue.turn(run_id, SubmissionState.PAUSED, reason)
                    self._tell(f"{run_id} is paused: {reason}")

    async def _condemned(self, attempt: Attempt) -> bool:
        """Whether the attempt has killed its workers so often that it is not tried again; then it has its result."""
        if await whole(self._queue.deaths, attempt.id) < KILLS:
            return False
        log = await self._begun(attempt)
        if log is not None:
            detail = f"it was at work at {KILLS} deaths of its worker, the last time alone: it killed them"
            verdict = Invalid(cause=Cause.ENVIRONMENT, detail=detail, retryable=False)
            log.emit(EventKind.ERROR, {"cause": verdict.cause.value, "type": "EnvironmentFault", "message": detail,
                                       "retryable": False})
            log.emit(EventKind.VERDICT, verdict.to_json())
            broke = Broken(cause=verdict.cause, stage=None)
            if not await self._counted(log, Outcome(verdict=verdict, stop=StopReason.ERROR, broke=broke)):
                await whole(self._queue.give_back, attempt.id, self._executor)
        return True


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
