"""FreshVerifier: captured changes in, verdict out. The I/O around filter → run → judge, and the control run."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass, field

from woodshed.errors import Cause, EnvironmentFault, ImageFault, SandboxDied, Unsupported, VerifierFault
from woodshed.interfaces import BlobSink, Emit, SandboxEngine
from woodshed.model import Assurance, ChangeSet, EventKind, Task, Valid
from woodshed.verify.canary import framework_of
from woodshed.verify.filter import Filtered, filtered
from woodshed.verify.judge import Demands, Facts, Found, Ruling, judge, judge_poison
from woodshed.verify.poison import make_poison
from woodshed.verify.protect import Rules
from woodshed.verify.run import Ran, policy_of, run, with_folder
from woodshed.verify.start import Start

SOLUTION = "/solution"


@dataclass(slots=True)
class _Control:
    """What the verifier does without the agent: ``fault`` is None when it works. Settled once, under its lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    settled: bool = False
    fault: str | None = None


class FreshVerifier:
    """Judges captured changes in a fresh sandbox without network; implements ``interfaces.Verifier``.

    ``poison=True`` adds the poisoned run to a verdict that would pass (twice the time; assurance ``poisoned``).
    One instance may serve many attempts at once; it remembers, for each (task digest, image digest), whether the
    verifier works on the reference solution, once an attempt's outcome raised the question.
    """

    def __init__(self, *, poison: bool = False) -> None:
        self._poison = poison
        self._controls: dict[tuple[str, str], _Control] = {}

    async def verify(self, task: Task, changes: ChangeSet, blobs: BlobSink, engine: SandboxEngine, emit: Emit) -> Valid:
        """The verdict on ``changes``. Raises VerifierFault where the control run fails as well; engine faults pass."""
        if changes.over_limit is not None:
            return _over(changes.over_limit)
        work = await _filter(task, changes, blobs)
        try:
            ruling, digest = await self._judged(task, work, blobs, engine, emit)
        except EnvironmentFault as fault:
            if isinstance(fault, ImageFault | SandboxDied | Unsupported) or not changes.changes:
                raise
            # The world opened without the agent's changes; does it still? Then they closed it.
            ruling, digest = _unopened(task, work, fault), ""
            if await self._control(task, "", blobs, engine) is not None:
                raise
            return ruling.verdict
        if ruling.suspicious and (broken := await self._control(task, digest, blobs, engine)) is not None:
            raise VerifierFault(f"{task.id}: {ruling.verdict.detail}; and without the agent: {broken}")
        if self._poison and ruling.verdict.passed and task.verifier.expected_tests:
            return await self._poisoned(task, work, ruling.verdict, blobs, engine, emit)
        return ruling.verdict

    async def _judged(self, task: Task, work: Filtered, blobs: BlobSink, engine: SandboxEngine,
                      emit: Emit) -> tuple[Ruling, str]:
        ran, demands = await run(task, work.changes, blobs, engine)
        ruling = judge(ran.facts, demands, touched=work.flags, control=work.control, image_digest=ran.image_digest)
        _record(emit, ran, blobs, work, ruling.verdict.flags)
        return ruling, ran.image_digest

    async def _poisoned(self, task: Task, work: Filtered, verdict: Valid, blobs: BlobSink, engine: SandboxEngine,
                        emit: Emit) -> Valid:
        poison = make_poison(task.verifier, framework_of(task.verifier))
        if poison is None:  # no test whose body we can make false: the assurance stays what it is
            return verdict
        ran, demands = await run(task, work.changes, blobs, engine, poison)
        verdict = judge_poison(verdict, ran.facts, demands, poison.ids)
        _record(emit, ran, blobs, work, verdict.flags)
        return verdict

    async def _control(self, task: Task, digest: str, blobs: BlobSink, engine: SandboxEngine) -> str | None:
        """What is wrong with the verifier itself, None when it judges its own reference (or start) as it should."""
        control = self._controls.setdefault((task.digest, digest), _Control())
        async with control.lock:
            if not control.settled:
                control.fault = await _control_run(task, blobs, engine)
                control.settled = True
        return control.fault


def _over(limit: str) -> Valid:
    return Valid(rewards={"reward": 0.0}, total=0.0, cause=Cause.BUDGET, flags=(f"over:{limit}",),
                 assurance=Assurance.REPORT_ONLY, detail=f"the changes are over the declared {limit}; no test was run")


def _unopened(task: Task, work: Filtered, fault: EnvironmentFault) -> Ruling:
    """The agent's changes keep the sandbox from opening (its setup fails with them)."""
    cause = Cause.TAMPER if work.control else Cause.AGENT
    assurance = Assurance.CANARY if task.verifier.expected_tests else Assurance.REPORT_ONLY
    return Ruling(Valid(rewards={"reward": 0.0}, total=0.0, cause=cause, flags=("setup_failed", *work.flags),
                        assurance=assurance, detail=f"with these changes: {fault}"))


async def _filter(task: Task, changes: ChangeSet, blobs: BlobSink) -> Filtered:
    start = Start.of(task.environment)
    try:
        rules = Rules.of(task, start.exists)
    except ValueError as error:
        raise VerifierFault(f"{task.id}: [woodshed] protected: {error}") from None
    return await asyncio.to_thread(filtered, changes, rules, start, blobs)


def _record(emit: Emit, ran: Ran, blobs: BlobSink, work: Filtered, flags: tuple[str, ...]) -> None:
    facts = ran.facts
    emit(EventKind.VERIFIER, {
        "exit_code": facts.exit_code,
        "seconds": round(facts.seconds, 3),
        "report": facts.report.format if facts.report else "reward" if facts.reward else facts.found.value,
        "output_blob": blobs.put(ran.output),
        "touched": [f"{touch}: {path}" for path, touch in work.touched[:100]],
        "flags": list(flags),
    })


async def _control_run(task: Task, blobs: BlobSink, engine: SandboxEngine) -> str | None:
    """Judge what no agent made: the reference solution where there is one, else the untouched start."""
    if task.solution is None:
        ran, demands = await run(task, ChangeSet(), blobs, engine)
        return _start_fault(ran.facts, demands)
    changes = await _reference(task, blobs, engine)
    if isinstance(changes, str):
        return changes
    ran, demands = await run(task, (await _filter(task, changes, blobs)).changes, blobs, engine)
    verdict = judge(ran.facts, demands).verdict
    if verdict.passed:
        return None
    return f"the reference fails too ({', '.join(verdict.flags) or verdict.detail})"


def _start_fault(facts: Facts, demands: Demands) -> str | None:
    """None when an untouched start gets an answer of the kind it should: the verifier runs and reports."""
    if facts.timed_out or facts.found is not Found.FRESH:
        return f"the untouched start gets no verdict (exit status {facts.exit_code}, report {facts.found})"
    if not demands.expected or facts.report is None:
        return None
    flags = judge(facts, demands).verdict.flags
    odd = [flag for flag in flags if flag.startswith(("tamper:", "canary", "exit"))]
    return f"the untouched start gets {', '.join(odd)}" if odd else None


async def _reference(task: Task, blobs: BlobSink, engine: SandboxEngine) -> ChangeSet | str:
    """What the reference solution changes, or why it does not end well."""
    assert task.solution is not None
    sandbox = await engine.create(with_folder(task.environment, task.solution, SOLUTION), policy_of(task))
    try:
        result = await sandbox.exec(["bash", f"{SOLUTION}/solve.sh"], cwd=task.environment.workdir,
                                    env=task.solution_env, timeout_s=task.agent_timeout_s)
        if result.timed_out:
            return f"{shlex.quote(str(task.solution))}/solve.sh did not end within {task.agent_timeout_s:.0f} s"
        await sandbox.kill_all()
        return await sandbox.changes(blobs, roots=task.verifier.capture or (task.environment.workdir,))
    finally:
        await sandbox.close()


__all__ = ["FreshVerifier"]
