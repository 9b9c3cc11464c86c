"""The gateway's server over real sockets: a door of one attempt, an upstream that plays a script, and a client."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from localbox import Port
from scripted import Script, served
from woodshed.gateway.call import Patience
from woodshed.gateway.client import Gateway
from woodshed.gateway.server import Door
from woodshed.interfaces import Interceptor, ModelRequest, ModelResponse
from woodshed.model import EventKind, ModelSpec, Sampling, StopReason

HELLO = {"model": "whatever", "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Counting:
    """A Gate that lets ``turns`` calls pass, and keeps what it was told."""

    turns: int | None = None
    passed: list[ModelRequest] = field(default_factory=list)
    answered: list[ModelResponse] = field(default_factory=list)
    faults: list[Exception | None] = field(default_factory=list)

    def before(self, request: ModelRequest) -> ModelRequest | StopReason:
        if self.turns is not None and len(self.passed) >= self.turns:
            return StopReason.TURNS
        self.passed.append(request)
        return request

    def after(self, request: ModelRequest, response: ModelResponse) -> None:
        self.answered.append(response)

    def failed(self, fault: Exception | None) -> None:
        self.faults.append(fault)

    def broken(self, what: str) -> None:
        raise AssertionError(what)


@dataclass
class Outside:
    """What a program that knows the address and the key can do, and what became of it."""

    url: str
    door: Door
    script: Script
    gate: Counting
    session: aiohttp.ClientSession
    events: list[tuple[EventKind, dict[str, Any]]]

    def of(self, kind: EventKind) -> list[dict[str, Any]]:
        return [data for found, data in self.events if found is kind]

    async def post(
        self, body: Any = None, *, key: str | None = None, path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any, Mapping[str, str]]:
        data = body if isinstance(body, bytes) else json.dumps(HELLO if body is None else body).encode()
        sent = {"Authorization": f"Bearer {self.door.key if key is None else key}", **(headers or {})}
        async with self.session.post(self.url + path, data=data, headers=sent) as answer:
            return answer.status, json.loads(await answer.read()), dict(answer.headers)

    async def stream(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The bytes of a streamed answer."""
        sent = {"Authorization": f"Bearer {self.door.key}"}
        async with self.session.post(self.url + path, json={**body, "stream": True}, headers=sent) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            return await answer.read()

    async def events_of(self, body: Mapping[str, Any]) -> list[Any]:
        """The events of a streamed answer; comments as they stand."""
        sent = {"Authorization": f"Bearer {self.door.key}"}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body, headers=sent) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            parts = (await answer.text()).split("\n\n")
        assert parts.pop() == ""
        return [part if part.startswith(":") else "[DONE]" if part == "data: [DONE]"
                else json.loads(part.removeprefix("data: ")) for part in parts]


@asynccontextmanager
async def door(
    *answers: dict[str, Any] | tuple[int, str], turns: int | None = None, grace_s: float = 10.0,
    sampling: Sampling | None = None, interceptors: tuple[Interceptor, ...] = (), script: Script | None = None,
) -> AsyncIterator[Outside]:
    """A door whose model gives ``answers``, on a port of the loopback."""
    script = script or Script(answers)
    gateway, events = Gateway(interceptors, patience=Patience(tries=1)), list[tuple[EventKind, dict[str, Any]]]()
    gate = Counting(turns)
    async with served(script) as upstream, aiohttp.ClientSession() as session:
        spec = ModelSpec(name="scripted", base_url=upstream, sampling=sampling or Sampling(max_tokens=256))
        client = gateway.client(spec, lambda kind, data: events.append((kind, json.loads(json.dumps(data)))))
        one = Door(client, gate, "scripted", grace_s=grace_s)
        async with listening(one) as url:
            try:
                yield Outside(url, one, script, gate, session, events)
            finally:
                await one.close()
                await gateway.close()


@asynccontextmanager
async def listening(one: Door) -> AsyncIterator[str]:
    """The address of ``one`` on the loopback."""
    port = Port(socket.create_server(("127.0.0.1", 0)), one.admit)
    try:
        yield f"http://127.0.0.1:{port.port}"
    finally:
        await port.close()
