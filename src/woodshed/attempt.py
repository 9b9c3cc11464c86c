"""run_attempt(): open → act → capture → verify → close. One execution of one attempt, from nothing to an Outcome."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from woodshed.errors import Cause, EnvironmentFault, ModelRateLimited, SandboxDied, WoodshedError
from woodshed.gateway.recall import recalled
from woodshed.harness.asuser import as_user
from woodshed.harness.checkpoint import Restored, kept
from woodshed.harness.rehearsal import Recital
from woodshed.harness.resume import Fine, Lasting
from woodshed.interfaces import (
    Acting,
    BlobSink,
    Emit,
    Furnished,
    Governed,
    Grader,
    Harness,
    Hear,
    ModelClient,
    Sandbox,
    SandboxEngine,
    Serve,
    Verifier,
)
from woodshed.model import (
    Agent,
    ChangeSet,
    Deadlines,
    EventKind,
    Invalid,
    Outcome,
    SandboxPolicy,
    StageDeadlines,
    StopReason,
    Task,
    Usage,
    Valid,
    Verdict,
)
from woodshed.model.retry import Broken
from woodshed.model.stepwise import Reached, ended, short_of, whole
from woodshed.stages import Ledger, Overrun, Stages, cut
from woodshed.verify.live import begin_step, captured, ready
from woodshed.verify.stepping import begins, unbegun, walk


@dataclass(slots=True)
class Parts:
    """What one execution is made of. Everything here is live; what it leaves behind is the events and the Outcome."""

    engine: SandboxEngine
    harness: Harness
    verifier: Verifier
    model: ModelClient | None
    blobs: BlobSink
    emit: Emit
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Acting and verifying take a slot; opening a sandbox does not, so that the next attempt's stands ready."""
    grader: Grader | None = None
    """Reward rules, where the run or the task has any."""
    graded_in: Ledger | None = None
    """Of the sandboxes in which something is measured for the rules."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    fine: Fine | None = None
    """Of fine durability: what the attempt goes on with, and what it leaves for others to go on with."""
    serve: Serve | None = None
    """Makes servers of ``model``, for harnesses that run programs of others."""
    hear: Hear | None = None
    """What is sent to the attempt while it works, for harnesses that hear."""
    person: ModelClient | None = None
    """Plays the task's person."""
    ground: SandboxEngine | None = None
    """Of a fork: makes the agent's sandbox, in which it goes on."""
    reached: Reached = field(default_factory=Reached)
    """Of a fork of several steps: those that were over, and whether one had begun."""


@dataclass(slots=True)
class _Progress:
    """Facts that survive a fault: what the Outcome needs even when a stage broke."""

    stages: Stages
    sandbox: Ledger
    """Of the agent's sandbox; the verifier's have their own."""
    stop: StopReason = StopReason.ERROR
    usage: Usage = field(default_factory=Usage)
    clearing: asyncio.Task[None] | None = None
    judged: dict[str, Valid] = field(default_factory=dict)
    """Of several steps, those that were."""

    def outcome(self, verdict: Verdict, fault: WoodshedError | None = None) -> Outcome:
        """The facts, with what they came to."""
        broke = None
        if fault is not None and isinstance(verdict, Invalid):
            asked = fault.retry_after_s if isinstance(fault, ModelRateLimited) else None
            broke = Broken(cause=verdict.cause, stage=self.stages.broke_at, retryable=fault.retryable,
                           asked_s=asked or 0.0)
        return Outcome(verdict=verdict, stop=self.stop, usage=self.usage, stages_s=self.stages.seconds,
                       used=self.stages.used, broke=broke)

    def clear(self, sandbox: Sandbox) -> asyncio.Task[None]:
        """The one closing of the agent's sandbox, which goes on whoever stops waiting for it."""
        if self.clearing is None:
            self.clearing = asyncio.create_task(sandbox.close())
        return self.clearing


async def run_attempt(task: Task, agent: Agent, parts: Parts, *, seed: int) -> Outcome:
    """The Outcome of one execution; never raises but for cancellation of the caller.

    A fault of ours makes the verdict :class:`Invalid` with its cause. Whatever stopped the agent short of a fault
    (a limit, a refusal to finish), the work done so far is captured and verified. The agent's sandbox, in which nothing
    runs any more, is cleared away while the verifier works in its own; both are gone when this returns. A stage that
    is not over at its deadline is cut off: the acting is a limit like any other, everything else a fault of ours.
    """
    progress, task = _Progress(Stages(parts.emit), Ledger(parts.ground or parts.engine)), task.lent(os.environ)
    broken: WoodshedError | None = None
    try:
        verdict = await _taken_up(task, parts, progress) if task.steps else None
        if verdict is None:
            async with _opened(task, agent, parts, progress) as sandbox, parts.slots:
                if task.steps:
                    verdict = await _stepwise(task, agent, sandbox, parts, seed, progress)
                else:
                    changes = await _act(task, agent, sandbox, parts, parts.fine, seed, progress)
                    progress.clear(sandbox)
                    verdict = await _verify(task, changes, parts, progress)
    except WoodshedError as fault:
        verdict, broken = _invalid(fault, parts.emit), fault
    parts.emit(EventKind.VERDICT, verdict.to_json())
    return progress.outcome(verdict, broken)


async def judge_end_state(
    task: Task, changes: ChangeSet, parts: Parts, *, stop: StopReason = StopReason.FINISHED, usage: Usage | None = None
) -> Outcome:
    """The Outcome of an end state that nobody acts here: ``changes`` are judged as captured ones are. Raises as little.

    ``stop`` and ``usage`` are those of whoever did act, if anyone.
    """
    progress = _Progress(Stages(parts.emit), Ledger(parts.engine), stop=stop, usage=usage or Usage())
    task = task.lent(os.environ)
    broken: WoodshedError | None = None
    parts.emit(EventKind.CHANGES, changes.to_json())
    try:
        async with parts.slots:
            verdict = await _verify(task, changes, parts, progress)
    except WoodshedError as fault:
        verdict, broken = _invalid(fault, parts.emit), fault
    parts.emit(EventKind.VERDICT, verdict.to_json())
    return progress.outcome(verdict, broken)


async def _act(
    task: Task, agent: Agent, sandbox: Sandbox, parts: Parts, fine: Fine | None, seed: int, progress: _Progress
) -> ChangeSet:
    within = parts.deadlines.of(task)
    wall_s = agent.wall_within(task.agent_timeout_s, task.environment.limits)
    acting = Acting(
        task=task, agent=agent, sandbox=as_user(sandbox, task.environment.user), model=parts.model, emit=parts.emit,
        seed=seed, deadline_s=wall_s if within.act_s is None else min(wall_s, within.act_s), serve=parts.serve,
        hear=parts.hear, person=parts.person,
    )
    harness, more_s = parts.harness, 0.0
    if fine is not None:
        harness, more_s = Lasting(harness, fine, parts.blobs), fine.more_s(agent)
    try:
        progress.stop = await progress.stages.run(
            "act", _acted(harness, acting, acting.deadline_s + more_s), owner=Cause.HARNESS,
            doing=f"harness {agent.harness}", within_s=None, ledger=progress.sandbox)
    finally:
        progress.usage = progress.usage.plus(acting.usage)
    parts.emit(EventKind.STATE, {"state": "acted", "stop": progress.stop.value, "usage": progress.usage.to_json()})
    changes = await progress.stages.run(
        "capture", captured(task, sandbox, parts.blobs), owner=Cause.ENVIRONMENT, doing="capturing changes",
        within_s=within.capture_s, ledger=progress.sandbox)
    parts.emit(EventKind.CHANGES, changes.to_json())
    return changes


async def _acted(harness: Harness, acting: Acting, within_s: float) -> StopReason:
    """Why the harness stopped. Its time is a limit like any other: what it did until then is verified."""
    try:
        return await cut(harness.act(acting), within_s)
    except Overrun:
        return StopReason.WALL


async def _taken_up(task: Task, parts: Parts, progress: _Progress) -> Verdict | None:
    """What is known of the steps that are over, and the verdict where that is all; one that is captured is judged."""
    progress.judged.update(parts.reached.judged)
    if (fine := parts.fine) is None or (past := fine.past) is None:
        return None
    await fine.begin(parts.blobs, parts.emit)
    progress.judged.update({one.step: one.verdict for one in past.earlier})
    if past.earlier:
        progress.stop, progress.usage = past.earlier[-1].past.stop or progress.stop, past.earlier[-1].past.usage
    if past.step is None or past.changes is None:
        return ended(progress.judged, task)
    progress.stop, progress.usage = past.stop or progress.stop, past.usage
    parts.emit(EventKind.CHANGES, past.changes.to_json())
    async with parts.slots:
        return await _judge(task, len(progress.judged), past.changes, parts, progress)


async def _stepwise(
    task: Task, agent: Agent, sandbox: Sandbox, parts: Parts, seed: int, progress: _Progress
) -> Verdict:
    """Each step is told, acted and judged after the one before, in one sandbox; what runs in it ends with a step."""
    if parts.fine is not None and parts.fine.past is not None:
        await _regained(task, agent, sandbox, parts, parts.fine, seed, progress)
    verdict: Verdict | None = None
    while verdict is None:
        verdict = await _step(task, len(progress.judged), agent, sandbox, parts, seed, progress)
    return verdict


async def _step(
    task: Task, index: int, agent: Agent, sandbox: Sandbox, parts: Parts, seed: int, progress: _Progress
) -> Verdict | None:
    """One step, and the verdict upon all where it was the last one to be reached."""
    step, fine = task.steps[index], parts.fine
    if index >= (len(fine.records) if fine is not None else 0) and not parts.reached.inside(index):
        parts.emit(EventKind.STATE, {"state": "step", "step": step.name})
    if not (fine is not None and fine.began(index)) and not parts.reached.inside(index):
        fault = await _begun(task, index, sandbox, parts, progress)
        if fault is not None:
            progress.judged[step.name] = verdict = unbegun(step, fault)
            parts.emit(EventKind.STATE, {"state": "step_unbegun", "step": step.name, "verdict": verdict.to_json()})
            return whole(progress.judged, task)
    before = progress.usage.turns
    changes = await _act(task.at(index), agent, sandbox, parts, fine.of_step(index) if fine is not None else None,
                         seed, progress)
    if fine is not None and index + 1 < len(task.steps):
        await kept(sandbox, parts.blobs, parts.emit, turn=progress.usage.turns - before, why="step", named=set(),
                   over=True)
        await fine.keep()
    return await _judge(task, index, changes, parts, progress)


async def _begun(
    task: Task, index: int, sandbox: Sandbox, parts: Parts, progress: _Progress
) -> EnvironmentFault | None:
    """The step has begun, or what keeps it from that is the agent's earlier work. Raises what is not."""
    step, fine = task.steps[index], parts.fine
    restored = parts.ground is not None or (fine is not None and fine.past is not None)
    began = fine is not None and index < len(fine.records) and fine.records[index].acted
    try:
        await progress.stages.run(
            "prepare", begin_step(sandbox, step, task.environment, first=not index), owner=Cause.ENVIRONMENT,
            doing=f"beginning {step.name}", within_s=parts.deadlines.of(task.at(index)).prepare_s,
            ledger=progress.sandbox)
    except EnvironmentFault as fault:
        if not index or began or isinstance(fault, SandboxDied):
            raise
        if not await begins(task, index, parts.engine, parts.blobs, restored=restored):
            raise
        return fault
    return None


async def _judge(
    task: Task, index: int, changes: ChangeSet, parts: Parts, progress: _Progress
) -> Verdict | None:
    """The verdict upon a step is known; that upon all, where none comes after it."""
    step = task.steps[index]
    verdict = await _verify(task.at(index), changes, parts, progress)
    if not isinstance(verdict, Valid):
        return verdict
    progress.judged[step.name] = verdict
    parts.emit(EventKind.STATE, {"state": "step_judged", "step": step.name, "verdict": verdict.to_json()})
    if index + 1 < len(task.steps) and (reason := short_of(verdict, step.min_reward)) is not None:
        parts.emit(EventKind.NOTE, {"text": f"the steps after {step.name} are not reached: {reason}"})
    if parts.fine is not None:
        await parts.fine.keep()
    return ended(progress.judged, task)


async def _regained(
    task: Task, agent: Agent, sandbox: Sandbox, parts: Parts, fine: Fine, seed: int, progress: _Progress
) -> None:
    """What was done in steps that are over, after what the sandbox was restored from, is done once more."""
    restored, records = fine.restored, fine.records
    checkpoint = restored.checkpoint
    over = checkpoint is not None and checkpoint.over
    steps = range(restored.step + over, len(progress.judged))

    def of(index: int) -> Fine:
        return replace(fine, past=records[index], restored=restored if index == restored.step else Restored())

    async def act(index: int) -> None:
        one, at = of(index), task.at(index)
        if one.restored.held >= len(records[index].calls):
            return
        acting = Acting(
            task=at, agent=agent, sandbox=as_user(sandbox, at.environment.user), emit=parts.emit, seed=seed,
            model=Recital(records[index].answers, recalled) if parts.model is not None else None, blobs=parts.blobs,
            deadline_s=agent.wall_within(at.agent_timeout_s, at.environment.limits))
        await Lasting(parts.harness, one, parts.blobs).again(acting, task.steps[index].name)

    if steps:
        await progress.stages.run(
            "prepare", walk(sandbox, task, parts.blobs, steps, act, begun=checkpoint is not None and not over),
            owner=Cause.ENVIRONMENT, doing="doing the steps again that were lost", ledger=progress.sandbox,
            within_s=sum(parts.deadlines.of(task.at(index)).prepare_s + of(index).more_s(agent) for index in steps))


@asynccontextmanager
async def _opened(task: Task, agent: Agent, parts: Parts, progress: _Progress) -> AsyncIterator[Sandbox]:
    policy = agent.policy_within(task.environment.limits, task.network)
    within = parts.deadlines.of(task)
    sandbox = await progress.stages.run(
        "prepare", _open(task, policy, progress.sandbox, parts), owner=Cause.ENVIRONMENT, doing="opening the sandbox",
        within_s=within.prepare_s, ledger=progress.sandbox)
    if isinstance(sandbox, Governed):
        sandbox.on_decision(lambda decision: parts.emit(EventKind.POLICY, decision))
    try:
        yield sandbox
    finally:
        await _close(sandbox, within, parts.emit, progress)


async def _open(task: Task, policy: SandboxPolicy, sandboxes: Ledger, parts: Parts) -> Sandbox:
    restore = await parts.fine.begin(parts.blobs, parts.emit) if parts.fine is not None else None
    world = task.environment
    if isinstance(parts.harness, Furnished):
        world = parts.harness.furnish(world)
    sandbox = await sandboxes.create(world, policy, restore=restore)
    try:
        await ready(sandbox, task.environment, restored=restore is not None)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def _close(sandbox: Sandbox, within: StageDeadlines, emit: Emit, progress: _Progress) -> None:
    """Whatever happened, and whatever becomes of it: the verdict is about the work, which was captured before.

    So an agent cannot make its own attempt invalid by what it leaves behind. What hangs is the janitor's.
    """
    async def gone() -> None:
        await asyncio.shield(progress.clear(sandbox))

    broke_at = progress.stages.broke_at
    try:
        await progress.stages.run("close", gone(), owner=Cause.ENVIRONMENT, doing="closing the sandbox",
                                  within_s=within.close_s, ledger=progress.sandbox)
    except EnvironmentFault as fault:
        progress.stages.broke_at = broke_at
        emit(EventKind.NOTE, {"text": f"{fault}; what is left of it is removed later"})


async def _verify(task: Task, changes: ChangeSet, parts: Parts, progress: _Progress) -> Verdict:
    within, sandboxes = parts.deadlines.of(task), Ledger(parts.engine)
    verdict = await progress.stages.run(
        "verify", parts.verifier.verify(task.judged_within(within.hurry_s), changes, parts.blobs, sandboxes.engine,
                                        parts.emit),
        owner=Cause.VERIFIER, doing="verifying", within_s=within.verify_s, ledger=sandboxes)
    if parts.grader is None:
        return verdict
    return await progress.stages.run(
        "grade", parts.grader.grade(task, changes, verdict), owner=Cause.VERIFIER, doing="applying reward rules",
        within_s=within.grade_s, ledger=parts.graded_in)


def _invalid(fault: WoodshedError, emit: Emit) -> Invalid:
    cause = fault.cause or Cause.HARNESS
    emit(EventKind.ERROR, {"cause": cause.value, "type": type(fault).__name__, "message": str(fault),
                           "retryable": fault.retryable})
    return Invalid(cause=cause, detail=f"{type(fault).__name__}: {fault}", retryable=fault.retryable)
