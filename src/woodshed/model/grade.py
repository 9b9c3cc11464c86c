"""Grade: what reward rules made of one verdict, and what was measured for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from woodshed.model.record import Record
from woodshed.model.rules import RuleSet
from woodshed.model.verdict import Valid, Verdict


class FilePatch(Record):
    """How one file changed, in lines. ``test``: it is named like a test; such files are checks, not work."""

    path: str
    added: int = Field(ge=0)
    removed: int = Field(ge=0)
    test: bool = False


class Patch(Record):
    """The changes that a verification judges, in lines by file. Caches and files kept out of it are no part."""

    version: int = 1
    files: tuple[FilePatch, ...] = ()

    @property
    def lines(self) -> int:
        """Added and removed, of files that are no tests."""
        return sum(file.added + file.removed for file in self.files if not file.test)

    @property
    def touched(self) -> tuple[str, ...]:
        """Paths of files that are no tests."""
        return tuple(file.path for file in self.files if not file.test)


class CheckRun(Record):
    """How a check's command ended on one tree. ``seconds`` is the fastest of its repeats, ``output`` its last part."""

    exit_code: int
    seconds: float
    timed_out: bool = False
    output: str = ""


class Checked(Record):
    """One command on both trees."""

    command: str
    timeout_s: float
    repeats: int
    before: CheckRun
    after: CheckRun

    @property
    def key(self) -> tuple[str, float, int]:
        """As :attr:`woodshed.model.rules.CheckRule.key`."""
        return self.command, self.timeout_s, self.repeats


class Observed(Record):
    """What rules need beside the verdict and the events. None is unknown; ``missing`` says why, by field."""

    version: int = 1
    patch: Patch | None = None
    weakened: tuple[str, ...] | None = Field(
        default=None, description="tests of the start that were changed or removed, and files that would steer tests")
    reference: Patch | None = None
    start_tests: tuple[str, ...] | None = Field(default=None, description="ids that pass on the untouched start")
    checks: tuple[Checked, ...] = ()
    missing: dict[str, str] = {}

    def why_not(self, field: str) -> str:
        """Why ``field`` is None."""
        return self.missing.get(field, "it was not measured in this attempt")


class Component(Record):
    """One rule's say. ``value`` is None where it cannot be known; ``why`` explains it, whatever it is."""

    name: str
    kind: str
    value: float | None = Field(default=None, ge=0, le=1)
    weight: float
    gate: bool
    why: str = ""


class Grade(Record):
    """Rules applied to a verdict. ``verdict`` is the verifier's own, from before. A ``total`` of None is no number."""

    version: Literal[1] = 1
    rules: RuleSet
    components: tuple[Component, ...]
    total: float | None = Field(ge=0, le=1)
    observed: Observed = Observed()
    verdict: Valid

    def applied(self) -> Valid:
        """The verdict with these rewards and this total; the verifier's own reward stays under ``reward``."""
        own = {component.name: component.value for component in self.components}
        unknown = _unknown(self.components)
        detail = "; ".join(part for part in (self.verdict.detail, unknown) if part)
        return self.verdict.model_copy(update={
            "rewards": {**self.verdict.rewards, **own}, "total": self.total, "detail": detail})


def _unknown(components: Sequence[Component]) -> str:
    named = [f"{component.name} ({component.why})" for component in components if component.value is None]
    return f"unknown: {', '.join(named)}" if named else ""


class Regrade(Record):
    """Rules applied once more to a finished run, later and without any sandbox. Its verdicts stand beside the run's."""

    version: Literal[1] = 1
    id: str
    run: str
    project: str = "default"
    rules: RuleSet
    created_at: datetime


class Regraded(Record):
    """What a regrade made of one attempt. An invalid verdict stays as it was, and has no components."""

    regrade: str
    attempt: str
    execution: int
    verdict: Verdict
    components: tuple[Component, ...] = ()
