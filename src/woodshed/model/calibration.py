"""Calibration: what was found out about a task itself, before anyone's attempts at it are believed."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from woodshed.model.record import Record
from woodshed.model.verdict import Assurance

CALIBRATION_VERSION = 1
"""Of the record's shape. A record of another version is no record."""
STRONG = 0.9
"""A verifier that fails fewer than this share of the variants of its own reference is weak."""


class Label(StrEnum):
    """What a calibration came to. Only SOUND and WEAK tasks are run unasked; the others are quarantined."""

    SOUND = "sound"
    WEAK = "weak"
    FLAKY = "flaky"
    BROKEN_ENVIRONMENT = "broken-environment"
    ACCEPTS_NOTHING = "accepts-nothing"
    ACCEPTS_ANYTHING = "accepts-anything"
    LEAKS_SOLUTION = "leaks-solution"

    @property
    def quarantined(self) -> bool:
        """True where a verdict on this task would say nothing about who attempted it."""
        return self not in (Label.SOUND, Label.WEAK)


class CheckSpec(Record):
    """What a check does to each task. It makes a run a calibration: ``woodshed tasks check`` alone resumes it.

    ``references`` is the least number of attempts by the reference; up to ``doubtful`` are made where the task's files
    speak of time, chance or threads and its tests are quick. ``variants`` bounds how many wrong end states are judged.
    Of known cheats those are tried that fit: "quick" ones, or "all", with those that cost a verifier its whole bound.
    """

    nops: int = Field(default=3, gt=0)
    references: int = Field(default=5, gt=0)
    doubtful: int = Field(default=25, ge=0)
    variants: int = Field(default=20, ge=0)
    cheats: Literal["none", "quick", "all"] = "quick"


class Tries(Record):
    """Attempts of one kind. ``invalid`` ones, which broke by no fault of the task, are no evidence."""

    valid: int = 0
    passed: int = 0
    invalid: int = 0


class Survivor(Record):
    """A wrong end state that the verifier accepts. ``patch`` is what an author reads: from the reference to it."""

    name: str
    kind: str
    path: str
    patch: str


class Measured(Record):
    """A quantity beside the limit that the task declares for it; None where it is unknown, or no limit declared."""

    measured: float | None = None
    declared: float | None = None


class Calibration(Record):
    """A task's calibration, signed off: it stands beside the task as ``calibration.json`` and binds its digest.

    ``killed`` of ``variants`` judged wrong end states were failed; ``strength`` is their share, None where there were
    none. ``flake_rates`` has every test, and how often it disagreed with its own majority; ``flake_rate`` is the
    highest. ``cheats`` tells which known attacks earned a reward. ``act_s`` and ``verify_s`` are 95th percentiles of
    the reference, ``memory_mb`` is the peak of the verifier's sandbox. ``seal`` is the sha256 of all the rest: an
    edit breaks it.
    """

    version: int = CALIBRATION_VERSION
    task: str
    digest: str = Field(description="of the task's folder")
    image: str
    image_digest: str
    verifier: str
    verifier_version: int
    verifier_digest: str
    engine: str
    woodshed: str
    run: str | None
    at: datetime
    label: Label
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    assurance: Assurance | None = None
    nop: Tries = Tries()
    reference: Tries = Tries()
    cheats: dict[str, bool] = {}
    strength: float | None = None
    killed: int = 0
    variants: int = 0
    survivors: tuple[Survivor, ...] = ()
    flake_rate: float | None = None
    flake_rates: dict[str, float] = {}
    act_s: Measured = Measured()
    verify_s: Measured = Measured()
    memory_mb: Measured = Measured()
    seal: str = ""

    def sealed(self) -> Calibration:
        """The same with its seal."""
        return self.model_copy(update={"seal": self.sum()})

    @property
    def intact(self) -> bool:
        """True where the seal is that of the rest."""
        return self.seal == self.sum()

    def sum(self) -> str:
        """sha256 of everything but the seal, as canonical JSON."""
        data = {name: value for name, value in self.to_json().items() if name != "seal"}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
