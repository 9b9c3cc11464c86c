"""A model server that plays a script over real HTTP, and an attempt for a harness to act in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from localbox import LocalBox
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.harness.played import apart
from woodshed.interfaces import Acting, BlobSink, Harness, Sandbox
from woodshed.measure.trajectory import from_events
from woodshed.model import (
    Agent,
    AgentLimits,
    EnvironmentSpec,
    Event,
    EventKind,
    ModelSpec,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    VerifierSpec,
)
from woodshed.model.event import now


def said(content: str = "", *calls: tuple[str, Any], finish: str = "stop", tokens: int = 10) -> dict[str, Any]:
    """One answer of the server. Arguments that are a string are sent as they are: well or badly written."""
    tool_calls = [{"id": "same", "type": "function", "function": {
        "name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}}
        for name, arguments in calls]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = tool_calls
    return {"choices": [{"message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": tokens, "completion_tokens": 1}}


def bash(command: str) -> dict[str, Any]:
    return said("", ("bash", {"command": command}))


def fenced(command: str) -> dict[str, Any]:
    return said(f"```bash\n{command}\n```")


Said = dict[str, Any] | tuple[int, str]
Given = Said | Callable[[dict[str, Any]], Said]


@dataclass
class Attempt:
    """What one acting left behind."""

    box: Sandbox
    acting: Acting
    stop: StopReason
    requests: list[dict[str, Any]]
    events: list[Event]

    def of(self, kind: EventKind) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind is kind]

    @property
    def results(self) -> list[str]:
        return [data["content"] for data in self.of(EventKind.TOOL_RESULT)]

    @property
    def trajectory(self) -> Trajectory:
        return from_events(self.events, task="t", agent="a")


@dataclass
class Script:
    """The server's answers in turn; the last one is repeated. A pair is an HTTP status with an error body.

    A function makes the answer from the request.

    ``hang`` is a request (from 1) after which nothing is answered any more.
    """

    answers: Sequence[Given]
    hang: int | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        if self.hang is not None and len(self.requests) >= self.hang:
            await asyncio.sleep(60)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if callable(answer):
            answer = answer(self.requests[-1])
        if isinstance(answer, tuple):
            return web.Response(status=answer[0], text=answer[1])
        return web.json_response(answer)


@asynccontextmanager
async def served(script: Script) -> AsyncIterator[str]:
    """The base URL of a server that plays ``script``."""
    app = web.Application(client_max_size=100_000_000)
    app.router.add_post("/v1/chat/completions", script.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def a_task(folder: Path, **changed: Any) -> Task:
    return Task(**{"id": "t", "folder": folder, "digest": "0", "instruction": "Do it.",
                   "environment": EnvironmentSpec(), "verifier": VerifierSpec(tests=folder)} | changed)


async def act(
    harness: Harness, folder: Path, *answers: Given, limits: Mapping[str, Any] | None = None,
    dialect: str = "auto", context_tokens: int | None = None, max_tokens: int = 256, deadline_s: float = 60.0,
    box: Sandbox | None = None, task: Task | None = None, hang: int | None = None, patience: Patience | None = None,
    tools: Sequence[str] = ("default",), blobs: BlobSink | None = None, person: Script | None = None,
) -> Attempt:
    """Let ``harness`` act against a server that gives ``answers``; everything it did comes back."""
    script = Script(answers, hang)
    gateway = Gateway(patience=patience or Patience(tries=1))
    events: list[Event] = []

    def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
        events.append(Event(attempt="x", execution=1, seq=len(events), kind=kind, at=now(),
                            data=json.loads(json.dumps(data, allow_nan=False))))

    async with served(script) as url, served(person or Script(())) as other:
        spec = ModelSpec(name="scripted", base_url=url, sampling=Sampling(max_tokens=max_tokens),
                         context_tokens=context_tokens)
        agent = Agent(name="a", harness="h", model=spec, limits=AgentLimits(**dict(limits or {})), dialect=dialect,
                      tools=tuple(tools))
        acting = Acting(task=task or a_task(folder), agent=agent, sandbox=box or LocalBox(folder / "box"),
                        model=gateway.client(spec, emit) if answers else None, emit=emit, seed=0,
                        deadline_s=deadline_s, serve=gateway.serve, blobs=blobs)
        if person is not None:
            acting.person = gateway.client(ModelSpec(name="person", base_url=other), apart(emit))
        try:
            stop = await harness.act(acting)
        finally:
            await gateway.close()
    return Attempt(acting.sandbox, acting, stop, script.requests, events)
