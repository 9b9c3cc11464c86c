"""An attempt of fine durability, without a store: the real loop and gateway, a model over HTTP, files in a folder.

A crash is an event that was never written, and everything after it: what stands in the log then is all that the next
execution has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from localbox import LocalBox
from scripted import a_task, said, served
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.harness.loop import Loop
from woodshed.harness.resume import Fine, Lasting
from woodshed.interfaces import Acting, Harness, Hear, ModelClient, Said, SandboxStats
from woodshed.measure.resume import joined, past
from woodshed.measure.trajectory import from_events
from woodshed.model import (
    Agent,
    AgentLimits,
    ChangeKind,
    ChangeSet,
    CheckpointRule,
    Event,
    EventKind,
    ModelSpec,
    Past,
    SandboxPolicy,
    StopReason,
    Usage,
)
from woodshed.model.agent import Capture, Reasoning
from woodshed.model.event import now
from woodshed.store.blobs import Blobs

Turn = tuple[tuple[str, dict[str, Any]], ...]


class Crash(BaseException):
    """The process is gone."""


class Box(LocalBox):
    """A folder that can be frozen, as nothing runs in it, and that begins with captured changes."""

    async def freeze(self) -> None:
        return None

    thaw = freeze

    async def stats(self) -> SandboxStats:
        return SandboxStats(None, None, None, None, None, 0, 0, 0, None)

    def restore(self, changes: ChangeSet, blobs: Blobs) -> None:
        """Put them in place, over the start."""
        for change in changes.changes:
            if change.kind is ChangeKind.FILE and change.sha256 is not None:
                self.host(change.path).parent.mkdir(parents=True, exist_ok=True)
                with blobs.open(change.sha256) as content:
                    self.host(change.path).write_bytes(content.read())


@dataclass
class World:
    """An attempt at a scripted conversation, in as many executions as it takes. ``leaving`` is what a worker says."""

    folder: Path
    turns: Sequence[Turn]
    rule: CheckpointRule
    policy: SandboxPolicy = field(default_factory=SandboxPolicy)
    limits: AgentLimits = field(default_factory=lambda: AgentLimits(turns=100))
    instruction: str = "Do it."
    wall_s: float = 600.0
    leaving: bool = False
    events: list[Event] = field(default_factory=list)
    asked: Counter[int] = field(default_factory=Counter)
    execution: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    boxes: list[Box] = field(default_factory=list)
    box: type[Box] = Box
    harness: Harness = field(default_factory=Loop)
    task_changes: dict[str, Any] = field(default_factory=dict)
    sent: Sequence[tuple[int, bool, str]] = ()
    """What is said to the agent: after so many turns at the earliest, and where true, when it says that it is done."""
    capture: Capture = "off"
    reasoning: Reasoning = "send"
    person: ModelClient | None = None
    """Plays the task's person."""

    @property
    def blobs(self) -> Blobs:
        """What outlives an execution, beside its events."""
        return Blobs(self.folder / "blobs")

    async def answer(self, request: web.Request) -> web.Response:
        """What the script says at this place of the conversation. An answer that came is never asked for again."""
        body = await request.json()
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        self.asked[turn] += 1
        self.requests.append(body)
        return web.json_response(said(f"turn {turn}", *self.turns[turn]) if turn < len(self.turns)
                                 else said("", ("finish", {"summary": "all done"})))

    async def execute(self, url: str, cut: int | None) -> StopReason | None:
        """One execution, cut off before its event number ``cut`` is written; None where that ended it."""
        self.execution += 1
        earlier, written = past(self.events), 0

        def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
            nonlocal written
            if written == cut:
                raise Crash
            self.events.append(Event(attempt="x", execution=self.execution, seq=written, kind=kind, at=now(),
                                     data=json.loads(json.dumps(data))))
            written += 1

        async def keep() -> None:
            return None

        model = ModelSpec(name="scripted", base_url=url, capture=self.capture, reasoning=self.reasoning)
        agent = Agent(name="a", harness="loop", model=model, limits=self.limits, policy=self.policy)
        gateway, blobs = Gateway(patience=Patience(tries=1)), self.blobs
        box = self.box(self.folder / f"box{self.execution}")
        fine = Fine(keep, self.rule, earlier, leaving=lambda: self.leaving)
        self.boxes.append(box)
        acting = Acting(
            task=a_task(self.folder, instruction=self.instruction, **self.task_changes), agent=agent,
            sandbox=box, emit=emit, seed=0,
            deadline_s=self.wall_s, blobs=blobs, hear=self.hear(earlier), person=self.person,
            model=gateway.client(model, emit, kept=keep, past=earlier.answers if earlier else (),
                                 put=blobs.put))
        try:
            restored = await fine.begin(blobs, emit)
            if restored is not None:
                box.restore(restored[0], blobs)
            stop = await Lasting(self.harness, fine, blobs).act(acting)
        except Crash:
            return None
        finally:
            await gateway.close()
        self.usage = acting.usage
        return stop

    def hear(self, earlier: Past | None) -> Hear | None:
        """How an execution hears what was sent: what the record has not, once."""
        told = {number for heard in (earlier.heard if earlier else {}).values() for number, _ in heard}

        async def hear(turn: int, finished: bool) -> Sequence[Said]:
            new = [Said(number, text) for number, (at, end, text) in enumerate(self.sent, 1)
                   if number not in told and turn >= at and end is finished]
            told.update(said.message for said in new)
            return new

        return hear if self.sent else None

    async def run(self, cuts: Sequence[int]) -> StopReason:
        """The whole attempt, its executions cut off at ``cuts``."""
        async with served(self) as url:  # type: ignore[arg-type]  # it answers as a Script does
            for cut in (*cuts, None):
                if (stop := await self.execute(url, cut)) is not None:
                    return stop
        raise AssertionError("the last one is not cut off")

    def of(self, kind: EventKind, execution: int | None = None) -> list[dict[str, Any]]:
        """Data of the events of a kind, of one execution or of all."""
        return [e.data for e in self.events if e.kind is kind and execution in (None, e.execution)]

    @property
    def steps(self) -> list[Any]:
        """What was thought and done, without what was told of the machine."""
        told = from_events(joined(self.events, self.execution), task="t", agent="a").steps
        return [step.model_copy(update={"index": 0}) for step in told
                if "machine that you work on was lost" not in step.message]
