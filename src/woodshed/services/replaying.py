"""Replay: recorded attempts done once more, with the recorded answers and real tools, verified again and compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from woodshed import plugins
from woodshed.attempt import Parts, run_attempt
from woodshed.errors import UsageError
from woodshed.gateway.recall import recalled
from woodshed.harness.rehearsal import Recital, rehearsal, rehearsals
from woodshed.interfaces import SandboxEngine, Serve, Verifier
from woodshed.measure.replayed import Compared, compared, files_difference, verdict_difference
from woodshed.measure.resume import past
from woodshed.model import (
    Agent,
    Attempt,
    ChangeSet,
    Event,
    EventKind,
    Invalid,
    Outcome,
    Past,
    Run,
    Task,
    Valid,
)
from woodshed.model.event import now
from woodshed.model.fork import ForkSpec
from woodshed.services import naming
from woodshed.services.ground import grounded, origin, own
from woodshed.services.home import Home
from woodshed.services.source import Source, changes_of, own_verdict

Progress = Callable[[int, int], None]
"""Hears how many of how many attempts were replayed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An attempt that can be replayed, and what it did then."""

    attempt: Attempt
    agent: Agent
    task: Task
    events: Sequence[Event]
    past: Past
    verdict: Valid
    below: ForkSpec | None = None
    """Of a branch whose agent began a conversation of its own: the state in which it did."""

    @property
    def stop(self) -> str:
        """Why its acting ended."""
        return self.attempt.outcome.stop.value if self.attempt.outcome else ""


@dataclass(slots=True)
class Replayed:
    """What became of it. ``verdict`` and ``files`` say what differs; ``over`` that its harness asked for more."""

    recorded: Recorded
    outcome: Outcome
    calls: Compared
    verdict: list[str]
    files: list[str]
    over: bool

    @property
    def same(self) -> bool:
        """The verdict is the same, and every call went as it did then."""
        return not self.verdict and not self.calls.diverged and not self.over

    def to_json(self) -> dict[str, Any]:
        """One row of the answer."""
        then, verdict = self.recorded.verdict, self.outcome.verdict
        return {
            "attempt": self.recorded.attempt.id, "task": self.recorded.task.id, "agent": self.recorded.agent.name,
            "same": self.same, "passed_then": then.passed,
            "passed_now": verdict.passed if isinstance(verdict, Valid) else None,
            "verdict": self.verdict, "invalid": verdict.detail if isinstance(verdict, Invalid) else None,
            "calls": self.calls.same + self.calls.settled + len(self.calls.diverged), "equal": self.calls.same,
            "settled": self.calls.settled, "diverged": [one.to_json() for one in self.calls.diverged],
            "files": self.files, "asked_for_more": self.over, "stop_then": self.recorded.stop,
            "stop_now": self.outcome.stop.value,
        }


@dataclass(slots=True)
class _World:
    """What all replays of a run share."""

    home: Home
    run: Run
    engine: SandboxEngine
    verifier: Verifier
    slots: asyncio.Semaphore
    serve: Serve | None = None
    done: list[Replayed] = field(default_factory=list)


async def replay(
    home: Home, name: str, progress: Progress = lambda done, total: None, *, concurrency: int = 2
) -> dict[str, Any]:
    """``{"run", "replayed": […], "left_out": […], "verdicts", "same", …}`` of an attempt, or of all of a run.

    Nothing is recorded. ``verdicts`` counts those that came out as they did then, ``same`` the replays in which every
    call did too. Raises UsageError for an unknown name, or an engine or verifier that this machine does not have.
    """
    run, chosen = _chosen(home, name)
    found, left_out = recorded(home, run, chosen)
    async with AsyncExitStack() as stack:
        engine = plugins.engine(run.spec.engine, home.path)
        stack.push_async_callback(engine.close)
        world = _World(home, run, engine, plugins.verifier(run.spec.verifier), asyncio.Semaphore(concurrency))
        if any(one.agent.model is not None for one in found):
            from woodshed.gateway.client import Gateway  # with the HTTP library, which a run without a model saves

            gateway = Gateway()
            stack.push_async_callback(gateway.close)
            world.serve = gateway.serve
        progress(0, len(found))
        begun = asyncio.Semaphore(concurrency + 1)

        async def one(record: Recorded) -> None:
            async with begun:
                world.done.append(await _replayed(world, record))
            progress(len(world.done), len(found))

        async with asyncio.TaskGroup() as group:
            for record in found:
                group.create_task(one(record))
    order = {record.attempt.id: number for number, record in enumerate(found)}
    return _told(run, sorted(world.done, key=lambda done: order[done.recorded.attempt.id]), left_out)


def recorded(
    home: Home, run: Run, attempts: Sequence[Attempt]
) -> tuple[list[Recorded], list[dict[str, str]]]:
    """The attempts that can be replayed, and the others with the reason."""
    tasks, agents = Source(home, run).tasks, {agent.name: agent for agent in run.spec.agents}
    found, left_out = list[Recorded](), list[dict[str, str]]()
    for attempt in attempts:
        verdict = attempt.outcome.verdict if attempt.outcome else None
        agent, task = agents[attempt.agent], tasks.get(attempt.task)
        why = _why_not(attempt, agent, task)
        events, below = own(home, run, attempt) if why is None else ([], None)
        told = past(events)
        if why is None and below is not None and task is not None and task.steps:
            why = "it took over at a task of several steps"
        if why is None and told is None and agent.harness != "nop":
            why = "nobody acted in it"
        if why is None:
            assert task is not None
            assert isinstance(verdict, Valid)
            found.append(Recorded(attempt, agent, task, events, told or Past(execution=attempt.executions, seq=0),
                                  own_verdict(events, verdict, task), below))
        else:
            left_out.append({"attempt": attempt.id, "why": why})
    return found, left_out


def _why_not(attempt: Attempt, agent: Agent, task: Task | None) -> str | None:
    verdict = attempt.outcome.verdict if attempt.outcome else None
    if verdict is None:
        return f"it is {attempt.state.value}"
    if isinstance(verdict, Invalid):
        return f"it is invalid ({verdict.cause.value}): there is no verdict to come out again"
    if task is None:
        return "its task's folder is gone, or has changed since"
    try:
        plugins.harness(agent.harness)
    except UsageError as error:
        return str(error)
    return None


def _chosen(home: Home, name: str) -> tuple[Run, list[Attempt]]:
    meant = naming.either(home, name)
    if isinstance(meant, Attempt):
        return home.store.run(meant.run), [meant]
    return meant, home.store.attempts(meant.id)


async def _replayed(world: _World, record: Recorded) -> Replayed:
    events: list[Event] = []

    def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
        events.append(Event(attempt=record.attempt.id, execution=1, seq=len(events), kind=kind, at=now(),
                            data=dict(data)))

    ground = None
    if record.below is not None:
        ground = grounded(world.home, record.below, origin(world.home, record.below), record.task, world.engine)
    model = Recital(record.past.answers, recalled) if record.agent.model is not None else None
    real, steps = plugins.harness(record.agent.harness), None
    if ground is not None:
        real = ground.taken_over(real)
    if record.task.steps:
        steps = rehearsals(real, record.past.records, recalled)
    parts = Parts(
        engine=world.engine, harness=steps or rehearsal(real, record.past),
        verifier=world.verifier, model=model, blobs=world.home.blobs, emit=emit, slots=world.slots,
        deadlines=world.run.spec.deadlines, serve=world.serve,
        ground=ground.engine(record.agent) if ground is not None else None)
    try:
        outcome = await run_attempt(record.task, record.agent, parts, seed=record.attempt.seed)
    finally:
        if ground is not None:
            await ground.close()
    over = model is not None and model.over and not _ended_asking(record) if steps is None else steps.over
    return Replayed(
        record, outcome, compared(record.events, events), verdict_difference(record.verdict, outcome.verdict),
        files_difference(changes_of(record.events) or ChangeSet(), changes_of(events) or ChangeSet()), over)


def _ended_asking(record: Recorded) -> bool:
    """Whether the attempt was cut off while its model was asked."""
    asked = sum(event.kind is EventKind.MODEL_CALL for event in record.events)
    return asked > sum(event.kind is EventKind.MODEL_RESULT for event in record.events)


def _told(run: Run, done: Sequence[Replayed], left_out: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    rows = [one.to_json() for one in done]
    return {
        "run": run.id, "attempts": len(rows), "verdicts": sum(not one.verdict for one in done),
        "same": sum(one.same for one in done), "calls": sum(row["calls"] for row in rows),
        "equal": sum(row["equal"] for row in rows), "settled": sum(row["settled"] for row in rows),
        "diverged": sum(len(row["diverged"]) for row in rows), "replayed": rows, "left_out": list(left_out),
    }
