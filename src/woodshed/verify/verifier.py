"""FreshVerifier: captured changes in, verdict out. Filter → run → judge, and the runs that settle a doubt."""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import dataclass, field

from woodshed.errors import Cause, EnvironmentFault, ImageFault, SandboxDied, Unsupported, VerifierFault
from woodshed.interfaces import BlobSink, Emit, SandboxEngine
from woodshed.model import ChangeSet, Task, Valid
from woodshed.verify.canary import framework_of
from woodshed.verify.control import control_run
from woodshed.verify.filter import Filtered
from woodshed.verify.hurry import Hurry, Pace
from woodshed.verify.judge import Demands, Ruling, judge, judge_poison
from woodshed.verify.poison import make_poison
from woodshed.verify.probes import asked
from woodshed.verify.run import SHUT, SHUT_S, Case, opens, restorable, run

_HOST_FAILS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
                         errno.EAGAIN})


@dataclass(slots=True)
class _Control:
    """What the verifier does without the agent: ``fault`` is None when it works. Settled once, under its lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    settled: bool = False
    fault: str | None = None


class FreshVerifier:
    """Judges captured changes in a fresh sandbox without network; implements ``interfaces.Verifier``.

    ``poison=True`` adds the poisoned run to a verdict that would pass (twice the time; assurance ``poisoned``);
    ``measure=True`` records the peak of memory of each run.
    One instance may serve many attempts at once; it remembers, for each (task digest, step, image digest), whether the
    verifier works on the reference solution, once an attempt's outcome raised the question.
    """

    def __init__(self, *, poison: bool = False, measure: bool = False) -> None:
        self._poison, self._measure = poison, measure
        self._controls: dict[tuple[str, int, str], _Control] = {}
        self._paces: dict[tuple[str, int], Pace] = {}

    async def verify(self, task: Task, changes: ChangeSet, blobs: BlobSink, engine: SandboxEngine, emit: Emit) -> Valid:
        """The verdict on ``changes``. Raises VerifierFault where the control run fails as well; engine faults pass."""
        case, began = Case(task, blobs, engine, emit, self._measure), time.monotonic()
        if changes.over_limit is not None:
            return _over(task, changes.over_limit)
        work = await restorable(case, changes)
        hurry = await self._hurry(case, task.verifier.within_s, began) if task.verifier.within_s is not None else None
        try:
            ruling = await _judged(case, work, hurry)
        except EnvironmentFault as fault:
            if isinstance(fault, ImageFault | SandboxDied | Unsupported) or not changes.changes or _of_the_host(fault):
                raise
            ruling = await _again(hurry.case(case) if hurry is not None else case, work, fault)
        verdict = ruling.verdict
        if ruling.suspicious and (broken := await self._control(case, verdict.image_digest, hurry)) is not None:
            doubt = VerifierFault(f"{task.id}: {verdict.detail}; and without the agent: {broken}")
            doubt.retryable = hurry is not None and not hurry.pace.settled
            raise doubt
        if self._poison and verdict.passed and task.verifier.expected_tests:
            return await _poisoned(hurry.case(case) if hurry is not None else case, work, verdict)
        return verdict

    async def _hurry(self, case: Case, within_s: float, began: float) -> Hurry:
        pace = self._paces.setdefault((case.task.digest, case.task.step), Pace())
        await pace.found(case, within_s)
        return Hurry(within_s, began, pace)

    async def _control(self, case: Case, digest: str, hurry: Hurry | None) -> str | None:
        """What is wrong with the verifier itself, None when it judges its own reference (or start) as it should."""
        if hurry is not None and not hurry.pace.slow:
            return hurry.pace.fault
        control = self._controls.setdefault((case.task.digest, case.task.step, digest), _Control())
        async with control.lock:
            if not control.settled:
                # Twice before a task is held at fault for the rest of a run: a busy machine may miss a deadline once.
                control.fault = await control_run(case) and await control_run(case)
                control.settled = True
        return control.fault


async def _judged(case: Case, work: Filtered, hurry: Hurry | None = None) -> Ruling:
    ran = await run(hurry.case(case) if hurry is not None else case, work.changes)
    ran = await asked(hurry.case(case) if hurry is not None else case, work.changes, ran)
    ruling = judge(ran.facts, ran.demands, touched=work.flags, control=work.control, image_digest=ran.image_digest)
    case.record("verify", ran, work, ruling.verdict.flags)
    return ruling


async def _again(case: Case, work: Filtered, fault: EnvironmentFault) -> Ruling:
    """After a sandbox that did not open: what a second one says, or that the agent's changes keep it shut.

    They do where the world opens without them, now and not some time ago, and with them fails again and again.
    """
    if await control_run(case) is not None:
        raise fault
    began = time.monotonic()
    for left in reversed(range(SHUT)):
        try:
            return await _judged(case, work)
        except EnvironmentFault as again:
            if isinstance(again, ImageFault | SandboxDied | Unsupported) or _of_the_host(again):
                raise
            fault = again
        if not left or time.monotonic() - began > SHUT_S:
            break
        await opens(case)
    return Ruling(_unopened(case.task, work, fault))


def _of_the_host(fault: BaseException) -> bool:
    """True where the host had no room left or failed. What an agent may write has passed the capture's bounds."""
    cause: BaseException | None = fault
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _HOST_FAILS:
            return True
        cause = cause.__cause__
    return False


async def _poisoned(case: Case, work: Filtered, verdict: Valid) -> Valid:
    spec = case.task.verifier
    poison = make_poison(spec, framework_of(spec))
    if poison is None:  # no test whose body we can make false: the assurance stays what it is
        return verdict
    ran = await run(case, work.changes, poison)
    verdict = judge_poison(verdict, ran.facts, ran.demands, poison.ids)
    case.record("poison", ran, work, verdict.flags)
    return verdict


def _over(task: Task, limit: str) -> Valid:
    return _unrun(task, Cause.BUDGET, (f"over:{limit}",),
                  f"the changes are over the declared {limit}; no test was run")


def _unopened(task: Task, work: Filtered, fault: EnvironmentFault) -> Valid:
    """The agent's changes keep the sandbox from opening (its setup fails with them)."""
    cause = Cause.TAMPER if work.control else Cause.AGENT
    return _unrun(task, cause, ("setup_failed", *work.flags), f"with these changes: {fault}")


def _unrun(task: Task, cause: Cause, flags: tuple[str, ...], detail: str) -> Valid:
    demands = Demands(task.verifier.expected_tests, probes=tuple(probe.id for probe in task.verifier.probes))
    return Valid(rewards={**dict.fromkeys(task.verifier.rewards), "reward": 0.0}, total=0.0, cause=cause, flags=flags,
                 assurance=demands.assurance, detail=detail)


def poisoned() -> FreshVerifier:
    """A FreshVerifier that adds the poisoned run."""
    return FreshVerifier(poison=True)


def calibrating() -> FreshVerifier:
    """What tasks are calibrated by: the highest assurance it has, with the memory that a verification takes."""
    return FreshVerifier(poison=True, measure=True)


__all__ = ["FreshVerifier", "calibrating", "poisoned"]
