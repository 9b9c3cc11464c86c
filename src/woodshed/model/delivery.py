"""What the rollout service is asked and answers, as data: its clients and its routes share these records."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from woodshed.errors import Cause
from woodshed.model.agent import AgentLimits, Sampling
from woodshed.model.deadlines import Deadlines
from woodshed.model.record import Record
from woodshed.model.retry import RetryRules
from woodshed.model.rollout import CaptureLevel, Rollout
from woodshed.model.sample import Sample

MOST_ATTEMPTS = 1024
"""Of one task in one request: a group is one answer, and is delivered in one piece."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
Numbered = Annotated[int, Field(ge=0, le=2**53)]
Version = Numbered | Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
"""Of a policy: a number that grows, or a name whose order is that in which names were announced."""


_ONE_OR_MANY = BeforeValidator(lambda said: [said] if isinstance(said, str) else said,
                               json_schema_input_type=Name | list[Name])


class OnStale(StrEnum):
    """What becomes of attempts whose policy is too old: they go on, undelivered, or are called off."""

    KEEP = "keep"
    CANCEL = "cancel"


class Address(Record):
    """An endpoint that the service does not know by name; its operator allows some."""

    base_url: Name
    model: Name


class Asked(Record):
    """A request: ``n`` attempts of each task, one group a task.

    ``tasks`` are named relative to the folders that the service was given; a folder of tasks means all of them.
    ``policy_version`` None: what is current of the endpoint. A group whose policy is more than ``max_staleness``
    versions behind is never delivered. With ``capture`` its endpoint must tell token ids and logprobs. With ``sample``
    so many of the tasks are drawn by the ``seed``, by how much a group of each is expected to teach.
    """

    tasks: Annotated[list[Name], Field(min_length=1, max_length=10_000), _ONE_OR_MANY]
    n: int = Field(default=1, ge=1, le=MOST_ATTEMPTS)
    agent: Name = "loop"
    endpoint: Name | Address | None = None
    sampling: Sampling | None = None
    limits: AgentLimits | None = None
    capture: bool = False
    policy_version: Version | None = None
    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    on_stale: OnStale = OnStale.KEEP
    deadlines: Deadlines = Deadlines()
    retry: RetryRules = RetryRules()
    seed: int = Field(default=0, ge=0, le=2**53)
    sample: Sample | None = None
    priority: int = Field(default=0, ge=-1000, le=1000)
    idempotency_key: Key | None = None


class Count(Record):
    """Groups of a request by what became of them. STALE ones are complete, or will be, and are never delivered."""

    partial: int = 0
    ready: int = 0
    leased: int = 0
    acked: int = 0
    stale: int = 0


class AttemptTold(Record):
    """An attempt as it stands. ``reward`` is None wherever there is none; ``valid`` is None while it is open.

    ``stage`` is where it broke, or what it is at while it runs.
    """

    attempt: str
    task: str
    agent: str
    index: int
    state: str
    executions: int = 0
    valid: bool | None = None
    reward: float | None = None
    rewards: dict[str, float | None] = {}
    passed: bool | None = None
    cause: Cause | None = None
    stage: str | None = None
    stop: str | None = None


class RequestTold(Record):
    """A request as it stands. ``behind`` counts how many versions its policy is older than the current one."""

    id: str
    state: str
    reason: str | None = None
    agent: str
    endpoint: str | None = None
    policy_version: int | str | None = None
    behind: int | None = None
    max_staleness: int | None = None
    stale: bool = False
    created_at: datetime
    attempts: int
    done: int
    groups: Count


class RequestWhole(RequestTold):
    """The same, with each attempt, in planned order, and how many of them are valid.

    ``warnings``, once it is over, say in which way what broke differs from what is left (selection bias).
    """

    valid: int
    warnings: tuple[str, ...] = ()
    rollouts: tuple[AttemptTold, ...]


class Requested(Record):
    """Requests, the newest first; ``before`` asks for those that came before the last one."""

    requests: tuple[RequestTold, ...]
    before: str | None = None


class Made(Record):
    """What a request came to be: its id, and those of its attempts in planned order. ``created``: by this very call.

    ``notes`` tell of tasks that were left out, and of what does not hold though it may look so.
    """

    id: str
    attempts: tuple[str, ...]
    created: bool
    notes: tuple[str, ...] = ()


class Member(Rollout):
    """A rollout of a delivered group. ``advantage`` is its reward over the group's baseline; None where there is none.

    ``prompt`` is the conversation that it began with, secrets masked; ``stage`` is where an invalid one broke.
    """

    advantage: float | None = None
    stage: str | None = None
    prompt: tuple[dict[str, Any], ...] = ()


class Delivered(Record):
    """A whole group, leased for ``lease_s``. ``delivery`` names this very delivery: acknowledge it, or lose it.

    ``baseline`` and ``deviation`` are of the ``valid`` rollouts with a reward alone, None where there is none.
    """

    delivery: str
    group: str
    request: str
    task: str
    agent: str
    place: int
    deliveries: int
    lease_s: float
    policy_version: int | str | None = None
    behind: int | None = None
    size: int
    valid: int
    baseline: float | None
    deviation: float | None
    capture_level: CaptureLevel
    rollouts: tuple[Member, ...]


class Deliveries(Record):
    """What a consumer got. ``over``: nothing more will ever come of what it asked for."""

    groups: tuple[Delivered, ...]
    over: bool


class Settle(Record):
    """Deliveries to acknowledge, to give back, or to keep for ``lease_s`` more."""

    deliveries: Annotated[list[Name], Field(min_length=1, max_length=1000)]


class Renew(Settle):
    """Deliveries to keep for ``lease_s`` from now on."""

    lease_s: float = Field(default=600.0, gt=0, le=86_400)


class Settled(Record):
    """Which deliveries it was done for, and which are another's by now, or were settled otherwise before."""

    done: tuple[str, ...]
    lost: tuple[str, ...]


class Announced(Record):
    """The version of a policy that an endpoint serves now. ``back``: it is an older one, after a trainer's restart."""

    version: Version
    back: bool = False


class PolicyTold(Record):
    """The current policy of an endpoint, and the requests that its announcement has made stale."""

    endpoint: str
    version: int | str
    stale: tuple[str, ...] = ()
