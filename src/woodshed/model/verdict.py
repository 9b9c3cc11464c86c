"""Verdict: valid with rewards, or invalid with a cause. There is no third thing and no NaN."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from woodshed.errors import INVALID_CAUSES, Cause
from woodshed.model.record import Record


class Assurance(StrEnum):
    """How hard the verdict is to fake; known evasions of each stand in docs/verification.md."""

    OUT_OF_PROCESS = "out_of_process"
    POISONED = "poisoned"
    CANARY = "canary"
    REPORT_ONLY = "report_only"


class TestOutcome(StrEnum):
    """One test's result in a report. A skip is no pass."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    MISSING = "missing"


class Valid(Record):
    """The attempt counts. ``total`` is what training uses; ``flags`` say what was seen.

    The verifier's own reward stands under ``rewards["reward"]``; it decides whether the attempt passed. ``total``
    equals it unless reward rules make another, which is None where a rule's value is unknown: no number says that.

    ``cause`` is who brought a total of 0 about: agent (wrong work), tamper, or budget; None when it passed.
    Flags are short words: ``tamper:canary_passed``, ``weakens_tests``, ``outside_capture``, ``verifier_timeout`` …
    """

    kind: Literal["valid"] = "valid"
    rewards: dict[str, float | None]
    total: float | None
    cause: Cause | None = None
    flags: tuple[str, ...] = ()
    assurance: Assurance
    tests: dict[str, TestOutcome] = {}
    image_digest: str = ""
    detail: str = ""

    @property
    def passed(self) -> bool:
        """True when the verifier's own reward is 1 (within float error): the whole work was done."""
        own = self.rewards.get("reward", self.total)
        return own is not None and own >= 1.0 - 1e-9

    @model_validator(mode="after")
    def _cause_belongs(self) -> Valid:
        if self.cause in INVALID_CAUSES:
            raise ValueError(f"a valid verdict cannot have the cause {self.cause}")
        if self.cause is Cause.TAMPER and self.total != 0:
            raise ValueError("tampering has total 0")
        return self


class Invalid(Record):
    """The attempt does not count: something of ours, or the world, broke. It has no reward and moves no average."""

    kind: Literal["invalid"] = "invalid"
    cause: Cause
    detail: str
    retryable: bool = False

    @model_validator(mode="after")
    def _cause_belongs(self) -> Invalid:
        if self.cause not in INVALID_CAUSES:
            raise ValueError(f"an invalid verdict cannot have the cause {self.cause}")
        return self


Verdict = Annotated[Valid | Invalid, Field(discriminator="kind")]
