"""What one execution is made of, and the facts of it that survive a fault."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from woodshed.attempt.stages import Ledger, Stages
from woodshed.errors import ModelRateLimited, WoodshedError
from woodshed.harness.resume import Fine
from woodshed.interfaces import (
    BlobSink,
    Emit,
    Grader,
    Harness,
    Hear,
    ModelClient,
    Sandbox,
    SandboxEngine,
    Serve,
    Verifier,
)
from woodshed.model import Deadlines, Invalid, Outcome, StopReason, Usage, Valid, Verdict
from woodshed.model.retry import Broken
from woodshed.model.stepwise import Reached


@dataclass(slots=True)
class Parts:
    """What one execution is made of. Everything here is live; what it leaves behind is the events and the Outcome."""

    engine: SandboxEngine
    harness: Harness
    verifier: Verifier
    model: ModelClient | None
    blobs: BlobSink
    emit: Emit
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Acting and verifying take a slot; opening a sandbox does not, so that the next attempt's stands ready."""
    grader: Grader | None = None
    """Reward rules, where the run or the task has any."""
    graded_in: Ledger | None = None
    """Of the sandboxes in which something is measured for the rules."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    fine: Fine | None = None
    """Of fine durability: what the attempt goes on with, and what it leaves for others to go on with."""
    serve: Serve | None = None
    """Makes servers of ``model``, for harnesses that run programs of others."""
    hear: Hear | None = None
    """What is sent to the attempt while it works, for harnesses that hear."""
    person: ModelClient | None = None
    """Plays the task's person."""
    ground: SandboxEngine | None = None
    """Of a fork: makes the agent's sandbox, in which it goes on."""
    reached: Reached = field(default_factory=Reached)
    """Of a fork of several steps: those that were over, and whether one had begun."""


@dataclass(slots=True)
class Progress:
    """Facts that survive a fault: what the Outcome needs even when a stage broke."""

    stages: Stages
    sandbox: Ledger
    """Of the agent's sandbox; the verifier's have their own."""
    stop: StopReason = StopReason.ERROR
    usage: Usage = field(default_factory=Usage)
    clearing: asyncio.Task[None] | None = None
    judged: dict[str, Valid] = field(default_factory=dict)
    """Of several steps, those that were."""

    def outcome(self, verdict: Verdict, fault: WoodshedError | None = None) -> Outcome:
        """The facts, with what they came to."""
        broke = None
        if fault is not None and isinstance(verdict, Invalid):
            asked = fault.retry_after_s if isinstance(fault, ModelRateLimited) else None
            broke = Broken(cause=verdict.cause, stage=self.stages.broke_at, retryable=fault.retryable,
                           asked_s=asked or 0.0)
        return Outcome(verdict=verdict, stop=self.stop, usage=self.usage, stages_s=self.stages.seconds,
                       used=self.stages.used, broke=broke)

    def clear(self, sandbox: Sandbox) -> asyncio.Task[None]:
        """The one closing of the agent's sandbox, which goes on whoever stops waiting for it."""
        if self.clearing is None:
            self.clearing = asyncio.create_task(sandbox.close())
        return self.clearing
