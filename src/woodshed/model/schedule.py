"""Schedule: what is to run, when or upon which files, and what happens to a time that was missed or comes too soon.

Data and decisions, without a clock. The times themselves are told by ``engine/timetable.py``.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, field_validator

from woodshed.model.agent import Agent, ModelSpec
from woodshed.model.deadlines import Deadlines
from woodshed.model.record import Record
from woodshed.model.retry import RetryRules
from woodshed.model.rules import RuleSet
from woodshed.model.sample import Sample

MOST_WAITING = 100
"""Firings of one schedule that may wait for an earlier run; of more, the oldest is skipped."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Missed(StrEnum):
    """What becomes of times at which nobody was there to fire: none of them fires, the latest one, or all."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class Overlap(StrEnum):
    """What becomes of a firing while an earlier run of the schedule is not over."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


class Cron(Record):
    """Times by a cron expression of five fields, in a time zone."""

    kind: Literal["cron"] = "cron"
    expression: str
    zone: str = "UTC"


class Once(Record):
    """One time."""

    kind: Literal["once"] = "once"
    at: datetime

    @field_validator("at")
    @classmethod
    def _aware(cls, at: datetime) -> datetime:
        if at.tzinfo is None:
            raise ValueError("a time needs its zone")
        return at.astimezone(UTC)


class Files(Record):
    """New and changed files of a folder: a batch of them fires when none has changed for ``settle_s``.

    ``pattern`` is relative to ``folder``, which is absolute; ``*`` stays within a folder, ``**`` is any number of them.
    """

    kind: Literal["files"] = "files"
    folder: str
    pattern: str
    settle_s: float = Field(default=2.0, ge=0, le=86_400)


Trigger = Annotated[Cron | Once | Files, Field(discriminator="kind")]


class Standing(Record):
    """A standing order: the run that each firing asks for. ``pinned`` maps task folders to the digests demanded."""

    version: int = 1
    paths: tuple[str, ...] = Field(description="absolute task folders, or folders of them")
    agents: tuple[Agent, ...]
    attempts: int = Field(default=1, gt=0)
    slots: int | None = Field(default=None, gt=0)
    seed: int = 0
    engine: str = "native"
    verifier: str = "fresh"
    rules: RuleSet | None = None
    retry: RetryRules | None = None
    deadlines: Deadlines | None = None
    strict: bool = False
    quarantined: bool = False
    priority: int = 0
    pool: str = ""
    person: ModelSpec | None = None
    pinned: dict[str, str] | None = None
    sample: Sample | None = Field(default=None, description="so many of the tasks, drawn anew for each firing")


class ScheduleState(StrEnum):
    """Life of a schedule. ENDED: its one time has come."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class Schedule(Record):
    """A standing order and its trigger. ``cursor``: every time up to it is accounted for, and none of them fires again.

    A time is missed when it is not fired within ``grace_s`` after its jitter. ``failures`` counts firings that failed
    in a row; at ``most_failures`` the schedule pauses.
    """

    id: str
    project: str = "default"
    name: str
    trigger: Trigger
    order: Standing
    missed: Missed = Missed.ONE
    overlap: Overlap = Overlap.SKIP
    jitter_s: float = Field(default=0.0, ge=0, le=86_400)
    grace_s: float = Field(default=60.0, ge=1, le=31_536_000)
    most_failures: int = Field(default=3, ge=1)
    state: ScheduleState = ScheduleState.ACTIVE
    reason: str | None = None
    cursor: datetime
    failures: int = 0
    created_at: datetime

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("a name is letters, digits, '.', '_' and '-', at most 64 of them")
        return name

    def jittered(self, due: datetime) -> datetime:
        """When the time ``due`` fires: up to ``jitter_s`` later, the same for whoever asks."""
        seed = hashlib.sha256(f"{self.id}\0{due.astimezone(UTC).isoformat()}".encode()).digest()
        return due + timedelta(seconds=self.jitter_s * int.from_bytes(seed[:8], "big") / 2**64)

    def is_late(self, due: datetime, now: datetime) -> bool:
        """Whether the time ``due`` counts as missed by now. Of two times the earlier is never less late."""
        return due + timedelta(seconds=self.jitter_s + self.grace_s) < now


class FiringState(StrEnum):
    """Where a firing stands. PENDING waits for its turn; STARTING is the intent to submit its run, FIRED has it.

    SKIPPED, MISSED and FAILED never got one, and say why.
    """

    PENDING = "pending"
    STARTING = "starting"
    FIRED = "fired"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"


class Trace(Record):
    """A file that fired: its path relative to the folder, what it held, and its size."""

    path: str
    sha256: str
    size_bytes: int


class Firing(Record):
    """One time of a schedule, or ``count`` missed ones from ``since`` to ``due``. Unique by (schedule, due)."""

    schedule: str
    due: datetime
    state: FiringState = FiringState.PENDING
    by: Literal["time", "files", "hand"] = "time"
    count: int = Field(default=1, ge=1)
    since: datetime | None = None
    reason: str | None = None
    run: str | None = None
    files: tuple[Trace, ...] = ()
    created_at: datetime
    settled_at: datetime | None = None

    @property
    def key(self) -> str:
        """The idempotency key of its run."""
        return f"schedule:{self.schedule}:{self.due.astimezone(UTC).isoformat(timespec='microseconds')}"


def admit(overlap: Overlap, earlier: str | None, waiting: int) -> tuple[FiringState, str | None]:
    """What becomes of the oldest pending firing, and why. ``earlier`` is a run that is not over, ``waiting`` counts all

    that pend. PENDING leaves it where it is.
    """
    if earlier is None or overlap is Overlap.ALLOW:
        return FiringState.STARTING, None
    if overlap is Overlap.SKIP:
        return FiringState.SKIPPED, f"{earlier} is not over"
    if waiting > MOST_WAITING:
        return FiringState.SKIPPED, f"{earlier} is not over, and {waiting} firings wait for it"
    return FiringState.PENDING, None
