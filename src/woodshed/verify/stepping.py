"""A step that does not begin: whether the agent's earlier work keeps it from that, or the task itself."""

from __future__ import annotations

from woodshed.errors import Cause, EnvironmentFault, SandboxDied, Unsupported
from woodshed.interfaces import SandboxEngine
from woodshed.model import Assurance, SandboxPolicy, Task, TaskStep, Valid
from woodshed.verify.live import begin_step, ready

_PLACE = "/solution"


async def begins(task: Task, index: int, engine: SandboxEngine) -> bool:
    """True where the step begins in a fresh sandbox in which the references of the steps before it were played.

    Then only the agent's work can keep it from that. Raises what the engine raises.
    """
    policy = SandboxPolicy(limits=task.environment.limits.model_copy(update={"wall_s": None}), network=task.network)
    sandbox = await engine.create(task.environment, policy)
    try:
        await ready(sandbox, task.environment)
        for at, step in enumerate(task.steps[: index + 1]):
            await begin_step(sandbox, step, task.environment, first=not at)
            if at < index and step.solution is not None:
                await sandbox.upload(step.solution, _PLACE)
                await sandbox.exec(["bash", f"{_PLACE}/solve.sh"], cwd=task.environment.workdir, env=task.solution_env,
                                   timeout_s=step.agent_timeout_s)
                await sandbox.kill_all()
    except (SandboxDied, Unsupported):
        raise
    except EnvironmentFault:
        return False
    finally:
        await sandbox.close()
    return True


def unbegun(step: TaskStep, fault: EnvironmentFault) -> Valid:
    """The verdict upon a step that the agent's earlier work keeps from beginning."""
    assurance = Assurance.CANARY if step.verifier.expected_tests else Assurance.REPORT_ONLY
    return Valid(rewards={"reward": 0.0}, total=0.0, cause=Cause.AGENT, flags=("setup_failed",), assurance=assurance,
                 detail=f"after the agent's earlier steps: {fault}")
