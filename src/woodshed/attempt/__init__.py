"""run_attempt(): open → act → capture → verify → close. One execution of one attempt, from nothing to an Outcome."""

from __future__ import annotations

import os

from woodshed.attempt.course import act, invalid, opened, verify
from woodshed.attempt.parts import Parts, Progress
from woodshed.attempt.stages import Ledger, Stages
from woodshed.attempt.steps import stepwise, taken_up
from woodshed.errors import WoodshedError
from woodshed.model import Agent, ChangeSet, EventKind, Outcome, StopReason, Task, Usage

__all__ = ["Parts", "judge_end_state", "run_attempt"]


async def run_attempt(task: Task, agent: Agent, parts: Parts, *, seed: int) -> Outcome:
    """The Outcome of one execution; never raises but for cancellation of the caller.

    A fault of ours makes the verdict :class:`Invalid` with its cause. Whatever stopped the agent short of a fault
    (a limit, a refusal to finish), the work done so far is captured and verified. The agent's sandbox, in which nothing
    runs any more, is cleared away while the verifier works in its own; both are gone when this returns. A stage that
    is not over at its deadline is cut off: the acting is a limit like any other, everything else a fault of ours.
    """
    progress, task = Progress(Stages(parts.emit), Ledger(parts.ground or parts.engine)), task.lent(os.environ)
    broken: WoodshedError | None = None
    try:
        verdict = await taken_up(task, parts, progress) if task.steps else None
        if verdict is None:
            async with opened(task, agent, parts, progress) as sandbox, parts.slots:
                if task.steps:
                    verdict = await stepwise(task, agent, sandbox, parts, seed, progress)
                else:
                    changes = await act(task, agent, sandbox, parts, parts.fine, seed, progress)
                    progress.clear(sandbox)
                    verdict = await verify(task, changes, parts, progress)
    except WoodshedError as fault:
        verdict, broken = invalid(fault, parts.emit), fault
    parts.emit(EventKind.VERDICT, verdict.to_json())
    return progress.outcome(verdict, broken)


async def judge_end_state(
    task: Task, changes: ChangeSet, parts: Parts, *, stop: StopReason = StopReason.FINISHED, usage: Usage | None = None
) -> Outcome:
    """The Outcome of an end state that nobody acts here: ``changes`` are judged as captured ones are. Raises as little.

    ``stop`` and ``usage`` are those of whoever did act, if anyone.
    """
    progress = Progress(Stages(parts.emit), Ledger(parts.engine), stop=stop, usage=usage or Usage())
    task = task.lent(os.environ)
    broken: WoodshedError | None = None
    parts.emit(EventKind.CHANGES, changes.to_json())
    try:
        async with parts.slots:
            verdict = await verify(task, changes, parts, progress)
    except WoodshedError as fault:
        verdict, broken = invalid(fault, parts.emit), fault
    parts.emit(EventKind.VERDICT, verdict.to_json())
    return progress.outcome(verdict, broken)
