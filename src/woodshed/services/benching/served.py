"""The gateway in a process of its own, to be measured.

usage: python -m woodshed.services.benching.served UPSTREAM ATTEMPTS     (state: WOODSHED_HOME)

Prints one line: base URLs and keys by attempt, as JSON. Each is acted by the harness of programs of others, with all
that an attempt of a run has: a door of its own on a port of its own, a gate that counts and reads what is said,
calls that ask for token ids, are validated and recorded, and are durable before the program has an answer. Only the
program is outside: its sandbox's port is one of this machine's loopback, so that the load can reach it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvloop

from woodshed import plugins
from woodshed.gateway.client import Gateway
from woodshed.interfaces import Acting, Admit, Listener, Process, Sandbox
from woodshed.model import (
    Agent,
    AgentLimits,
    Attempt,
    EnvironmentSpec,
    ModelSpec,
    Run,
    RunSpec,
    Sampling,
    Task,
    VerifierSpec,
)
from woodshed.model.event import now
from woodshed.sandbox.egress.seats import Seats
from woodshed.sandbox.native.ports import Port
from woodshed.services.home import Home, opened
from woodshed.store.commits import Commits
from woodshed.store.eventlog import EventLog
from woodshed.store.ids import attempt_id

RUN, HARNESS = "r-bench", "external:command:bench"
_LIMITS = AgentLimits(turns=10**9, tool_calls=10**9, wall_s=10**9)


class Outside:
    """In a sandbox's place: what its harness asks of it, for a program that runs elsewhere and never ends."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self.told: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        """The base URL and the key that the program was given."""

    async def listen(self, admit: Admit, *, port: int = 0) -> Listener:
        """A sandbox's own port, but for where it is."""
        return Port(socket.create_server(("127.0.0.1", port)), admit, self._seats)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Nobody reads it."""

    async def start(self, argv: object, *, env: Mapping[str, str], **given: Any) -> Process:
        """It runs already."""
        self.told.set_result((env["OPENAI_BASE_URL"], env["OPENAI_API_KEY"]))
        return cast(Process, self)

    async def wait(self) -> int:
        """Nobody ends it."""
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        return await ended

    async def kill(self) -> None:
        """It is not ours."""


def planned(home: Home, count: int, agent: Agent) -> list[EventLog]:
    """Logs of so many attempts of one run, each in its first execution."""
    attempts = [Attempt(id=attempt_id(RUN, number + 1), run=RUN, task="t", agent=agent.name, index=number, seed=0)
                for number in range(count)]
    home.store.create_run(Run(id=RUN, spec=RunSpec(tasks=("t",), agents=(agent,)), created_at=now()), attempts)
    return [EventLog(home.store, one.id, home.store.begin_execution(one.id, "bench") or 1) for one in attempts]


async def gateway(upstream: str, count: int) -> None:
    """So many attempts that act, until this process ends."""
    spec = ModelSpec(name="bench", base_url=upstream, capture="vllm", sampling=Sampling(max_tokens=1024))
    agent = Agent(name="bench", harness=HARNESS, model=spec, limits=_LIMITS)
    task = Task(id="t", folder=Path(), digest="", instruction="Ask.", environment=EnvironmentSpec(),
                verifier=VerifierSpec(tests=Path()))
    harness, shed, seats = plugins.harness(HARNESS), Gateway(), Seats()
    with opened() as home:
        commits, acting, outside = Commits(home.store), [], []
        for log in planned(home, count, agent):
            client = shed.client(spec, log.emit, settled=partial(commits.keep, log), put=home.blobs.put)
            outside.append(Outside(seats))
            acting.append(asyncio.create_task(harness.act(Acting(
                task=task, agent=agent, sandbox=cast(Sandbox, outside[-1]), model=client, emit=log.emit, seed=0,
                deadline_s=agent.limits.wall_s or 0.0, blobs=home.blobs, serve=shed.serve))))
        print(json.dumps(await asyncio.gather(*(one.told for one in outside))), flush=True)
        await asyncio.gather(*acting)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(gateway(sys.argv[1], int(sys.argv[2])))
