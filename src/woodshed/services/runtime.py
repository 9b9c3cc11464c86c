"""Runtime: the live parts of one run in this process, from sandboxes to model servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from woodshed import plugins
from woodshed.attempt import Parts, judge_end_state, run_attempt
from woodshed.errors import Cause, UsageError, WoodshedError
from woodshed.harness.played import apart
from woodshed.harness.resume import Fine
from woodshed.interfaces import Emit, Harness, Hear, ModelClient, SandboxEngine, Verifier
from woodshed.measure.resume import past
from woodshed.model import (
    Agent,
    Answer,
    Attempt,
    ChangeSet,
    Durability,
    Event,
    EventKind,
    Invalid,
    ModelSpec,
    Outcome,
    Run,
    StopReason,
    Task,
)
from woodshed.model.stepwise import Reached
from woodshed.services import hearing
from woodshed.services.ears import Ears
from woodshed.services.grading import Grading
from woodshed.services.ground import Ground, goes_on, grounded, origin
from woodshed.services.home import Home
from woodshed.settings import setting
from woodshed.store.commits import Commits
from woodshed.store.eventlog import EventLog

if TYPE_CHECKING:
    from woodshed.gateway.client import Gateway

_OTHER = 0x5EED
"""Makes the person's seeds others than the agent's."""


@dataclass(frozen=True, slots=True)
class EndState:
    """What an attempt that nobody acts is judged by: ``changes`` to the start of ``task``; ``note`` says whose."""

    task: Task
    changes: ChangeSet
    note: str


class Runtime:
    """Everything live that executes attempts of a run here, whoever hands them out. Leaving it closes all of it.

    Acting and verifying take one of ``slots``; a model that we serve ourselves answers ``parallel`` attempts at once.
    Raises UsageError for a harness, an engine or a verifier that this machine does not have, or a model out of reach.
    """

    def __init__(
        self, home: Home, run: Run, tasks: Sequence[Task], *, slots: asyncio.Semaphore, parallel: int,
        ears: Ears, tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``ears`` hear what is sent to attempts. ``tell`` hears, at the beginning, what people should know of models.
        """
        self._home, self._run = home, run
        self._tasks: Mapping[str, Task] = {task.id: task for task in tasks}
        self._agents: dict[str, Agent] = {agent.name: agent for agent in run.spec.agents}
        self._harnesses: dict[str, Harness] = {
            agent.name: plugins.harness(agent.harness) for agent in run.spec.agents
        }
        self._verifier: Verifier = plugins.verifier(run.spec.verifier)
        self._slots, self._parallel, self._tell = slots, parallel, tell
        self._commits, self._ears = Commits(home.store), ears
        self._stack = AsyncExitStack()
        self.given: Callable[[Attempt], EndState | None] = lambda attempt: None
        """Asked of every attempt: an end state is judged in the place of what its agent would do."""
        self.leaving = False
        """Set: attempts of fine durability are left at their next turn, for others to go on with."""
        self._engine: SandboxEngine
        self._opening: asyncio.Future[None] | None = None
        self._grading: Grading
        self._ground: Ground | None = None
        self._gateway: Gateway | None = None
        self._person: ModelSpec | None = None
        self._announced = False

    @property
    def engine(self) -> SandboxEngine:
        """The engine that all sandboxes of the run come from."""
        return self._engine

    async def __aenter__(self) -> Self:
        try:
            self._engine = plugins.engine(self._run.spec.engine, self._home.path)
            self._stack.push_async_callback(self._engine.close)
            if self._run.spec.person is not None or any(agent.model for agent in self._agents.values()):
                await self._reach_models()
            self._grading = Grading(self._run.spec.rules, self._verifier, self._engine, self._home.blobs)
            if (fork := self._run.spec.fork) is not None:
                of = origin(self._home, fork)
                self._ground = grounded(self._home, fork, of, self._tasks[of.attempt.task], self._engine)
                self._stack.push_async_callback(self._ground.close)
        except BaseException:
            await self._stack.aclose()
            raise
        self._opening = asyncio.ensure_future(self._engine.open())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.ready()
        finally:
            await self._stack.aclose()

    async def ready(self) -> None:
        """The engine stands, or failed to: what fails here fails again in each attempt, which then has the cause."""
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)

    async def prepare(self) -> None:
        """What all attempts of a fork begin from stands. Raises UsageError where it did not come about again."""
        await self.ready()
        if self._ground is not None:
            await self._ground.ready()

    async def _reach_models(self) -> None:
        """The gateway stands and every model named is reachable; the agents are bound to their addresses."""
        from woodshed.gateway.client import Gateway  # with the HTTP client 0.1 s, which a run without a model saves
        from woodshed.services.endpoints import Endpoints, captured

        self._gateway = Gateway(concurrent=_at_once())
        request = await asyncio.to_thread(self._home.store.rollouts.request, self._run.id)
        self._announced = request is not None and request.endpoint is not None
        self._stack.push_async_callback(self._gateway.close)
        endpoints = await self._stack.enter_async_context(
            Endpoints(self._home.path, self._agents.values(), parallel=self._parallel, person=self._run.spec.person)
        )
        if self._run.spec.person is not None:
            self._person = endpoints.at(self._run.spec.person)
        self._agents = {name: endpoints.bound(agent) for name, agent in self._agents.items()}
        for sentence in await captured(self._gateway, [one.model for one in self._agents.values() if one.model]):
            self._tell(sentence)

    async def execute(self, attempt: Attempt, log: EventLog) -> Outcome:
        """One execution's outcome, its events in ``log``; who is cancelled sets it aside as evidence."""
        agent, task = self._agents[attempt.agent], self._tasks[attempt.task]
        fine, earlier = await self._fine(agent, log)
        grader = None
        if self._run.spec.check is None:
            grader = self._grading.grader(task, log.emit, execution=log.execution, earlier=earlier)
        emit, harness = grader.emit if grader else log.emit, self._harnesses[agent.name]
        hear = await self._hear(harness, log, fine)
        if self._ground is not None:
            with suppress(WoodshedError):  # what it is shows where the sandbox is opened
                await self._ground.ready()
            harness = self._ground.continued(agent, harness, emit)
        parts = Parts(
            engine=self._engine,
            harness=harness,
            verifier=self._verifier,
            model=self._client(agent, emit, attempt.seed, fine, log),
            blobs=self._home.blobs,
            emit=emit,
            slots=self._slots,
            grader=grader,
            graded_in=grader.sandboxes if grader else None,
            deadlines=self._run.spec.deadlines,
            fine=fine,
            serve=self._gateway.serve if self._gateway is not None else None,
            hear=hear,
            person=self._speaker(task, emit, attempt.seed),
            ground=self._ground.engine(agent) if self._ground is not None else None,
            reached=self._ground.reached if self._ground is not None else Reached(),
        )
        if fine is not None and not task.steps and (captured := await fine.captured(parts.blobs, emit)) is not None:
            return await judge_end_state(task, captured, parts, stop=fine.stop, usage=fine.usage)
        end = self.given(attempt)
        if end is None:
            return await run_attempt(task, agent, parts, seed=attempt.seed)
        parts.emit(EventKind.NOTE, {"text": end.note})
        return await judge_end_state(end.task, end.changes, parts)

    async def _fine(self, agent: Agent, log: EventLog) -> tuple[Fine | None, list[Event]]:
        """What makes the execution fine, where it is to be, and the events of the attempt's earlier ones."""
        if agent.durability is not Durability.FINE:
            return None, []
        keep: Callable[[], Awaitable[None]] = partial(asyncio.to_thread, log.keep)
        earlier: list[Event] = []
        if log.execution > 1:
            events = await asyncio.to_thread(self._home.store.events, log.attempt)
            earlier = [event for event in events if event.execution < log.execution]
        fine = Fine(keep, agent.checkpoint, past(earlier), leaving=lambda: self.leaving)
        await fine.look(self._home.blobs)
        return fine, earlier

    async def _hear(self, harness: Harness, log: EventLog, fine: Fine | None) -> Hear | None:
        """How the attempt hears what is sent to it; what its conversation has already is not told again."""
        if not hearing.hears(harness):
            return None
        records = fine.records if fine is not None else ()
        known = [number for one in records for heard in one.heard.values() for number, _ in heard]
        if known:
            await asyncio.to_thread(self._home.store.messages.carry, log.attempt, known, log.execution)
        return self._ears.of(log, known)

    def _speaker(self, task: Task, emit: Emit, seed: int) -> ModelClient | None:
        """Plays the task's person: in events of their own, so that nothing of it is taken for the agent's."""
        if task.person is None or self._person is None or self._gateway is None:
            return None
        return self._gateway.client(self._person, apart(emit), seed=seed ^ _OTHER, put=self._home.blobs.put)

    def _client(
        self, agent: Agent, emit: Emit, seed: int, fine: Fine | None, log: EventLog
    ) -> ModelClient | None:
        """Its calls are durable before anybody has an answer, where they are captured: a trainer may rely on them."""
        if agent.model is None:
            return None
        assert self._gateway is not None
        past = fine.past if fine is not None else None
        if self._ground is not None and goes_on(self._ground.of.agent, agent):
            past = self._ground.of.past
        known: Sequence[Answer] = past.known if past is not None else ()
        settled = partial(self._commits.keep, log) if agent.model.captures else None
        return self._gateway.client(agent.model, emit, seed=seed, past=known, kept=fine.keep if fine else None,
                                    settled=settled, put=self._home.blobs.put, begun=past.begun if past else 0,
                                    weights=self._weights if self._announced else None)

    async def _weights(self) -> str | None:
        """The version that the request's endpoint has now. Asked of the store each time: a swap that was announced in

        another process holds for the very next call.
        """
        version = await asyncio.to_thread(self._home.store.rollouts.weights, self._run.id)
        return None if version is None else str(version)


def _at_once() -> int | None:
    """The setting ``model_calls``. Raises UsageError where it is no number of calls."""
    asked = setting("model_calls")
    if not asked:
        return None
    if not asked.isdecimal() or not int(asked):
        raise UsageError(f"{asked!r} is no number of calls", field="WOODSHED_MODEL_CALLS",
                         remedy="Say how many an endpoint is sent at a time, or nothing for no bound.")
    return int(asked)


def interrupted(why: str) -> Outcome:
    """What an execution came to that was cut off: evidence, by which its attempt, still pending, is never counted."""
    return Outcome(
        verdict=Invalid(cause=Cause.CANCELLED, detail=why, retryable=True), stop=StopReason.CANCELLED
    )


def cancelled_by(reason: str | None) -> str:
    """Why an execution was cut off whose run somebody cancelled."""
    return f"the run was cancelled: {reason}" if reason else "the run was cancelled"


def overdue(run_s: float) -> str:
    """Why a run ended before its attempts did."""
    return f"the run's deadline of {run_s:g} s is over"


def again_in_s(home: Home, run: Run, attempt: Attempt, outcome: Outcome, chance: float) -> float | None:
    """Seconds until the next execution of an attempt that just broke, by the run's rules; None: its outcome counts."""
    if outcome.broke is None or not outcome.broke.retryable:
        return None
    past = [
        execution.outcome.broke for execution in home.store.executions(attempt.id)
        if execution.outcome is not None and execution.outcome.broke is not None
    ]
    return run.spec.retry.wait_s([*past, outcome.broke], chance)
