"""One connection of a sandbox that was let in: whose it is, what it may still carry, and how bytes are carried."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from woodshed.sandbox.egress.answers import Answer, Unreadable
from woodshed.sandbox.egress.decisions import Decisions
from woodshed.sandbox.egress.rules import Grant
from woodshed.sandbox.egress.wires import Wire

IDLE_S = 300.0
"""A connection on which nothing moves for so long is ended."""
HEAD_S = 15.0
"""Within this a client has said what it wants."""
_HOLD_S = 0.05
"""What is held back because a secret could begin in it is passed on when nothing follows within this."""


class Ended(Exception):
    """The connection ends by a rule's bound; the message names it."""


@dataclass(slots=True)
class Visit:
    """``name`` and ``port`` are what the sandbox connected to, ``grant`` what lets it. ``passed``: something may."""

    name: str
    port: int
    grant: Grant
    decisions: Decisions
    idle: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    what: str = "tcp"
    passed: bool = False
    sent: int = 0
    received: int = 0
    began: float = field(default_factory=time.monotonic)
    _moved: float = 0.0

    def tell(self, verdict: str, reason: str = "", **more: Any) -> None:
        """One decision about it."""
        self.passed = self.passed or verdict == "allowed"
        self.decisions.made(verdict, self.what, host=self.name, port=self.port, reason=reason, **more)

    def told_end(self, reason: str = "") -> None:
        """It is over, having carried this much; where nothing was let pass there is nothing to tell."""
        if not self.passed:
            return
        self.tell("ended", reason, sent_bytes=self.sent, received_bytes=self.received,
                  seconds=round(time.monotonic() - self.began, 3))

    def moved(self) -> None:
        """Something moved. The clock is put forward now and then: each time would cost more than it tells."""
        now = asyncio.get_running_loop().time()
        if now - self._moved > IDLE_S / 60:
            self._moved = now
            self.idle.reschedule(now + IDLE_S)

    def count_sent(self, count: int) -> None:
        """So much more is to be sent. Raises Ended where the rule admits less."""
        self.grant.sent += count
        most = self.grant.rule.max_sent_bytes
        if most is not None and self.grant.sent > most:
            raise Ended(f"max_sent_bytes = {most} reached")
        self.sent += count
        self.moved()

    def count_received(self, count: int) -> None:
        """So much more has arrived. Raises Ended where the rule admits less."""
        self.grant.received += count
        most = self.grant.rule.max_received_bytes
        if most is not None and self.grant.received > most:
            raise Ended(f"max_received_bytes = {most} reached")
        self.received += count
        self.moved()


async def carry(source: Wire, sink: Wire, count: Callable[[int], None], answer: Answer | None = None) -> None:
    """Bytes go from ``source`` to ``sink`` until they end, which is passed on, too. Raises OSError, Ended."""
    try:
        while data := await _next(source, sink, answer):
            count(len(data))
            await _say(sink, answer.pass_on(data) if answer is not None else data)
    except Unreadable as error:
        raise Ended(str(error)) from None
    if answer is not None:
        await _say(sink, answer.rest())
    await sink.finish()


async def _say(sink: Wire, data: bytes) -> None:
    if data:
        await sink.write(data)


async def _next(source: Wire, sink: Wire, answer: Answer | None) -> bytes:
    """The next bytes; where an end is held back, it goes out when they are long in coming."""
    if answer is None or not answer.holds:
        return await source.read()
    reading = asyncio.ensure_future(source.read())
    try:
        if not (await asyncio.wait([reading], timeout=_HOLD_S))[0]:
            await _say(sink, answer.release())
        return await reading
    finally:
        reading.cancel()


async def both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None], *, until: int = 2) -> None:
    """Run two at once until both have ended, or with ``until`` 1 the second alone; or one failed, which is raised."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    wanted = set(tasks[2 - until:])
    try:
        while wanted and not any(task.done() and task.exception() for task in tasks):
            done, _ = await asyncio.wait([task for task in tasks if not task.done()],
                                         return_when=asyncio.FIRST_COMPLETED)
            wanted -= done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
