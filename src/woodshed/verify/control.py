"""The control run: what the verifier says where no agent had a hand in it."""

from __future__ import annotations

from woodshed.errors import EnvironmentFault, ImageFault, SandboxDied, Unsupported
from woodshed.model import ChangeSet, SandboxPolicy, Task
from woodshed.verify.judge import Demands, Facts, Found, judge
from woodshed.verify.live import captured, ready
from woodshed.verify.probes import asked
from woodshed.verify.run import Case, policy_of, restorable, run, with_folder
from woodshed.verify.stepping import play

SOLUTION = "/solution"
_TAIL_BYTES = 300


async def control_run(case: Case) -> str | None:
    """None when the verifier works: the reference solution passes, or an untouched start gets its report.

    Otherwise what is wrong, for people. Raises what the engine raises.
    """
    changes = await reference_changes(case)
    return changes if isinstance(changes, str) else await judged_reference(case, changes)


async def judged_reference(case: Case, changes: ChangeSet) -> str | None:
    """As :func:`control_run`, of ``changes`` that are the reference's."""
    work = await restorable(case, changes)
    ran = await asked(case, work.changes, await run(case, work.changes))
    case.record("control", ran, work)
    fault = _reference_fault(ran.facts, ran.demands) if case.task.solution else _start_fault(ran.facts, ran.demands)
    return fault and f"{fault}; its output ends: {ran.output[-_TAIL_BYTES:].decode(errors='replace').strip()!r}"


def _reference_fault(facts: Facts, demands: Demands) -> str | None:
    verdict = judge(facts, demands).verdict
    return None if verdict.passed else f"the reference fails too ({', '.join(verdict.flags) or verdict.detail})"


def _start_fault(facts: Facts, demands: Demands) -> str | None:
    """None when an untouched start gets an answer of the kind it should: the verifier runs and reports."""
    if facts.timed_out or facts.found is not Found.FRESH:
        return f"the untouched start gets no verdict (exit status {facts.exit_code}, report {facts.found})"
    if not demands.expected:
        return None
    flags = judge(facts, demands).verdict.flags
    odd = [flag for flag in flags if flag.startswith(("tamper:", "canary", "exit"))]
    return f"the untouched start gets {', '.join(odd)}" if odd else None


async def reference_changes(case: Case) -> ChangeSet | str:
    """What the reference solution changes (nothing where there is none), or why it does not come to an end.

    Of one step it is what those of the steps before it change as well, in one sandbox, as an agent's changes are.
    """
    task = case.task
    if task.whole is not None and _of_steps(task):
        return await _steps_changes(case, task.whole, task.step)
    if task.solution is None:
        return ChangeSet()
    policy = policy_of(task).model_copy(update={"limits": task.environment.limits.model_copy(update={"wall_s": None}),
                                                "network": task.network})
    sandbox = await case.engine.create(with_folder(task.environment, task.solution, SOLUTION), policy)
    try:
        await ready(sandbox, task.environment)
        result = await sandbox.exec(["bash", f"{SOLUTION}/solve.sh"], cwd=task.environment.workdir,
                                    env=task.solution_env, timeout_s=task.agent_timeout_s)
        if result.timed_out:
            return f"the reference did not end within {task.agent_timeout_s:.0f} s"
        return await captured(task, sandbox, case.blobs)
    finally:
        await sandbox.close()


def _of_steps(task: Task) -> bool:
    """Whether more than the step's own reference has to do with its end."""
    return task.whole is not None and (task.step > 0 or task.whole.steps[0].setup)


async def _steps_changes(case: Case, task: Task, step: int) -> ChangeSet | str:
    """As :func:`reference_changes`, of the first steps up to ``step``; steps without a reference only begin."""
    limits = task.environment.limits.model_copy(update={"wall_s": None})
    sandbox = await case.engine.create(task.environment, SandboxPolicy(limits=limits, network=task.network))
    try:
        await ready(sandbox, task.environment)
        return await play(sandbox, task, case.blobs, step + 1)
    except (ImageFault, SandboxDied, Unsupported):
        raise
    except EnvironmentFault as fault:
        return f"the references of the steps do not follow each other: {fault}"
    finally:
        await sandbox.close()
