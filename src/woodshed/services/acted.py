"""Acted attempts: attempts that somebody outside acts, call by call, as environments of reinforcement learning are.

Each is an attempt like any other, in a run of its own: opened, recorded, captured and verified by ``run_attempt``. At
most ``most`` are open at once. Who is silent for ``idle_s`` has left: the attempt is invalid, and its place is free.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from woodshed import plugins
from woodshed.attempt import Parts, run_attempt
from woodshed.engine.lease import Lease
from woodshed.errors import Cancelled, Cause, Conflict, EnvironmentFault, Missing, UsageError
from woodshed.harness.outside import NAME, Outside, Standing
from woodshed.harness.tools import chosen, name_of
from woodshed.interfaces import SandboxEngine, ToolResult, Verifier
from woodshed.model import Agent, Attempt, EventKind, Invalid, Outcome, Run, RunSpec, RunState, StopReason, Task, Valid
from woodshed.model.acted import Act, Begin, Begun, Ended, Seen, StepTold, ToolTold
from woodshed.model.deadlines import Deadlines
from woodshed.model.event import now
from woodshed.services import orphaned
from woodshed.services.grading import Grading
from woodshed.services.home import Home, opened
from woodshed.services.offer import Offer, made
from woodshed.services.runs import planned
from woodshed.store.eventlog import EventLog
from woodshed.store.ids import new_run_id
from woodshed.tasks.load import find_tasks

MOST, IDLE_S = 4, 600.0
_KEPT = 256
"""Of those that are over, so many, whose ends are still told to those who ask again."""
_ENDS = "the service ended"
T = TypeVar("T")


class Full(Conflict):
    """As many are open as may be."""


@dataclass(slots=True)
class _Live:
    """The parts that all of them share, while there are any."""

    engine: SandboxEngine
    verifier: Verifier
    grading: Grading
    lease: Lease


@dataclass(slots=True)
class ActedAttempt:
    """One attempt that somebody acts. ``begun`` is what is told of it."""

    begun: Begun
    outside: Outside
    running: asyncio.Task[Outcome]
    calls: int = 0
    told: Standing | None = None
    """What whoever acts knows of: the task, or the step that was begun last."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def stand(self) -> bool:
        """Whether its sandbox stands, and what is to be acted is told; False where it ended before."""
        if self.outside.standing is None:
            await _first(self.outside.next, self.running)
        if (standing := self.outside.standing) is None:
            return False
        tools = tuple(ToolTold(name=one.name, description=one.description, parameters=dict(one.parameters))
                      for one in standing.tools)
        self.told = standing
        self.begun = self.begun.model_copy(update={
            "instruction": standing.task.instruction, "tools": tools, "deadline_s": standing.deadline_s,
            "step": _step_told(standing)})
        return True

    @property
    def over(self) -> bool:
        """Whether it has its outcome."""
        return self.running.done()

    async def act(self, act: Act) -> Seen:
        """What the tool answers; one call after the other. Raises Conflict where it is over already, StoreFault."""
        async with self._lock:
            if self.over:
                raise Conflict(f"{self.begun.id} is over", field="id", remedy="Begin another one.")
            self.calls += 1
            standing = self.told
            if standing is None or self.outside.standing is not standing:
                return await self._passed(None)
            answer = self.outside.call(act.tool, act.arguments)
            await _first(answer, standing.over)
            answered = answer.result() if answer.done() else None
            if answered is None or answered.over:
                return await self._passed(answered.result if answered is not None else None)
            return _seen(answered.result)

    async def _passed(self, result: ToolResult | None) -> Seen:
        """The task, or the step that was told of last, is over, by this ``result`` or without any: what comes then."""
        if self.outside.standing is self.told:
            await _first(self.outside.next, self.running)
        seen, standing = _seen(result), self.outside.standing
        if self.over or standing is None or standing is self.told:
            content = seen.content if result is not None else "The attempt is over."
            return seen.model_copy(update={"content": content, "ended": await self._ended()})
        self.told, step = standing, _step_told(standing)
        over = seen.content if result is not None else "The step was over; this call was not carried out."
        content = f"{over}\n\nStep {step.number} of {step.steps}, {step.name}:\n{step.instruction}" if step else over
        return seen.model_copy(update={"content": content, "step": step})

    async def finish(self) -> Ended:
        """What was done is verified, in a fresh sandbox; asked again, the same. Raises StoreFault."""
        if not self.over:
            self.outside.end()
        return await self._ended()

    async def close(self, why: str = "whoever acted left before the end") -> None:
        """Nothing of it runs any more. What was not finished has no verdict. Idempotent."""
        self.outside.leave(why)
        await asyncio.wait({self.running})

    async def _ended(self) -> Ended:
        await asyncio.wait({self.running})
        attempt = self.begun.id
        if self.running.cancelled():
            return Ended(attempt=attempt, valid=False, cause=Cause.CANCELLED, detail=_ENDS, stop=StopReason.CANCELLED)
        outcome = self.running.result()
        verdict, stop = outcome.verdict, outcome.stop.value
        if isinstance(verdict, Valid):
            return Ended(attempt=attempt, valid=True, reward=verdict.total, rewards=verdict.rewards,
                         passed=verdict.passed, cause=verdict.cause, stop=stop)
        return Ended(attempt=attempt, valid=False, cause=verdict.cause, detail=verdict.detail, stop=stop)


class ActedAttempts:
    """Opens them, in one event loop, and closes all that are left. Whoever asks may name what is offered."""

    def __init__(
        self, home: Home, offer: Offer, *, most: int = MOST, idle_s: float = IDLE_S, deadlines: Deadlines | None = None
    ) -> None:
        self._home, self._offer, self._idle_s = home, offer, idle_s
        self._deadlines = deadlines or Deadlines()
        self.most, self._free = most, asyncio.Semaphore(most)
        self._known: dict[str, ActedAttempt] = {}
        self._opening: asyncio.Task[_Live] | None = None
        self._stack = AsyncExitStack()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def open(self) -> int:
        """How many are open."""
        return sum(not acted.over for acted in self._known.values())

    def get(self, name: str) -> ActedAttempt:
        """The acted attempt of this id. Raises Missing."""
        if (found := self._known.get(name)) is None:
            raise Missing(f"no attempt {name!r}", field="id",
                          remedy="Begin one; those of a service that ended are over.")
        return found

    async def begin(self, begin: Begin) -> ActedAttempt:
        """An attempt whose sandbox stands, and that waits for calls.

        Raises Full, UsageError, Missing for what is not offered, EnvironmentFault where its sandbox does not open, and
        StoreFault.
        """
        agent = Agent(name=NAME, harness=NAME, limits=begin.limits, tools=begin.tools)
        task = await asyncio.to_thread(self._task, begin)
        await self._place(begin.wait_s)
        try:
            acted = await self._begun(task, agent, begin.seed)
        except BaseException:
            self._free.release()
            raise
        acted.running.add_done_callback(self._freed)
        try:
            return await self._standing(acted)
        except BaseException:
            acted.outside.leave("whoever began it left")
            raise

    def forget(self, name: str) -> None:
        """Its end is not asked for any more."""
        self._known.pop(name, None)

    async def close(self) -> None:
        """All that are open are cut off, and everything live is closed. Idempotent."""
        self._closed = True
        for acted in self._known.values():
            acted.outside.leave(_ENDS)
            acted.running.cancel()
        await asyncio.gather(*(one.running for one in self._known.values()), return_exceptions=True)
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._stack.aclose()

    def _freed(self, running: asyncio.Task[Outcome]) -> None:
        self._free.release()
        if not running.cancelled():
            running.exception()  # told to whoever asks for the end, if anybody does

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _task(self, begin: Begin) -> Task:
        tools = chosen(begin.tools)
        folders = self._offer.folders([begin.task], field="task")
        if len(folders) != 1:
            raise UsageError(f"{begin.task!r} is {len(folders)} tasks", field="task", remedy="Name one of them.")
        try:
            [task] = find_tasks(folders)
        except UsageError as error:
            raise UsageError(self._offer.public(error.message), field="task",
                             remedy="Name another one, or have the service's operator mend it.") from None
        if task.feedback or task.person:
            raise UsageError(f"{begin.task!r} has somebody who speaks to the agent", field="task",
                             remedy="Ask for rollouts of it: nobody outside would hear them.")
        if task.steps and "finish" not in map(name_of, tools):
            raise UsageError(f"{begin.task!r} has several steps, which the tool 'finish' ends", field="tools",
                             remedy="Name finish among them, or say default.")
        return task

    async def _place(self, wait_s: float) -> None:
        if self._closed:
            raise Full("the service ends", field="service", remedy="Begin it when the service is there again.")
        if self._free.locked() and not wait_s:
            raise Full(f"{self.most} attempts are open", field="wait_s",
                       remedy="End one, or say for how long to wait.")
        try:
            async with asyncio.timeout(wait_s or None):
                await self._free.acquire()
        except TimeoutError:
            raise Full(f"{self.most} attempts are open, and none ended in {wait_s:g} s", field="wait_s",
                       remedy="End one, or wait longer.") from None

    async def _begun(self, task: Task, agent: Agent, seed: int) -> ActedAttempt:
        live = await self._live()
        spec = RunSpec(
            tasks=(str(task.folder),), digests={str(task.folder): task.digest}, groups={task.id: task.group},
            agents=(agent,), concurrency=1, seed=seed, engine=self._offer.engine, deadlines=self._deadlines)
        run = Run(id=new_run_id(), project=self._offer.project, spec=spec, created_at=now(),
                  executor=live.lease.executor)
        [attempt] = planned(run, [task])
        await asyncio.to_thread(self._home.store.create_run, run, [attempt])
        outside = Outside(self._idle_s)
        running = asyncio.create_task(self._run(live, task, agent, attempt, outside))
        told = Begun(id=attempt.id, task=task.id, instruction=task.instruction, tools=(), deadline_s=0)
        acted = self._known[attempt.id] = ActedAttempt(told, outside, running)
        over = [name for name, one in self._known.items() if one.over]
        for name in over[:max(0, len(over) - _KEPT)]:
            del self._known[name]
        return acted

    async def _standing(self, acted: ActedAttempt) -> ActedAttempt:
        if not await acted.stand():
            verdict = acted.running.result().verdict
            detail = verdict.detail if isinstance(verdict, Invalid) else "it ended before it began"
            raise EnvironmentFault(self._offer.public(detail))
        return acted

    async def _live(self) -> _Live:
        """The shared parts, made on first use. Raises UsageError, EnvironmentFault; the next one tries again."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._made())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:
                self._opening = None
            raise

    async def _made(self) -> _Live:
        async with AsyncExitStack() as stack:
            lease = await asyncio.to_thread(Lease, self._home.path)
            stack.callback(lease.release)
            engine, verifier = plugins.engine(self._offer.engine, self._home.path), plugins.verifier()
            stack.push_async_callback(engine.close)
            await engine.open()
            self._stack = stack.pop_all()
        return _Live(engine, verifier, Grading(None, verifier, engine, self._home.blobs), lease)

    async def _run(self, live: _Live, task: Task, agent: Agent, attempt: Attempt, outside: Outside) -> Outcome:
        """The attempt, from its execution's row to the result's."""
        store = self._home.store
        number = await asyncio.to_thread(store.begin_execution, attempt.id, live.lease.executor)
        if number is None:
            raise Cancelled(f"{attempt.id} has a result already")
        log = EventLog(store, attempt.id, number)
        grader = live.grading.grader(task, log.emit)
        parts = Parts(
            engine=live.engine, harness=outside, verifier=live.verifier, model=None, blobs=self._home.blobs,
            emit=grader.emit if grader else log.emit, grader=grader,
            graded_in=grader.sandboxes if grader else None, deadlines=self._deadlines)
        try:
            outcome = await run_attempt(task, agent, parts, seed=attempt.seed)
        except asyncio.CancelledError:
            verdict = Invalid(cause=Cause.CANCELLED, detail=_ENDS)
            log.emit(EventKind.VERDICT, verdict.to_json())
            outcome = Outcome(verdict=verdict, stop=StopReason.CANCELLED)
        await asyncio.to_thread(log.finish, outcome)
        await asyncio.to_thread(store.set_run_state, attempt.run, RunState.FINISHED)
        return outcome


def _step_told(standing: Standing) -> StepTold | None:
    """Which step that is, of a task of several."""
    task = standing.task
    if task.whole is None:
        return None
    steps = task.whole.steps
    return StepTold(name=steps[task.step].name, number=task.step + 1, steps=len(steps), instruction=task.instruction,
                    deadline_s=standing.deadline_s)


def _seen(result: ToolResult | None) -> Seen:
    if result is None:
        return Seen(content="")
    return Seen(content=result.content, exit_code=result.exit_code, truncated=result.truncated,
                timed_out=result.timed_out)


async def _first(*coming: asyncio.Future[Any]) -> None:
    await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)


class Local:
    """Acted attempts in this process, for code that is not asynchronous: any thread may call, and waits for its answer.

    Tasks are named below ``roots``. It has what :class:`woodshed.trainers.client.Client` has of them, and stands in
    for it. Close it at the end, or use it with ``with``.
    """

    def __init__(
        self, roots: list[Path], *, home: Path | None = None, engine: str = "native", most: int = MOST,
        idle_s: float = IDLE_S,
    ) -> None:
        offer = made(roots, engine=engine)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="woodshed-acted", daemon=True)
        self._opened = opened(home)
        self._home: Home = self._opened.__enter__()
        orphaned.end(self._home)
        self._thread.start()
        self._attempts = ActedAttempts(self._home, offer, most=most, idle_s=idle_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, begin: Begin) -> Begun:
        """See :meth:`ActedAttempts.begin`."""
        return self._wait(self._attempts.begin(begin)).begun

    def act(self, attempt: str, act: Act) -> Seen:
        """See :meth:`ActedAttempt.act`."""
        return self._wait(self._attempts.get(attempt).act(act))

    def finish(self, attempt: str) -> Ended:
        """See :meth:`ActedAttempt.finish`."""
        return self._wait(self._attempts.get(attempt).finish())

    def leave(self, attempt: str) -> None:
        """Nobody acts it any more. One that is over, or gone, is no matter."""
        with suppress(Missing):
            self._wait(self._attempts.get(attempt).close())

    def close(self) -> None:
        """All that are open are cut off, and everything live is closed. Idempotent."""
        if self._loop.is_closed():
            return
        try:
            self._wait(self._attempts.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._opened.__exit__(None, None, None)

    def _wait(self, doing: Coroutine[Any, Any, T]) -> T:
        found: Future[T] = asyncio.run_coroutine_threadsafe(doing, self._loop)
        return found.result()
