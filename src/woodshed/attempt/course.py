"""The stages of an attempt: its sandbox is opened, the agent acts in it, the changes are captured and judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from woodshed.attempt.parts import Parts, Progress
from woodshed.attempt.stages import Ledger, Overrun, cut
from woodshed.errors import Cause, EnvironmentFault, WoodshedError
from woodshed.harness.asuser import as_user
from woodshed.harness.resume import Fine, Lasting
from woodshed.interfaces import Acting, Emit, Furnished, Governed, Harness, Sandbox
from woodshed.model import (
    Agent,
    ChangeSet,
    EventKind,
    Invalid,
    SandboxPolicy,
    StageDeadlines,
    StopReason,
    Task,
    Verdict,
)
from woodshed.verify.live import captured, ready


@asynccontextmanager
async def opened(task: Task, agent: Agent, parts: Parts, progress: Progress) -> AsyncIterator[Sandbox]:
    """The agent's sandbox, ready for it; whatever happens it is closed at the end. Raises faults of the environment."""
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


async def _close(sandbox: Sandbox, within: StageDeadlines, emit: Emit, progress: Progress) -> None:
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


async def act(
    task: Task, agent: Agent, sandbox: Sandbox, parts: Parts, fine: Fine | None, seed: int, progress: Progress
) -> ChangeSet:
    """What the agent changed, and captured, whatever stopped it; why and its usage stand in ``progress``.

    Raises faults of the harness, of the model and of the environment.
    """
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


async def verify(task: Task, changes: ChangeSet, parts: Parts, progress: Progress) -> Verdict:
    """The verdict upon ``changes``, with the rewards of the rules where there are any. Raises as a Verifier does."""
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


def invalid(fault: WoodshedError, emit: Emit) -> Invalid:
    """What a fault makes of an attempt; it is told as an event."""
    cause = fault.cause or Cause.HARNESS
    emit(EventKind.ERROR, {"cause": cause.value, "type": type(fault).__name__, "message": str(fault),
                           "retryable": fault.retryable})
    return Invalid(cause=cause, detail=f"{type(fault).__name__}: {fault}", retryable=fault.retryable)
