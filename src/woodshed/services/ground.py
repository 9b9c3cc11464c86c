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
from woodshed.harness.rehearsal import Continuation, Recital, Rehearsal, at_step
from woodshed.harness.repeated import Fact, repeated, successor
from woodshed.interfaces import Acting, BlobSink, Emit, Furnished, Harness, Sandbox, SandboxEngine, Snapshot
from woodshed.measure.prefix import first, inherited, steps
from woodshed.measure.replayed import Compared, compared, unsaid
from woodshed.measure.resume import past
from woodshed.measure.sections import sections
from woodshed.model import Agent, Attempt, ChangeSet, EnvironmentSpec, Event, EventKind, Past, Run, SandboxPolicy, Task
from woodshed.model.counted import counted
from woodshed.model.event import now
from woodshed.model.fork import ForkSpec
from woodshed.model.stepwise import Reached
from woodshed.model.task import Program
from woodshed.services.history import history
from woodshed.services.home import Home
from woodshed.verify.live import begin_step, ready
from woodshed.verify.stepping import walk

_NAMED = 5
_MEMORY = ("/tmp", "/run", "/dev/shm")  # noqa: S108 - places of a sandbox, which no snapshot holds


@dataclass(frozen=True, slots=True)
class Origin:
    """The attempt that branches go on from: its agent, and the events and the past of its first steps.

    ``steps`` is how many it has. Where it is a branch itself, whose agent began a conversation of its own, ``below`` is
    what it went on from: ``events`` and ``past`` tell of its own steps, which come after ``begins``.
    """

    run: Run
    attempt: Attempt
    agent: Agent
    events: Sequence[Event]
    past: Past
    steps: int
    begins: int = 0
    below: ForkSpec | None = None


def origin(home: Home, spec: ForkSpec) -> Origin:
    """What the store tells of it. Raises UsageError for an attempt or a step that is not there."""
    attempt = home.store.attempt(spec.attempt)
    run = home.store.run(attempt.run)
    agent = _agent(run, attempt)
    whole, below = own(home, run, attempt)
    begins = below.step if below is not None else 0
    there = begins + steps(whole)
    if below is not None and spec.step < begins:
        raise UsageError(f"the first {counted(begins, 'step')} of {attempt.id} are {below.attempt}'s", field="--step",
                         remedy=f"Fork {below.attempt}, or say {begins} to {there}.")
    try:
        events = first(whole, spec.step - begins)
    except ValueError:
        raise UsageError(f"{attempt.id} has {counted(there, 'step')}", field="--step",
                         remedy=f"Say {begins} to {there}." if there > begins else f"Say {begins}.") from None
    told = past(events) or Past(execution=spec.execution, seq=0)
    return Origin(run, attempt, agent, events, told, there, begins, below)


def own(home: Home, run: Run, attempt: Attempt) -> tuple[list[Event], ForkSpec | None]:
    """The events of an attempt's conversation, from its beginning; and the state in which that began.

    None: at the task's start. A branch that took up a conversation has it from there, too.
    """
    events = history(home, attempt)
    if run.spec.fork is None:
        return events, None
    below, others = _beginning(home, run, _agent(run, attempt))
    theirs = run.spec.fork.attempt
    return [event for event in events
            if not (event.data.get("inherited") and event.data.get("of", theirs) in others)], below


def _agent(run: Run, attempt: Attempt) -> Agent:
    return next(agent for agent in run.spec.agents if agent.name == attempt.agent)


def _beginning(home: Home, run: Run, agent: Agent) -> tuple[ForkSpec | None, set[str]]:
    """Where the conversation of a run's ``agent`` began, if not with its task; and whose steps came before it."""
    fork, found, others = run.spec.fork, None, set[str]()
    while fork is not None:
        parent = home.store.attempt(fork.attempt)
        run = home.store.run(parent.run)
        before = _agent(run, parent)
        if found is None and not goes_on(before, agent):
            found = fork
        if found is not None:
            others.add(parent.id)
        agent, fork = before, run.spec.fork
    return found, others


def root(home: Home, run: Run) -> str | None:
    """The attempt with which the line of a run's branches began; None where it is no fork."""
    found = None
    while run.spec.fork is not None:
        found = run.spec.fork.attempt
        run = home.store.run(home.store.attempt(found).run)
    return found


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
    below: Ground | None = None
    """What it stands on, where the attempt is a branch whose agent began a conversation of its own."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _snapshot: Snapshot | None = None
    _programs: tuple[Program, ...] = ()
    _changes: ChangeSet | None = None

    def engine(self, agent: Agent) -> SandboxEngine | None:
        """The engine of an agent's sandboxes. They begin from this state.

        Of a program that does all of it again they begin where it began: None, at the task's start.
        """
        begins = self.below if self._again_by(agent) else self
        return None if begins is None else cast(SandboxEngine, _Branching(begins))

    def continued(self, agent: Agent, harness: Harness, emit: Emit) -> Harness:
        """What acts in a branch, whose log has the first steps from now on."""
        taken_up, began = goes_on(self.of.agent, agent), self._began(harness)
        emit(EventKind.STATE, {"state": "forked", "attempt": self.spec.attempt, "execution": self.spec.execution,
                               "step": self.spec.step, "taken_up": taken_up, "lost": list(self.lost),
                               "diverged": [one.to_json() for one in self.compared.diverged]})
        for kind, data in self._inherited():
            emit(kind, data)
        past = self.of.past
        if self._again_by(agent):
            return repeated(began, past, self._held)
        if past.step is None and past.earlier:  # between two steps: there is no conversation
            past = Past(execution=past.execution, seq=past.seq)
        if not taken_up:
            return self.taken_over(harness)
        told = [f"[These are gone: {'; '.join(self.lost)}. Start again what you need of it.]"] if self.lost else []
        return at_step(harness, Continuation(began, past, told, self.spec.say), len(self.of.past.earlier))

    def taken_over(self, harness: Harness) -> Harness:
        """What acts in this state with a conversation of its own."""
        told = successor(harness, self.of.past, self.spec.say) if harness.needs_model else harness
        return at_step(harness, told, len(self.of.past.earlier))

    def _began(self, harness: Harness) -> Harness:
        """``harness`` as it began the conversation that the attempt has."""
        return harness if self.below is None else self.below.taken_over(harness)

    def _inherited(self) -> list[tuple[EventKind, dict[str, object]]]:
        below = self.below._inherited() if self.below is not None else []
        return [*below, *inherited(self.of.events, self.of.attempt.id)]

    def _again_by(self, agent: Agent) -> bool:
        """Whether a branch of ``agent`` does the first steps again, for nobody can tell it what it did."""
        return goes_on(self.of.agent, agent) and not _resumable(agent)

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
        if self.below is not None:
            await self.below.close()
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            await snapshot.release()

    async def sandbox(self, spec: EnvironmentSpec, policy: SandboxPolicy) -> Sandbox:
        """One more that begins from it. Raises as :meth:`ready`."""
        await self.ready()
        if self._snapshot is not None and spec.programs == self._programs:
            return (await self.base.fork(self._snapshot, 1, policy=policy))[0]
        return await self.base.create(spec, policy, restore=(await self._captured(), self.home.blobs))

    async def _captured(self) -> ChangeSet:
        """What is other than at the task's start: for who has other programs beside it, or cannot be forked."""
        async with self._lock:
            if self._changes is None:
                assert self._snapshot is not None
                [sandbox] = await self.base.fork(self._snapshot, 1)
                try:
                    self._changes = await sandbox.changes(self.home.blobs, roots=("/",))
                finally:
                    await sandbox.close()
            return self._changes

    async def _make(self) -> None:
        task, agent, blobs = self.task.lent(os.environ), self.of.agent, self.home.blobs
        restored = await restorable(self.of.past, blobs)
        policy = agent.policy_within(task.environment.limits, task.network)
        harness, world = plugins.harness(agent.harness), task.environment
        if isinstance(harness, Furnished):
            world = harness.furnish(world)
        self._programs = world.programs
        if self.below is not None:
            sandbox = await self.below.sandbox(world, policy)
        else:
            sandbox = await self.base.create(
                world, policy, restore=(restored.changes, blobs) if restored.changes is not None else None)
        try:
            await ready(sandbox, task.environment, restored=self.below is not None or restored.changes is not None)
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
        if not _resumable(self.of.agent):
            if past.answers:
                await self._repeat(task, sandbox, past)
            return
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
        log = _Log()
        harness = self._began(plugins.harness(self.of.agent.harness))
        await Rehearsal(harness, past_, held=held, bounded=True).act(
            self._acting(task, self.of.agent, sandbox, past_, log))
        self._agree(compared(then, log.events, held=[call.call for call in past_.calls[:held]]))

    async def _repeat(self, task: Task, sandbox: Sandbox, past_: Past) -> None:
        """A program of others, done again with its answers until it asks for more, and held against the record."""
        from woodshed.gateway.client import Gateway  # with the HTTP library, which other forks save

        log, gateway, agent = _Log(), Gateway(), self.of.agent
        last = agent.model_copy(update={"limits": agent.limits.model_copy(update={"turns": len(past_.answers)})})
        acting = self._acting(task, last, sandbox, past_, log)
        acting.serve = gateway.serve
        try:
            await self._began(plugins.harness(agent.harness)).act(acting)
        finally:
            await gateway.close()
        missing, _ = unsaid(self.of.events, log.events)
        self._agree(compared(self.of.events, log.events).plus(Compared(diverged=missing)))

    def _acting(self, task: Task, agent: Agent, sandbox: Sandbox, past_: Past, log: _Log) -> Acting:
        return Acting(
            task=task, agent=agent, sandbox=as_user(sandbox, task.environment.user), emit=log.emit,
            blobs=self.home.blobs, seed=self.of.attempt.seed,
            model=Recital(past_.answers, recalled) if agent.model is not None else None,
            deadline_s=agent.wall_within(task.agent_timeout_s, task.environment.limits))

    def _agree(self, found: Compared) -> None:
        self.compared = self.compared.plus(found)
        if self.compared.diverged and not self.spec.diverged:
            raise UsageError(self._otherwise(self.compared), field="--step",
                             remedy="Go on from what came about with --diverged.")

    def _otherwise(self, found: Compared) -> str:
        named = ", ".join(f"{one.call} ({one.name}: {one.what})" for one in found.diverged[:_NAMED])
        return f"the state after step {self.spec.step} of {self.spec.attempt} did not come about again: {named}"

    def _held(self, done: Sequence[Fact], unasked: int) -> tuple[str, Sequence[Fact]]:
        """What a branch did again, held against the record. What it said beyond that is its own."""
        log = _Log()
        for kind, data in done:
            log.emit(kind, data)
        missing, new = unsaid(self.of.events, log.events)
        found = compared(self.of.events, log.events).plus(Compared(diverged=missing))
        early = f"it ended {counted(unasked, 'answer')} early" if unasked else ""
        facts: list[Fact] = [(EventKind.STATE, {
            "state": "repeated", "same": found.same, "settled": found.settled, "unasked": unasked,
            "diverged": [one.to_json() for one in found.diverged]}), *((one.kind, one.data) for one in new)]
        if self.spec.diverged or not (found.diverged or early):
            return "", facts
        return self._otherwise(found) if found.diverged else f"{self.spec.attempt} did not come about again: {early}", \
            facts


class _Log:
    """Events of something that is not recorded."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        """See :data:`woodshed.interfaces.Emit`."""
        self.events.append(Event(attempt="", execution=1, seq=len(self.events), kind=kind, at=now(), data=dict(data)))


def grounded(home: Home, spec: ForkSpec, of: Origin, task: Task, base: SandboxEngine) -> Ground:
    """The ground of a fork, upon those that it stands on. Raises UsageError as :func:`origin`."""
    below = None
    if of.below is not None:
        below = grounded(home, of.below, origin(home, of.below), task, base)
    return Ground(home, spec, of, task, base, below=below)


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
    return parent.harness == agent.harness


def _resumable(agent: Agent) -> bool:
    """Whether its harness is told what it did; else it does it again."""
    return bool(getattr(plugins.harness(agent.harness), "resumable", False))


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


