"""run_attempt(): open → act → capture → verify → close. One execution of one attempt, from nothing to an Outcome."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from woodshed.errors import Cause, EnvironmentFault, ModelRateLimited, SandboxDied, WoodshedError, boundary
from woodshed.harness.asuser import as_user
from woodshed.interfaces import (
    Acting,
    BlobSink,
    Emit,
    Governed,
    Grader,
    Harness,
    ModelClient,
    Sandbox,
    SandboxEngine,
    Verifier,
)
from woodshed.model import (
    Agent,
    ChangeSet,
    EventKind,
    Invalid,
    Outcome,
    StopReason,
    Task,
    Usage,
    Valid,
    Verdict,
)
from woodshed.model.retry import Broken
from woodshed.model.stepwise import combined, short_of
from woodshed.verify.live import begin_step, captured, ready
from woodshed.verify.stepping import begins, unbegun


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


@dataclass(slots=True)
class _Progress:
    """Facts that survive a fault: what the Outcome needs even when a stage broke."""

    stop: StopReason = StopReason.ERROR
    usage: Usage = field(default_factory=Usage)
    stages_s: dict[str, float] = field(default_factory=dict)
    broke_at: str | None = None

    def outcome(self, verdict: Verdict, fault: WoodshedError | None = None) -> Outcome:
        """The facts, with what they came to."""
        broke = None
        if fault is not None and isinstance(verdict, Invalid):
            asked = fault.retry_after_s if isinstance(fault, ModelRateLimited) else None
            broke = Broken(cause=verdict.cause, stage=self.broke_at, retryable=fault.retryable, asked_s=asked or 0.0)
        return Outcome(verdict=verdict, stop=self.stop, usage=self.usage, stages_s=self.stages_s, broke=broke)


async def run_attempt(task: Task, agent: Agent, parts: Parts, *, seed: int) -> Outcome:
    """The Outcome of one execution; never raises but for cancellation of the caller.

    A fault of ours makes the verdict :class:`Invalid` with its cause. Whatever stopped the agent short of a fault
    (a limit, a refusal to finish), the work done so far is captured and verified. The agent's sandbox, in which nothing
    runs any more, is cleared away while the verifier works in its own; both are gone when this returns.
    """
    progress, task = _Progress(), task.lent(os.environ)
    broken: WoodshedError | None = None
    try:
        async with _opened(task, agent, parts, progress) as sandbox, parts.slots:
            if task.steps:
                verdict = await _stepwise(task, agent, sandbox, parts, seed, progress)
            else:
                changes = await _act(task, agent, sandbox, parts, seed, progress)
                clearing = asyncio.create_task(sandbox.close())
                verdict = await _verify(task, changes, parts, progress)
                await clearing
    except WoodshedError as fault:
        verdict, broken = _invalid(fault, parts.emit), fault
    parts.emit(EventKind.VERDICT, verdict.to_json())
    return progress.outcome(verdict, broken)


async def judge_end_state(task: Task, changes: ChangeSet, parts: Parts) -> Outcome:
    """The Outcome of an end state that nobody acted: ``changes`` are judged as captured ones are. Raises as little."""
    progress, task = _Progress(stop=StopReason.FINISHED), task.lent(os.environ)
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
    task: Task, agent: Agent, sandbox: Sandbox, parts: Parts, seed: int, progress: _Progress
) -> ChangeSet:
    wall_s = agent.wall_within(task.agent_timeout_s, task.environment.limits)
    acting = Acting(
        task=task, agent=agent, sandbox=as_user(sandbox, task.environment.user), model=parts.model, emit=parts.emit,
        seed=seed, deadline_s=wall_s, blobs=parts.blobs,
    )
    with _stage("act", parts.emit, progress), boundary(Cause.HARNESS, f"harness {agent.harness}", usage=True):
        try:
            async with asyncio.timeout(wall_s) as wall:
                progress.stop = await parts.harness.act(acting)
        except TimeoutError:
            if not wall.expired():  # the harness's own, from something it did not mean to wait for
                raise
            progress.stop = StopReason.WALL
        finally:
            progress.usage = progress.usage.plus(acting.usage)
    parts.emit(EventKind.STATE, {"state": "acted", "stop": progress.stop.value})
    with _stage("capture", parts.emit, progress), boundary(Cause.ENVIRONMENT, "capturing changes", usage=True):
        changes = await captured(task, sandbox, parts.blobs)
    parts.emit(EventKind.CHANGES, changes.to_json())
    return changes


async def _stepwise(
    task: Task, agent: Agent, sandbox: Sandbox, parts: Parts, seed: int, progress: _Progress
) -> Verdict:
    """Each step is told, acted and judged after the one before, in one sandbox; what runs in it ends with a step."""
    judged: dict[str, Valid] = {}
    for index, step in enumerate(task.steps):
        parts.emit(EventKind.STATE, {"state": "step", "step": step.name})
        try:
            with _stage("prepare", parts.emit, progress), boundary(Cause.ENVIRONMENT, f"beginning {step.name}"):
                await begin_step(sandbox, step, task.environment, first=not index)
        except EnvironmentFault as fault:
            if not index or isinstance(fault, SandboxDied) or not await begins(task, index, parts.engine):
                raise
            judged[step.name] = unbegun(step, fault)
            break
        changes = await _act(task.at(index), agent, sandbox, parts, seed, progress)
        verdict = await _verify(task.at(index), changes, parts, progress)
        if not isinstance(verdict, Valid):
            return verdict
        judged[step.name] = verdict
        parts.emit(EventKind.STATE, {"state": "step_judged", "step": step.name, "verdict": verdict.to_json()})
        if (reason := short_of(verdict, step.min_reward)) is not None:
            parts.emit(EventKind.NOTE, {"text": f"the steps after {step.name} are not reached: {reason}"})
            break
    return combined(judged, [step.name for step in task.steps], task.step_reward)


@asynccontextmanager
async def _opened(task: Task, agent: Agent, parts: Parts, progress: _Progress) -> AsyncIterator[Sandbox]:
    policy = agent.policy_within(task.environment.limits, task.network)
    with _stage("prepare", parts.emit, progress), boundary(Cause.ENVIRONMENT, "opening the sandbox", usage=True):
        sandbox = await parts.engine.create(task.environment, policy)
        try:
            await ready(sandbox, task.environment)
        except BaseException:
            await sandbox.close()
            raise
    if isinstance(sandbox, Governed):
        sandbox.on_decision(lambda decision: parts.emit(EventKind.POLICY, decision))
    try:
        yield sandbox
    finally:
        with _stage("close", parts.emit, progress), boundary(Cause.ENVIRONMENT, "closing the sandbox", usage=True):
            await sandbox.close()


async def _verify(task: Task, changes: ChangeSet, parts: Parts, progress: _Progress) -> Verdict:
    with _stage("verify", parts.emit, progress), boundary(Cause.VERIFIER, "verifying", usage=True):
        verdict = await parts.verifier.verify(task, changes, parts.blobs, parts.engine, parts.emit)
    if parts.grader is None:
        return verdict
    with _stage("grade", parts.emit, progress), boundary(Cause.VERIFIER, "applying reward rules", usage=True):
        return await parts.grader.grade(task, changes, verdict)


@contextmanager
def _stage(name: str, emit: Emit, progress: _Progress) -> Iterator[None]:
    """Times a stage. ``cpu_s`` is this process's own: of one attempt only where attempts run one at a time."""
    started, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    except WoodshedError:
        progress.broke_at = progress.broke_at or name
        raise
    finally:
        seconds = time.perf_counter() - started
        progress.stages_s[name] = progress.stages_s.get(name, 0.0) + seconds
        spent = time.process_time() - cpu
        emit(EventKind.STAGE, {"stage": name, "seconds": round(seconds, 6), "cpu_s": round(spent, 6)})


def _invalid(fault: WoodshedError, emit: Emit) -> Invalid:
    cause = fault.cause or Cause.HARNESS
    emit(EventKind.ERROR, {"cause": cause.value, "type": type(fault).__name__, "message": str(fault),
                           "retryable": fault.retryable})
    return Invalid(cause=cause, detail=f"{type(fault).__name__}: {fault}", retryable=fault.retryable)
