"""Crew: the live parts that one process brings to one run, from sandboxes to model servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from woodshed import plugins, settings
from woodshed.attempt import Parts, judge_end_state, run_attempt
from woodshed.engine.durable import Durable
from woodshed.engine.lease import Lease, claim
from woodshed.errors import Cause, Paused
from woodshed.interfaces import Harness, ModelClient, SandboxEngine, Verifier
from woodshed.model import Agent, Attempt, ChangeSet, EventKind, Invalid, Outcome, Run, StopReason, Task
from woodshed.model.retry import Breaker
from woodshed.services.grading import Grading
from woodshed.services.home import Home
from woodshed.store.eventlog import EventLog

if TYPE_CHECKING:
    from woodshed.gateway.client import Gateway

Finished = Callable[[Outcome], None]
_INTERRUPTED = Outcome(
    verdict=Invalid(cause=Cause.CANCELLED, detail="the run was interrupted", retryable=True), stop=StopReason.CANCELLED
)
"""What an execution came to that was cut off: evidence, by which its attempt, still pending, is never counted."""


@dataclass(frozen=True, slots=True)
class EndState:
    """What an attempt that nobody acts is judged by: ``changes`` to the start of ``task``; ``note`` says whose."""

    task: Task
    changes: ChangeSet
    note: str


class Crew:
    """Everything live that executes the attempts of a run here. Leaving it closes all of it."""

    def __init__(self, home: Home, run: Run, tasks: Sequence[Task]) -> None:
        self._home, self._run = home, run
        self._tasks: Mapping[str, Task] = {task.id: task for task in tasks}
        self._agents: dict[str, Agent] = {agent.name: agent for agent in run.spec.agents}
        self._harnesses: dict[str, Harness] = {
            agent.name: plugins.harness(agent.harness) for agent in run.spec.agents
        }
        self._verifier: Verifier = plugins.verifier(run.spec.verifier)
        self._stack = AsyncExitStack()
        self._lease = Lease(home.path)
        self._durable = Durable(
            home.path,
            self._lease.executor,
            self._execute,
            concurrency=run.spec.concurrency + 1,
            url=settings.setting("database_url") or None,
        )
        # The durable engine begins one more than may act: its sandbox opens, and records are written, beside them.
        self._slots = asyncio.Semaphore(run.spec.concurrency)
        self._attempts: dict[str, Attempt] = {}
        self._later: set[asyncio.Task[None]] = set()
        self._chance = random.Random()  # noqa: S311 (spreads retries; nothing secret)
        self._breaker = Breaker(run.spec.retry.breaker) if run.spec.retry.breaker is not None else None
        self._paused: str | None = None
        self._finished: Finished = lambda outcome: None
        self.given: Callable[[Attempt], EndState | None] = lambda attempt: None
        """Asked of every attempt: an end state is judged in the place of what its agent would do."""
        self._engine: SandboxEngine
        self._grading: Grading
        self._gateway: Gateway | None = None

    @property
    def executor(self) -> str:
        """The id of this process in the durable engine; its lock says that we live."""
        return self._lease.executor

    @property
    def engine(self) -> SandboxEngine:
        """The engine that all sandboxes of the run come from."""
        return self._engine

    async def __aenter__(self) -> Self:
        self._stack.callback(self._lease.release)
        try:
            self._engine = plugins.engine(self._run.spec.engine, self._home.path)
            self._stack.push_async_callback(self._engine.close)
            if any(agent.model for agent in self._agents.values()):
                await self._reach_models()
            self._grading = Grading(self._run.spec.rules, self._verifier, self._engine, self._home.blobs)
            # Beside the durable engine's start. What fails here fails again in each attempt, which then has the cause.
            opening = asyncio.ensure_future(self._engine.open())
            try:
                await self._durable.start()
            finally:
                await asyncio.gather(opening, return_exceptions=True)
            self._stack.push_async_callback(self._durable.close)
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

    async def _reach_models(self) -> None:
        """The gateway stands and every model named is reachable; the agents are bound to their addresses."""
        from woodshed.gateway.client import Gateway  # with the HTTP client 0.1 s, which a run without a model saves
        from woodshed.services.endpoints import Endpoints

        self._gateway = Gateway()
        self._stack.push_async_callback(self._gateway.close)
        endpoints = await self._stack.enter_async_context(
            Endpoints(self._home.path, self._agents.values(), parallel=self._run.spec.concurrency)
        )
        self._agents = {name: endpoints.bound(agent) for name, agent in self._agents.items()}

    def take_over(self) -> None:
        """Become the owner of the run; its lost executions are marked. Raises UsageError while its owner lives."""
        claim(self._home.store, self._run.id, self._lease, self._home.path)

    async def work(self, attempts: Sequence[Attempt], finished: Finished) -> None:
        """Execute the attempts durably; ``finished`` hears of each outcome that counts. Returns when all are done.

        What broke and may be tried again waits outside, without a slot. Raises Paused when most executions break.
        """
        self._finished = finished
        self._attempts = {attempt.id: attempt for attempt in attempts}
        await self._durable.submit(self._run.id, list(self._attempts))
        while self._attempts:
            for fault in (await self._durable.wait()).values():
                raise fault
            if self._paused is not None:
                raise Paused(self._paused)
            if self._later:
                done, _ = await asyncio.wait(self._later, return_when=asyncio.FIRST_COMPLETED)
                self._later -= done
                for again in done:
                    again.result()

    async def _execute(self, attempt_id: str) -> None:
        attempt = self._attempts[attempt_id]
        number = self._home.store.begin_execution(attempt_id, self.executor)
        if number is None:
            del self._attempts[attempt_id]
            return
        log = EventLog(self._home.store, attempt_id, number)
        outcome = await self._executed(attempt, log)
        self._watch(outcome)
        wait_s = self._again_in(attempt, outcome)
        if wait_s is not None:
            log.emit(EventKind.STATE, {"state": "to_be_retried", "in_s": round(wait_s, 3)})
            await asyncio.to_thread(log.set_aside, outcome)
            self._later.add(asyncio.create_task(self._resubmit(attempt_id, wait_s)))
            return
        if await asyncio.to_thread(log.finish, outcome):
            self._finished(outcome)
        del self._attempts[attempt_id]

    async def _resubmit(self, attempt_id: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        await self._durable.submit(self._run.id, [attempt_id])

    def _again_in(self, attempt: Attempt, outcome: Outcome) -> float | None:
        """Seconds until the next execution of an attempt that just broke; None where its outcome counts."""
        if outcome.broke is None or not outcome.broke.retryable:
            return None
        past = [
            execution.outcome.broke for execution in self._home.store.executions(attempt.id)
            if execution.outcome is not None and execution.outcome.broke is not None
        ]
        return self._run.spec.retry.wait_s([*past, outcome.broke], self._chance.random())

    def _watch(self, outcome: Outcome) -> None:
        """Pause the run when most of what it does breaks."""
        reason = self._breaker.add(outcome.verdict) if self._breaker is not None else None
        if reason is not None and self._paused is None:
            self._paused = reason
            self._durable.halt()
            for later in self._later:
                later.cancel()

    async def _executed(self, attempt: Attempt, log: EventLog) -> Outcome:
        """One execution's outcome; cut off, it is set aside as evidence."""
        agent = self._agents[attempt.agent]
        grader = None if self._run.spec.check else self._grading.grader(self._tasks[attempt.task], log.emit)
        parts = Parts(
            engine=self._engine,
            harness=self._harnesses[agent.name],
            verifier=self._verifier,
            model=self._client(agent, log, attempt.seed),
            blobs=self._home.blobs,
            emit=grader.emit if grader else log.emit,
            slots=self._slots,
            grader=grader,
        )
        try:
            return await self._outcome(attempt, agent, parts)
        except asyncio.CancelledError:
            log.set_aside(_INTERRUPTED)
            raise

    async def _outcome(self, attempt: Attempt, agent: Agent, parts: Parts) -> Outcome:
        end = self.given(attempt)
        if end is None:
            return await run_attempt(self._tasks[attempt.task], agent, parts, seed=attempt.seed)
        parts.emit(EventKind.NOTE, {"text": end.note})
        return await judge_end_state(end.task, end.changes, parts)

    def _client(self, agent: Agent, log: EventLog, seed: int) -> ModelClient | None:
        if agent.model is None:
            return None
        assert self._gateway is not None
        return self._gateway.client(agent.model, log.emit, seed=seed)
