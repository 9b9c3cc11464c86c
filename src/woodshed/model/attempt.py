"""Run, Attempt, Execution: who tries what, how often, and how it went."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from woodshed.model.agent import Agent, ModelSpec
from woodshed.model.calibration import CheckSpec
from woodshed.model.deadlines import Deadlines
from woodshed.model.fork import ForkSpec
from woodshed.model.record import Record
from woodshed.model.retry import Broken, RetryRules
from woodshed.model.rules import RuleSet
from woodshed.model.sample import Drawn
from woodshed.model.used import Used, total
from woodshed.model.verdict import Verdict


class StopReason(StrEnum):
    """Why the acting part of an attempt ended. All but ERROR and CANCELLED leave work that is verified."""

    FINISHED = "finished"
    TURNS = "turn_limit"
    TOOL_CALLS = "tool_call_limit"
    TOKENS = "token_limit"
    WALL = "wall_limit"
    CONTEXT = "context_limit"
    STUCK = "stuck"
    NO_ACTION = "no_action"
    SOLUTION_FAILED = "solution_failed"
    EXITED = "exited"
    ERROR = "error"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    """Life of an attempt. PENDING and RUNNING are open; DONE has a verdict."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"


class Usage(Record):
    """Counts of one attempt; tokens are those the endpoint reported."""

    turns: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, more: Usage) -> Usage:
        """The sum of both."""
        mine = self.model_dump()
        return Usage(**{name: count + mine[name] for name, count in more.model_dump().items()})


class Outcome(Record):
    """What one execution came to. ``stages_s`` is wall seconds by stage: prepare, act, capture, verify, close.

    ``used`` is what its sandboxes took, by stage: those of ``verify`` and ``grade`` are the verifier's, the others tell
    of the agent's own (its peaks stand where it was captured and closed). ``broke`` is the fault of ours behind an
    invalid verdict, and where it struck.
    """

    verdict: Verdict
    stop: StopReason
    usage: Usage = Usage()
    stages_s: dict[str, float] = {}
    used: dict[str, Used] = {}
    broke: Broken | None = None

    @property
    def used_in_all(self) -> Used:
        """What its sandboxes took together."""
        return total(self.used.values())


class Attempt(Record):
    """One independent try of one task by one agent. ``index`` counts 0..n-1 within (task, agent)."""

    id: str
    run: str
    project: str = "default"
    task: str
    agent: str
    index: int = Field(ge=0)
    seed: int
    state: AttemptState = AttemptState.PENDING
    executions: int = 0
    outcome: Outcome | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class RunSpec(Record):
    """What was asked: task folders, agents, attempts of each. Enough to resume without the command line."""

    version: int = 1
    tasks: tuple[str, ...] = Field(description="absolute task folders")
    digests: dict[str, str] = Field(default={}, description="task folder → digest at the start of the run")
    groups: dict[str, str] = Field(default={}, description="task id → group, for closing tables")
    agents: tuple[Agent, ...]
    attempts: int = Field(default=1, gt=0)
    concurrency: int = Field(default=2, gt=0)
    seed: int = 0
    person: ModelSpec | None = Field(default=None, description="plays the persons of tasks that have one")
    engine: str = "native"
    verifier: str = "fresh"
    retry: RetryRules = RetryRules()
    deadlines: Deadlines = Deadlines()
    rules: RuleSet | None = Field(default=None, description="reward rules, in the place of any task's own")
    check: CheckSpec | None = Field(default=None, description="given: the run is a calibration of its tasks")
    fork: ForkSpec | None = Field(default=None, description="given: its attempts go on from a step of another one")
    drawn: Drawn | None = Field(default=None, description="given: the tasks are a sample, drawn like this")


class RunState(StrEnum):
    """Life of a run. QUEUED: no worker has begun it yet. INTERRUPTED and PAUSED runs can go on; who paused said why.

    CANCELLED is over like FINISHED, with attempts that never got a result.
    """

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class Run(Record):
    """Tasks × agents × attempts, and who owns it."""

    id: str
    project: str = "default"
    spec: RunSpec
    state: RunState = RunState.RUNNING
    executor: str | None = None
    reason: str | None = Field(default=None, description="why it is paused, or cancelled")
    created_at: datetime
    finished_at: datetime | None = None
