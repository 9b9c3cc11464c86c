"""Steps of a task taken in one sandbox, and a step that does not begin: whether it is the agent's doing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from woodshed.errors import Cause, EnvironmentFault, SandboxDied, Unsupported
from woodshed.interfaces import BlobSink, Sandbox, SandboxEngine
from woodshed.model import Assurance, ChangeSet, SandboxPolicy, Task, TaskStep, Valid
from woodshed.verify.live import begin_step, captured, ready

_PLACE = "/solution"


async def begins(task: Task, index: int, engine: SandboxEngine, blobs: BlobSink, *, restored: bool = False) -> bool:
    """True where the step begins in a fresh sandbox in which the references of the steps before it were played.

    Then only the agent's work can keep it from that. With ``restored`` it begins in one that has their files alone, as
    a checkpoint keeps them: what no checkpoint holds cannot be what it lacks then. Raises what the engine raises.
    """
    sandbox = await engine.create(task.environment, _policy(task))
    try:
        await ready(sandbox, task.environment)
        await play(sandbox, task, blobs, index)
        if restored:
            files = await sandbox.changes(blobs, roots=("/",))
            await sandbox.close()
            sandbox = await engine.create(task.environment, _policy(task), restore=(files, blobs))
            await ready(sandbox, task.environment, restored=True)
        await begin_step(sandbox, task.steps[index], task.environment, first=not index)
    except (SandboxDied, Unsupported):
        raise
    except EnvironmentFault:
        return False
    finally:
        await sandbox.close()
    return True


async def play(sandbox: Sandbox, task: Task, blobs: BlobSink, count: int) -> ChangeSet:
    """The first ``count`` steps are over: each began, and its reference was played. What was captured after the last.

    Raises EnvironmentFault where one does not begin.
    """
    async def act(index: int) -> None:
        step = task.steps[index]
        if step.solution is not None:
            await sandbox.upload(step.solution, _PLACE)
            await sandbox.exec(["bash", f"{_PLACE}/solve.sh"], cwd=task.environment.workdir, env=task.solution_env,
                               timeout_s=step.agent_timeout_s)

    return await walk(sandbox, task, blobs, range(count), act)


async def walk(
    sandbox: Sandbox, task: Task, blobs: BlobSink, steps: range, act: Callable[[int], Awaitable[None]], *,
    begun: bool = False,
) -> ChangeSet:
    """Each of ``steps`` is over: it began (the first has where ``begun``), ``act`` acted in it, its end was captured.

    What was captured after the last one. Raises EnvironmentFault where one does not begin.
    """
    changes = ChangeSet()
    for index in steps:
        if not begun or index != steps.start:
            await begin_step(sandbox, task.steps[index], task.environment, first=not index)
        await act(index)
        changes = await captured(task.at(index), sandbox, blobs)
    return changes


def unbegun(step: TaskStep, fault: EnvironmentFault) -> Valid:
    """The verdict upon a step that the agent's earlier work keeps from beginning."""
    assurance = Assurance.CANARY if step.verifier.expected_tests else Assurance.REPORT_ONLY
    return Valid(rewards={"reward": 0.0}, total=0.0, cause=Cause.AGENT, flags=("setup_failed",), assurance=assurance,
                 detail=f"after the agent's earlier steps: {fault}")


def _policy(task: Task) -> SandboxPolicy:
    return SandboxPolicy(limits=task.environment.limits.model_copy(update={"wall_s": None}), network=task.network)
