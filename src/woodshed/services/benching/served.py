"""The gateway in a process of its own, to be measured.

usage: python -m woodshed.services.benching.served UPSTREAM ATTEMPTS     (state: WOODSHED_HOME)

Prints one line: base URLs and keys by attempt, as JSON. It is the whole of it: doors behind a frontend, calls that ask
for token ids, are validated and recorded, and are durable before the program has an answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial

import uvloop

from woodshed.gateway.client import Gateway
from woodshed.gateway.frontend import Frontend
from woodshed.gateway.server import Door
from woodshed.interfaces import ModelRequest, ModelResponse
from woodshed.model import Agent, Attempt, ModelSpec, Run, RunSpec, Sampling, StopReason
from woodshed.model.event import now
from woodshed.services.home import Home, opened
from woodshed.store.commits import Commits
from woodshed.store.eventlog import EventLog
from woodshed.store.ids import attempt_id

RUN = "r-bench"


class Open:
    """A Gate that forbids nothing."""

    def before(self, request: ModelRequest) -> ModelRequest | StopReason:
        """It may."""
        return request

    def after(self, request: ModelRequest, response: ModelResponse) -> None:
        """The record has it already."""

    def failed(self, fault: Exception | None) -> None:
        """The benchmark sees it in the answer."""

    def broken(self, what: str) -> None:
        """So it is with this."""


def planned(home: Home, count: int, spec: ModelSpec) -> list[EventLog]:
    """Logs of so many attempts of one run, each in its first execution."""
    agent = Agent(name="bench", harness="external:command:bench", model=spec)
    attempts = [Attempt(id=attempt_id(RUN, number + 1), run=RUN, task="t", agent="bench", index=number, seed=0)
                for number in range(count)]
    home.store.create_run(Run(id=RUN, spec=RunSpec(tasks=("t",), agents=(agent,)), created_at=now()), attempts)
    return [EventLog(home.store, one.id, home.store.begin_execution(one.id, "bench") or 1) for one in attempts]


async def gateway(upstream: str, count: int) -> None:
    """Doors for so many attempts behind one port, until this process ends."""
    spec = ModelSpec(name="bench", base_url=upstream, capture="vllm", sampling=Sampling(max_tokens=1024))
    with opened() as home:
        front, shed, commits = Frontend(), Gateway(), Commits(home.store)
        await front.open()
        told = []
        for log in planned(home, count, spec):
            client = shed.client(spec, log.emit, settled=partial(commits.keep, log), put=home.blobs.put)
            door = Door(client, Open(), spec.name)
            told.append([front.add(log.attempt, door), door.key])
        print(json.dumps(told), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(gateway(sys.argv[1], int(sys.argv[2])))
