"""The load: programs that ask and wait, each by one connection that stays, at as little cost to the machine as may be.

Its requests are conversations with tools that grow by a turn each, as an agent's do, and then begin anew.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast
from urllib.parse import urlsplit

from woodshed.errors import EnvironmentFault

TURNS = 8
"""Of a conversation."""
_SYSTEM = "You are a careful engineer who mends programs. " * 24
_RESULT = "line of what the command printed, as long as such lines are\n" * 10
_TOOLS = [{"type": "function", "function": {
    "name": "bash", "description": "Run a command and give back what it printed.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}]
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a lane asks: a base URL that ends in ``/v1``, and a key."""

    url: str
    key: str = ""


def conversation(number: int, *, stream: bool = False) -> Iterator[bytes]:
    """The bodies of one, turn by turn."""
    told: list[dict[str, object]] = [
        {"role": "system", "content": _SYSTEM}, {"role": "user", "content": f"This is conversation {number:06d}."}]
    for turn in range(TURNS):
        yield json.dumps({"model": "bench", "messages": told, "tools": _TOOLS, "max_tokens": 512, "temperature": 1.0,
                          "stream": stream}).encode()
        call = {"id": f"call_{turn}", "type": "function",
                "function": {"name": "bash", "arguments": json.dumps({"command": f"cat file_{turn}.py"})}}
        told = [*told, {"role": "assistant", "content": "Let me look at that file first.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"call_{turn}", "content": _RESULT}]


def requests(target: Target, *, stream: bool = False) -> Iterator[bytes]:
    """Whole requests, without end."""
    parts = urlsplit(target.url)
    head = (f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Accept: */*\r\n" + (f"Authorization: Bearer {target.key}\r\n" if target.key else ""))
    while True:
        for body in conversation(next(_NUMBERS), stream=stream):
            yield f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Lane(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._size, self._whole = 0, -1
        self._waiting: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, target: Target) -> Lane:
        """Connected. Raises OSError."""
        parts = urlsplit(target.url)
        _, lane = await asyncio.get_running_loop().create_connection(cls, parts.hostname or "", parts.port or 80)
        return lane

    async def ask(self, request: bytes) -> bytes:
        """The whole answer. Raises EnvironmentFault for any but 200."""
        assert self._transport is not None
        self._parts, self._size, self._whole = [], 0, -1
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        told = await self._waiting
        if not told.startswith(b"HTTP/1.1 200"):
            raise EnvironmentFault(f"an answer was none: {told[:300].decode(errors='replace')}")
        return told

    def close(self) -> None:
        """Idempotent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its class

    def data_received(self, data: bytes) -> None:
        """A piece of the answer."""
        self._parts.append(data)
        self._size += len(data)
        if self._whole < 0 and not self._head():
            return
        if (self._whole == 0 and data.endswith(b"0\r\n\r\n")) or 0 < self._whole <= self._size:
            self._done(b"".join(self._parts))

    def _head(self) -> bool:
        """Whether the head is there; then it is known how long the answer is, 0 for one in chunks."""
        told = b"".join(self._parts)
        end = told.find(b"\r\n\r\n")
        if end < 0:
            return False
        length = _LENGTH.search(told, 0, end)
        self._whole = end + 4 + int(length[1]) if length else 0
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits waits for nothing."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(EnvironmentFault("a connection was cut before its answer was whole"))

    def _done(self, told: bytes) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(told)


async def timed(target: Target, samples: int) -> list[float]:
    """Milliseconds of so many requests, one after another, on one connection. The first is thrown away."""
    lane, asking, taken = await Lane.open(target), requests(target), list[float]()
    try:
        for number in range(samples + 1):
            request = next(asking)
            began = time.perf_counter()
            await lane.ask(request)
            if number:
                taken.append(1000 * (time.perf_counter() - began))
    finally:
        lane.close()
    return taken


async def loaded(targets: Sequence[Target], lanes: int, total: int, *, stream: bool = False) -> float:
    """Seconds that so many requests take, by so many lanes at once, evenly over the targets."""
    left = iter(range(total))
    asking = [(await Lane.open(target), requests(target, stream=stream))
              for target in (targets[number % len(targets)] for number in range(lanes))]

    async def drive(lane: Lane, bodies: Iterator[bytes]) -> None:
        for _ in left:
            await lane.ask(next(bodies))

    began = time.perf_counter()
    try:
        await asyncio.gather(*(drive(*one) for one in asking))
        return time.perf_counter() - began
    finally:
        for lane, _ in asking:
            lane.close()
