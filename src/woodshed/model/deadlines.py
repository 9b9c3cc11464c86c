"""Deadlines: how long each stage of an execution, and a run, may take at the very most. Data and arithmetic.

A deadline is a last resort above the timeouts that a task declares for what runs in its sandboxes: it cuts off what
these cannot, an engine that does not answer or a volume that hangs. So where nothing is said, it follows from them.
"""

from __future__ import annotations

from pydantic import Field

from woodshed.model.record import Record
from woodshed.model.task import EnvironmentSpec, Healthcheck, Task

_OPENING_S = 600.0
"""For what has no timeout of its own: pulling an image, unpacking layers."""
_CAPTURE_S, _CLOSE_S, _GRADE_S = 600.0, 120.0, 600.0
_VERIFIER_RUNS = 4
"""Runs of the tests that a verdict may take: on the changes, with a poison, and twice without the agent."""
_ENTITLED_RUNS = 2
"""Of these, what changes that hang bring about: their own run to its timeout, and one that shows who is to blame."""


class Deadlines(Record):
    """Seconds. None: as it follows from the task. ``run_s`` None: a run may take as long as it does.

    ``act_s`` ends the acting like any wall limit, and its work is verified. A ``verify_s`` shorter than what the task
    itself grants its verifier is kept by the verifier itself, which tells hanging changes from hanging tests; what
    cuts it off from outside is lifted to that time, or changes that hang would make their own attempt invalid.
    """

    prepare_s: float | None = Field(default=None, gt=0)
    act_s: float | None = Field(default=None, gt=0)
    capture_s: float | None = Field(default=None, gt=0)
    verify_s: float | None = Field(default=None, gt=0)
    close_s: float | None = Field(default=None, gt=0)
    run_s: float | None = Field(default=None, gt=0)

    def of(self, task: Task) -> StageDeadlines:
        """What holds for an execution of ``task``, which is none of several steps, or one step (:meth:`Task.at`)."""
        collecting_s = sum(collect.timeout_s for collect in task.verifier.collect)
        verify_s = _verifying_s(task, _VERIFIER_RUNS)
        if self.verify_s is not None:
            verify_s = max(self.verify_s, least_verify_s(task))
        return StageDeadlines(
            prepare_s=self.prepare_s or opening_s(task.environment),
            act_s=self.act_s,
            capture_s=self.capture_s or _CAPTURE_S + collecting_s,
            verify_s=verify_s, grade_s=_GRADE_S + 2 * verify_s,
            close_s=self.close_s or _CLOSE_S,
            hurry_s=self.verify_s if self.verify_s is not None and self.verify_s < verify_s else None,
        )


class StageDeadlines(Record):
    """Seconds that each stage of one execution has. ``act_s`` None: the agent's and the task's wall time alone."""

    prepare_s: float
    act_s: float | None
    capture_s: float
    verify_s: float
    grade_s: float
    close_s: float
    hurry_s: float | None = None
    """In which a verifier is to be done by itself (``verify/hurry.py``), where that is less than ``verify_s``."""


def least_verify_s(task: Task) -> float:
    """The least that a verification of ``task`` must be granted, whatever was asked for."""
    steps = [task.at(index) for index in range(len(task.steps))] or [task]
    return max(_verifying_s(step, _ENTITLED_RUNS) for step in steps)


def opening_s(spec: EnvironmentSpec) -> float:
    """Seconds that opening a sandbox of ``spec`` may take: its build, its setup, its health check."""
    builds = 1 + (spec.setup is not None and spec.image.startswith("dockerfile:"))
    return _OPENING_S + builds * spec.setup_timeout_s + (_healthy_s(spec.healthcheck) if spec.healthcheck else 0.0)


def _healthy_s(check: Healthcheck) -> float:
    pause_s = max(check.interval_s, check.start_interval_s)
    return check.start_period_s + (check.retries + 1) * (check.timeout_s + pause_s)


def _verifying_s(task: Task, runs: int) -> float:
    probing_s = sum(probe.timeout_s for probe in task.verifier.probes)
    return opening_s(task.judged_in) + runs * (task.verifier.timeout_s + probing_s)
