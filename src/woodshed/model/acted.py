"""Acted attempts: those that somebody outside acts, call by call, as data for services, routes and adapters."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from woodshed.errors import Cause
from woodshed.model.agent import AgentLimits
from woodshed.model.delivery import Name
from woodshed.model.record import Record


class Begin(Record):
    """One attempt at a task is to begin. ``task`` is its name below the folders that are offered.

    ``tools`` are names of tools and of sets of them; ``wait_s`` seconds it may wait for others to end.
    """

    task: Name
    seed: int = Field(default=0, ge=0, le=2**53)
    limits: AgentLimits = AgentLimits()
    tools: tuple[Name, ...] = ("default",)
    wait_s: float = Field(default=0.0, ge=0, le=600)


class ToolTold(Record):
    """A tool that may be called. ``parameters`` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class StepTold(Record):
    """The step of a task of several that is to be acted now, the ``number``-th of ``steps``; ``deadline_s`` seconds."""

    name: str
    number: int
    steps: int
    instruction: str
    deadline_s: float


class Begun(Record):
    """The sandbox stands. ``deadline_s`` seconds from now on the acting ends, and what was done is verified.

    Of a task of several steps that and ``instruction`` are those of the first one.
    """

    id: str
    task: str
    instruction: str
    tools: tuple[ToolTold, ...]
    deadline_s: float
    step: StepTold | None = None


class Act(Record):
    """A call of a tool. What is wrong with it is answered, as it would be to a model."""

    tool: Name
    arguments: dict[str, Any] = {}


class Ended(Record):
    """What the attempt came to. ``reward`` is None, and never 0, where it is not ``valid``; ``cause`` is why."""

    attempt: str
    valid: bool
    reward: float | None = None
    rewards: dict[str, float] = {}
    passed: bool | None = None
    cause: Cause | None = None
    detail: str = ""
    stop: str


class Seen(Record):
    """What a tool answered; ``ended`` where the attempt is over by that: by ``finish``, a limit, or a fault.

    ``step`` where a step was over by that, and is judged, and another one begins: its instruction ends ``content``.
    """

    content: str
    exit_code: int | None = None
    truncated: bool = False
    timed_out: bool = False
    ended: Ended | None = None
    step: StepTold | None = None
