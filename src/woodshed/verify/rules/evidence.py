"""Evidence: all that a rule may look at. Made once for a verdict, from records; nothing in it is live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from woodshed.model import ChangeSet, StopReason, Task, Trajectory, Valid
from woodshed.model.acts import Act, acts_of
from woodshed.model.grade import Observed


@dataclass(frozen=True, slots=True)
class Score:
    """A rule's value from 0 to 1, or None where it cannot be known, and why."""

    value: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One attempt as rules see it. ``verdict`` is the verifier's own; ``policy`` are decisions upon the sandbox.

    ``task`` is None where its folder is gone or has changed since: a regrade goes on without it.
    """

    verdict: Valid
    changes: ChangeSet
    trajectory: Trajectory
    task: Task | None = None
    policy: tuple[Mapping[str, Any], ...] = ()
    stop: StopReason | None = None
    observed: Observed = field(default_factory=Observed)

    def acts(self, checks: Iterable[str] = ()) -> list[Act]:
        """What the agent did, call by call and within a call command by command; ``checks`` are known here besides."""
        test_command = self.task.metadata.get("test_command") if self.task is not None else None
        return acts_of(self.trajectory, [change.path for change in self.changes.changes], tuple(checks),
                       test_command if isinstance(test_command, str) else "")
