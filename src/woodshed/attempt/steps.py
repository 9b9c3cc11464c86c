"""A task of several steps: each is told, acted and judged after the one before, in one sandbox."""

from __future__ import annotations

from dataclasses import replace

from woodshed.attempt.course import act, verify
from woodshed.attempt.parts import Parts, Progress
from woodshed.errors import Cause, EnvironmentFault, SandboxDied
from woodshed.gateway.recall import recalled
from woodshed.harness.asuser import as_user
from woodshed.harness.checkpoint import Restored, kept
from woodshed.harness.rehearsal import Recital
from woodshed.harness.resume import Fine, Lasting
from woodshed.interfaces import Acting, Sandbox
from woodshed.model import Agent, ChangeSet, EventKind, Task, Valid, Verdict
from woodshed.model.stepwise import ended, short_of, whole
from woodshed.verify.live import begin_step
from woodshed.verify.stepping import begins, unbegun, walk


async def taken_up(task: Task, parts: Parts, progress: Progress) -> Verdict | None:
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


async def stepwise(
    task: Task, agent: Agent, sandbox: Sandbox, parts: Parts, seed: int, progress: Progress
) -> Verdict:
    """Each step is told, acted and judged after the one before, in one sandbox; what runs in it ends with a step."""
    if parts.fine is not None and parts.fine.past is not None:
        await _regained(task, agent, sandbox, parts, parts.fine, seed, progress)
    verdict: Verdict | None = None
    while verdict is None:
        verdict = await _step(task, len(progress.judged), agent, sandbox, parts, seed, progress)
    return verdict


async def _step(
    task: Task, index: int, agent: Agent, sandbox: Sandbox, parts: Parts, seed: int, progress: Progress
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
    changes = await act(task.at(index), agent, sandbox, parts, fine.of_step(index) if fine is not None else None,
                         seed, progress)
    if fine is not None and index + 1 < len(task.steps):
        await kept(sandbox, parts.blobs, parts.emit, turn=progress.usage.turns - before, why="step", named=set(),
                   over=True)
        await fine.keep()
    return await _judge(task, index, changes, parts, progress)


async def _begun(
    task: Task, index: int, sandbox: Sandbox, parts: Parts, progress: Progress
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
    task: Task, index: int, changes: ChangeSet, parts: Parts, progress: Progress
) -> Verdict | None:
    """The verdict upon a step is known; that upon all, where none comes after it."""
    step = task.steps[index]
    verdict = await verify(task.at(index), changes, parts, progress)
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
    task: Task, agent: Agent, sandbox: Sandbox, parts: Parts, fine: Fine, seed: int, progress: Progress
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
