"""Ground: the state that the attempts of a fork begin from, made once and shared by all of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from woodshed import plugins
from woodshed.errors import EnvironmentFault, UsageError
from woodshed.gateway.recall import recalled
from woodshed.harness.asuser import as_user
from woodshed.harness.checkpoint import Restored, restorable
from woodshed.harness.rehearsal import AtStep, Continuation, Recital, Rehearsal
from woodshed.interfaces import Acting, BlobSink, Emit, Harness, Sandbox, SandboxEngine, Snapshot
from woodshed.measure.prefix import first, inherited, steps
from woodshed.measure.replayed import Compared, compared
from woodshed.measure.resume import past
from woodshed.measure.sections import sections
from woodshed.model import Agent, Attempt, ChangeSet, EnvironmentSpec, Event, EventKind, Past, Run, SandboxPolicy, Task
from woodshed.model.counted import counted
from woodshed.model.event import now
from woodshed.model.fork import ForkSpec
from woodshed.model.stepwise import Reached
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.verify.live import begin_step, ready
from woodshed.verify.stepping import walk

_NAMED = 5
_MEMORY = ("/tmp", "/run", "/dev/shm")  # noqa: S108 - places of a sandbox, which no snapshot holds


@dataclass(frozen=True, slots=True)
class Origin:
    """The attempt that branches go on from: its agent, and the events and the past of its first steps."""

    run: Run
    attempt: Attempt
    agent: Agent
    events: Sequence[Event]
    past: Past
    steps: int


def origin(home: Home, spec: ForkSpec) -> Origin:
    """What the store tells of it. Raises UsageError for an attempt or a step that is not there."""
    attempt = home.store.attempt(spec.attempt)
    run = home.store.run(attempt.run)
    agent = next(agent for agent in run.spec.agents if agent.name == attempt.agent)
    whole = history(home, attempt)
    there = steps(whole)
    try:
        events = first(whole, spec.step)
    except ValueError:
        raise UsageError(f"{attempt.id} has {counted(there, 'step')}", field="--step",
                         remedy=f"Say 0 to {there}." if there else "Say 0.") from None
    told = past(events) or Past(execution=spec.execution, seq=0)
    return Origin(run, attempt, agent, events, told, there)


@dataclass
class Ground:
    """Makes the state on first use: the sandbox as it was, from a checkpoint or by its calls, and a snapshot of it.

    ``of`` is the attempt, ``task`` what it was at. It stands until :meth:`close`.
    """

    home: Home
    spec: ForkSpec
    of: Origin
    task: Task
    base: SandboxEngine
    compared: Compared = field(default_factory=Compared)
    lost: tuple[str, ...] = ()
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _snapshot: Snapshot | None = None
    _changes: ChangeSet | None = None

    @property
    def engine(self) -> SandboxEngine:
        """The engine of the agents' sandboxes: they begin from this state."""
        return cast(SandboxEngine, _Branching(self))

    def continued(self, agent: Agent, harness: Harness, emit: Emit) -> Harness:
        """What acts in a branch, whose log has the first steps from now on."""
        emit(EventKind.STATE, {"state": "forked", "attempt": self.spec.attempt, "execution": self.spec.execution,
                               "step": self.spec.step, "lost": list(self.lost),
                               "diverged": [one.to_json() for one in self.compared.diverged]})
        for kind, data in inherited(self.of.events):
            emit(kind, data)
        if not goes_on(self.of.agent, agent):
            return harness
        past = self.of.past
        if past.step is None and past.earlier:  # between two steps: there is no conversation
            past = Past(execution=past.execution, seq=past.seq)
        told = [f"[These are gone: {'; '.join(self.lost)}. Start again what you need of it.]"] if self.lost else []
        return AtStep(harness, Continuation(harness, past, told, self.spec.say), len(self.of.past.earlier))

    @property
    def reached(self) -> Reached:
        """Of a task of several steps, those that were over and judged, and whether one had begun."""
        past = self.of.past
        return Reached(judged={one.step: one.verdict for one in past.earlier}, begun=past.step is not None)

    async def ready(self) -> None:
        """The state stands. Raises UsageError where calls went otherwise than then, and the engine's faults."""
        async with self._lock:
            if self._snapshot is None and self._changes is None:
                await self._make()

    async def close(self) -> None:
        """Nothing begins from it any more. Idempotent."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            await snapshot.release()

    async def sandbox(self, spec: EnvironmentSpec, policy: SandboxPolicy) -> Sandbox:
        """One more that begins from it. Raises as :meth:`ready`."""
        await self.ready()
        if self._snapshot is not None:
            return (await self.base.fork(self._snapshot, 1, policy=policy))[0]
        assert self._changes is not None
        return await self.base.create(spec, policy, restore=(self._changes, self.home.blobs))

    async def _make(self) -> None:
        task, agent, blobs = self.task.lent(os.environ), self.of.agent, self.home.blobs
        restored = await restorable(self.of.past, blobs)
        policy = agent.policy_within(task.environment.limits, task.network)
        sandbox = await self.base.create(task.environment, policy,
                                         restore=(restored.changes, blobs) if restored.changes is not None else None)
        try:
            await ready(sandbox, task.environment, restored=restored.changes is not None)
            await self._again(task, sandbox, restored)
            self.lost = await _lost(sandbox)
            await sandbox.kill_all()
            if {"snapshot", "fork"} <= self.base.capabilities:
                self._snapshot = await sandbox.snapshot()
            else:
                self._changes = await sandbox.changes(blobs, roots=("/",))
        finally:
            await sandbox.close()

    async def _again(self, task: Task, sandbox: Sandbox, restored: Restored) -> None:
        """What was done after the checkpoint. Raises UsageError where it went otherwise."""
        past, checkpoint = self.of.past, restored.checkpoint
        if past.step is None and not past.earlier:
            if restored.held < len(past.calls):
                await self._rehearse(task, sandbox, past, restored.held, self.of.events)
            return
        told = [section.events for section in sections(self.of.events) if section.step is not None]

        async def act(index: int) -> None:
            record, held = past.records[index], restored.held if index == restored.step else 0
            if held < len(record.calls):
                await self._rehearse(task.at(index), sandbox, record, held, told[index])

        over, current = checkpoint is not None and checkpoint.over, len(past.earlier)
        await walk(sandbox, task, self.home.blobs, range(restored.step + over, current), act,
                   begun=checkpoint is not None and not over)
        if past.step is not None:
            if checkpoint is None or restored.step < current:
                await begin_step(sandbox, task.steps[current], task.environment, first=not current)
            await act(current)

    async def _rehearse(
        self, task: Task, sandbox: Sandbox, past_: Past, held: int, then: Sequence[Event]
    ) -> None:
        """The calls after the first ``held``, made again and held against the record."""
        now_done: list[Event] = []

        def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
            now_done.append(Event(attempt="", execution=1, seq=len(now_done), kind=kind, at=now(), data=dict(data)))

        agent = self.of.agent
        acting = Acting(
            task=task, agent=agent, sandbox=as_user(sandbox, task.environment.user), emit=emit, blobs=self.home.blobs,
            model=Recital(past_.answers, recalled) if agent.model is not None else None, seed=self.of.attempt.seed,
            deadline_s=agent.wall_within(task.agent_timeout_s, task.environment.limits))
        harness = plugins.harness(agent.harness)
        await Rehearsal(harness, past_, held=held, bounded=True).act(acting)
        self.compared = self.compared.plus(
            compared(then, now_done, held=[call.call for call in past_.calls[:held]]))
        if self.compared.diverged and not self.spec.diverged:
            named = ", ".join(f"{one.call} ({one.name}: {one.what})" for one in self.compared.diverged[:_NAMED])
            raise UsageError(f"the state after step {self.spec.step} of {self.spec.attempt} did not come about again: "
                             f"{named}", field="--step", remedy="Go on from what came about with --diverged.")


class _Branching:
    """An engine whose fresh sandboxes begin from the ground; all else is the engine's own."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ground.base, name)

    async def create(
        self, spec: EnvironmentSpec, policy: SandboxPolicy, *, restore: tuple[ChangeSet, BlobSink] | None = None
    ) -> Sandbox:
        """As :meth:`SandboxEngine.create`."""
        assert restore is None
        try:
            return await self._ground.sandbox(spec, policy)
        except UsageError as error:
            raise EnvironmentFault(str(error)) from error


def goes_on(parent: Agent, agent: Agent) -> bool:
    """Whether ``agent`` takes up the conversation of ``parent``; else it begins its own in the state that was left."""
    return parent.harness == agent.harness and bool(getattr(plugins.harness(agent.harness), "resumable", False))


async def _lost(sandbox: Sandbox) -> tuple[str, ...]:
    """What there is that no snapshot holds."""
    found = []
    processes = (await sandbox.stats()).processes
    if processes:
        found.append("running processes")
    for place in _MEMORY:
        try:
            if await sandbox.list(place):
                found.append(f"what was in {place}")
        except OSError:
            continue
    return tuple(found)


