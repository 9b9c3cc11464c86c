"""oracle: plays the task's reference solution. What fails with it was never solvable."""

from __future__ import annotations

import time

from woodshed.errors import UsageError
from woodshed.harness.argument import no_argument
from woodshed.harness.clip import clip, decoded
from woodshed.interfaces import Acting
from woodshed.model import EventKind, StopReason

PLACE = "/solution"  # where Harbor's oracle puts the reference too, so that its scripts find their neighbours
_SHOWN = 16_000


class Oracle:
    """A harness that runs ``solution/solve.sh`` as root in the workdir, with the task's ``solution_env``."""

    needs_model = False

    def __init__(self, argument: str | None = None) -> None:
        no_argument("oracle", argument)

    async def act(self, acting: Acting) -> StopReason:
        """FINISHED, SOLUTION_FAILED when the script fails, or WALL. Raises UsageError for a task without one."""
        task = acting.task
        if task.solution is None or not (task.solution / "solve.sh").is_file():
            raise UsageError("the task has no reference solution", file=task.folder / "solution" / "solve.sh",
                             remedy="Add one, or run another agent.")
        await acting.sandbox.upload(task.solution, PLACE)
        command = f"bash {PLACE}/solve.sh"
        acting.emit(EventKind.TOOL_CALL, {"call": "t0001c001", "name": "bash", "arguments": {"command": command}})
        started = time.perf_counter()
        result = await acting.sandbox.exec(
            ["bash", f"{PLACE}/solve.sh"], cwd=task.environment.workdir, env=task.solution_env,
            timeout_s=acting.deadline_s,
        )
        acting.usage = acting.usage.model_copy(update={"turns": 1, "tool_calls": 1})
        output, clipped = clip(decoded(result.stdout + result.stderr), _SHOWN)
        acting.emit(EventKind.TOOL_RESULT, {
            "call": "t0001c001", "content": output, "exit_code": result.exit_code,
            "truncated": clipped or result.truncated, "timed_out": result.timed_out,
            "seconds": round(time.perf_counter() - started, 6),
        })
        if result.timed_out:
            return StopReason.WALL
        return StopReason.FINISHED if result.exit_code == 0 else StopReason.SOLUTION_FAILED
