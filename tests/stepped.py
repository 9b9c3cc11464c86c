"""An attempt at a task of several steps, in as many executions as it takes: real sandboxes, a real gateway, no store.

A crash is an event that was never written, and everything after it, as in ``resumable``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from resumable import Crash
from scripted import said, served
from turnwise import Turnwise
from woodshed.attempt import Parts, run_attempt
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.harness.loop import Loop
from woodshed.harness.resume import Fine
from woodshed.interfaces import BlobSink, Emit, Grader, Harness, SandboxEngine
from woodshed.measure.resume import joined, past
from woodshed.measure.trajectory import from_events
from woodshed.model import (
    Agent,
    AgentLimits,
    ChangeSet,
    CheckpointRule,
    Event,
    EventKind,
    ModelSpec,
    Outcome,
    Task,
    Valid,
)
from woodshed.model.event import now
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.store.blobs import Blobs
from woodshed.tasks.load import load_task
from woodshed.verify.verifier import FreshVerifier

Cut = int | tuple[EventKind, str, str]
"""An event by its number in the execution, or by its kind, its call and its step."""
STEPS = ("one", "two", "three")
SCRIPT = {
    "one": ("echo a >>log; cat log", "echo b >>log; find . | sort | sha256sum"),
    "two": ("cat seen >>log; cat log", "echo d >>log; ls; cat log | sha256sum"),
    "three": ("echo e >>log; cat log | wc -l",),
}
_TOML = 'schema_version = "1.4"\n[agent]\ntimeout_sec = 60\n' + "".join(
    f'[[steps]]\nname = "{name}"\nmin_reward = 1.0\n' for name in STEPS)
_JUDGED = '#!/bin/bash\ntest "$(tail -n1 log)" = {last} && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'


def a_task(folder: Path, files: Mapping[str, str] | None = None) -> Task:
    """Three steps; the second brings a file and makes another of what stands there."""
    told = {
        "task.toml": _TOML, "instruction.md": "Do it.\n", "environment/workspace/given": "given\n",
        **{f"steps/{name}/instruction.md": f"Do step {name}.\n" for name in STEPS},
        **{f"steps/{name}/solution/solve.sh": "\n".join(SCRIPT[name]) + "\n" for name in STEPS},
        **{f"steps/{name}/tests/test.sh": _JUDGED.format(last=last) for name, last in zip(STEPS, "bde", strict=True)},
        "steps/two/workdir/more": "more\n", "steps/two/workdir/setup.sh": "cat log more | wc -l >seen\n",
        **(files or {}),
    }
    for name, content in told.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return load_task(folder)


@dataclass
class StepScript(Turnwise):
    """The model of whole runs, served by ``turnwise.serving``; ``asked_in`` counts requests by step and turn."""

    script: Mapping[str, Sequence[str]] = field(default_factory=lambda: SCRIPT)
    asked_in: Counter[tuple[str, int]] = field(default_factory=Counter)
    silent_in: frozenset[tuple[str, int]] = frozenset()
    """The first request of these gets no answer."""

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the script says at this place of the step's conversation."""
        step, turn = _place(body["messages"])
        self.asked_in[step, turn] += 1
        self.requests.append(body)
        if (step, turn) in self.silent_in and self.asked_in[step, turn] == 1:
            self._over.wait()
        commands = self.script[step]
        return (said(f"{step} {turn}", ("bash", {"command": commands[turn]})) if turn < len(commands)
                else said("", ("finish", {"summary": "all done"})))


def _place(messages: Sequence[Any]) -> tuple[str, int]:
    step = next(name for name in STEPS if f"Do step {name}." in json.dumps(messages))
    return step, sum(message["role"] == "assistant" for message in messages)


@dataclass
class Judging:
    """The real verifier; ``asked`` counts its verdicts by step."""

    asked: Counter[int] = field(default_factory=Counter)
    real: FreshVerifier = field(default_factory=FreshVerifier)

    async def verify(
        self, task: Task, changes: ChangeSet, blobs: BlobSink, engine: SandboxEngine, emit: Emit
    ) -> Valid:
        """See the real one."""
        verdict = await self.real.verify(task, changes, blobs, engine, emit)
        self.asked[task.step] += 1
        return verdict


@dataclass
class Stepped:
    """One attempt. ``asked`` counts requests by step and turn, ``written`` the events of the last execution."""

    folder: Path
    engine: NativeEngine
    task: Task
    rule: CheckpointRule = field(default_factory=lambda: CheckpointRule(turns=1))
    script: Mapping[str, Sequence[str]] = field(default_factory=lambda: SCRIPT)
    harness: Harness = field(default_factory=Loop)
    verifier: Judging = field(default_factory=Judging)
    grader: Grader | None = None
    events: list[Event] = field(default_factory=list)
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)
    execution: int = 0
    _begun: str = ""

    @property
    def blobs(self) -> Blobs:
        """What outlives an execution, beside its events."""
        return Blobs(self.folder / "blobs")

    async def answer(self, request: web.Request) -> web.Response:
        """What the script says at this place of the step's conversation."""
        step, turn = _place((await request.json())["messages"])
        self.asked[step, turn] += 1
        commands = self.script[step]
        return web.json_response(said(f"{step} {turn}", ("bash", {"command": commands[turn]}))
                                 if turn < len(commands) else said("", ("finish", {"summary": "all done"})))

    @asynccontextmanager
    async def model(self) -> AsyncIterator[ModelSpec]:
        """The model, served."""
        async with served(self) as url:  # type: ignore[arg-type]  # it answers as a Script does
            yield ModelSpec(name="scripted", base_url=url)

    async def execute(self, model: ModelSpec, cut: Cut | None = None) -> Outcome | None:
        """One execution, cut off before the event number ``cut`` is written; None where that ended it."""
        self.execution += 1
        earlier, written = past(self.events), 0

        def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
            nonlocal written
            if written == cut or (isinstance(cut, tuple) and (kind, data.get("call"), self._begun) == cut):
                raise Crash
            if data.get("state") == "step":
                self._begun = data["step"]
            self.events.append(Event(attempt="x", execution=self.execution, seq=written, kind=kind, at=now(),
                                     data=json.loads(json.dumps(data))))
            written += 1

        async def keep() -> None:
            return None

        agent = Agent(name="a", harness="loop", model=model, limits=AgentLimits(turns=100))
        gateway, fine = Gateway(patience=Patience(tries=1)), Fine(keep, self.rule, earlier)
        await fine.look(self.blobs)
        client = gateway.client(
            model, emit, kept=keep, past=fine.past.known if fine.past else (),
            begun=fine.past.begun if fine.past else 0)
        parts = Parts(self.engine, self.harness, self.verifier, client, self.blobs, emit, fine=fine)
        try:
            return await run_attempt(self.task, agent, parts, seed=0)
        except Crash:
            return None
        finally:
            await gateway.close()

    async def run(self, cuts: Sequence[Cut] = ()) -> Outcome:
        """The whole attempt, its executions cut off at ``cuts``."""
        async with self.model() as model:
            for cut in (*cuts, None):
                if (outcome := await self.execute(model, cut)) is not None:
                    return outcome
        raise AssertionError("the last one is not cut off")

    def of(self, kind: EventKind, execution: int | None = None) -> list[dict[str, Any]]:
        """Data of the events of a kind, of one execution or of all."""
        return [e.data for e in self.events if e.kind is kind and execution in (None, e.execution)]

    def of_events(self, kind: EventKind) -> list[Event]:
        """The events of a kind."""
        return [event for event in self.events if event.kind is kind]

    @property
    def whole(self) -> list[Event]:
        """The attempt as its last execution tells it."""
        return joined(self.events, self.execution)

    @property
    def steps(self) -> list[Any]:
        """What was thought and done, without what was told of the machine."""
        told = from_events(self.whole, task="t", agent="a").steps
        return [step.model_copy(update={"index": 0}) for step in told
                if "machine that you work on was lost" not in step.message]
