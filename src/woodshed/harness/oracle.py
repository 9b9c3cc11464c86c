"""oracle: plays the task's reference solution. What fails with it was never solvable."""

from __future__ import annotations

from woodshed.errors import UsageError
from woodshed.harness.argument import no_argument
from woodshed.harness.recorded import played, stop_of
from woodshed.interfaces import Acting
from woodshed.model import StopReason

PLACE = "/solution"  # where Harbor's oracle puts the reference too, so that its scripts find their neighbours


class Oracle:
    """A harness that runs ``solution/solve.sh`` as root in the workdir, with the task's ``solution_env``."""

    needs_model = False
    resumable = True

    def __init__(self, argument: str | None = None) -> None:
        no_argument("oracle", argument)

    async def act(self, acting: Acting) -> StopReason:
        """FINISHED, SOLUTION_FAILED when the script fails, or WALL. Raises UsageError for a task without one."""
        task = acting.task
        if task.solution is None or not (task.solution / "solve.sh").is_file():
            raise UsageError("the task has no reference solution", file=task.folder / "solution" / "solve.sh",
                             remedy="Add one, or run another agent.")
        await acting.sandbox.upload(task.solution, PLACE)
        command = ["bash", f"{PLACE}/solve.sh"]
        return stop_of(await played(
            acting, command, shown=" ".join(command), env=task.solution_env, timeout_s=acting.deadline_s))
