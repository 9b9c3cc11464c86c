"""Turns: which requests of programs are one call. An SDK that asks once more gets the answer it missed, not another.

Two requests are one where their bodies are equal, and the later says that it is a retry (``Idempotency-Key``,
``x-stainless-retry-count``), or comes when the earlier one's connection was cut before its answer had arrived. Equal
requests that neither says it of are two: a program may well ask for several answers. Failures are never given twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from woodshed.gateway.dialects import Stamp
from woodshed.interfaces import ModelResponse

GRACE_S = 10.0
"""A call that nobody waits for any more is cut off after this: an SDK asks again within half a second to eight."""
REMEMBERED_S = 600.0
"""So long an answer can be asked for again: the longest that the common SDKs wait for one."""
_MOST = 64


@dataclass(eq=False)
class Turn:
    """One call of the model, and who waits for it. All who ask for it get an answer of the same ``stamp``."""

    task: asyncio.Task[ModelResponse]
    body: bytes
    key: str | None
    stamp: Stamp
    waiting: int = 0
    delivered: bool = False
    at: float = field(default_factory=time.monotonic)

    @property
    def missed(self) -> bool:
        """Whoever asked is gone and has not got the answer."""
        return not self.waiting and not self.delivered


class Turns:
    """The calls of one door, those that run and those of late. A request is known by the digest of all it says."""

    def __init__(self, *, grace_s: float = GRACE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._turns: OrderedDict[int, Turn] = OrderedDict()
        self._by_body: dict[bytes, list[Turn]] = {}
        self.running = 0
        """Calls that have not ended."""
        self._later: dict[Turn, asyncio.TimerHandle] = {}

    def find(self, digest: bytes, headers: Mapping[str, str]) -> Turn | None:
        """The call that a request with this body is another asking for; None where it is a new one."""
        key = headers.get("Idempotency-Key")
        equal = [turn for turn in reversed(self._by_body.get(digest, ())) if self._clock() - turn.at < REMEMBERED_S]
        if missed := [turn for turn in equal if turn.missed and not _failed(turn)]:
            return missed[0]
        same = [turn for turn in equal if key is not None and turn.key == key]
        latest = same or (equal if _is_retry(headers) else [])
        return latest[0] if latest and not _failed(latest[0]) else None

    def begin(
        self, digest: bytes, headers: Mapping[str, str], doing: Coroutine[Any, Any, ModelResponse], stamp: Stamp
    ) -> Turn:
        """A new call, which runs now."""
        turn = Turn(asyncio.get_running_loop().create_task(doing), digest, headers.get("Idempotency-Key"), stamp,
                    at=self._clock())
        turn.task.add_done_callback(self._ended)
        self.running += 1
        self._turns[id(turn)] = turn
        self._by_body.setdefault(digest, []).append(turn)
        while len(self._turns) > _MOST and (old := next((t for t in self._turns.values() if t.task.done()), None)):
            self._forget(old)
        return turn

    def _forget(self, turn: Turn) -> None:
        del self._turns[id(turn)]
        equal = self._by_body[turn.body]
        equal.remove(turn)
        if not equal:
            del self._by_body[turn.body]

    def _ended(self, task: asyncio.Task[ModelResponse]) -> None:
        """What it raised is told by whoever waits; nobody may be left, and that is no complaint."""
        self.running -= 1
        if not task.cancelled():
            task.exception()

    def join(self, turn: Turn) -> None:
        """One more waits for it."""
        turn.waiting += 1
        if (later := self._later.pop(turn, None)) is not None:
            later.cancel()

    def leave(self, turn: Turn, *, delivered: bool) -> None:
        """One fewer does. Where nobody is left and nobody comes back, a call that still runs is cut off."""
        turn.waiting -= 1
        turn.delivered = turn.delivered or delivered
        if not turn.waiting and not turn.task.done():
            self._later[turn] = asyncio.get_running_loop().call_later(self._grace_s, self._cut, turn)

    def _cut(self, turn: Turn) -> None:
        self._later.pop(turn, None)
        if not turn.waiting:
            turn.task.cancel()

    async def close(self) -> None:
        """Cut off what runs. Idempotent."""
        for later in self._later.values():
            later.cancel()
        self._later.clear()
        tasks = [turn.task for turn in self._turns.values()]
        self._turns.clear()
        self._by_body.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failed(turn: Turn) -> bool:
    return turn.task.done() and (turn.task.cancelled() or turn.task.exception() is not None)


def _is_retry(headers: Mapping[str, str]) -> bool:
    count = headers.get("x-stainless-retry-count", "0")
    return count.isascii() and count.isdecimal() and count.strip("0") != ""
