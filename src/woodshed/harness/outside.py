"""outside: whoever decides is elsewhere. Its calls come one by one, and are carried out like those of a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from woodshed.errors import Cancelled
from woodshed.harness.hands import Hands
from woodshed.harness.kit import Kit
from woodshed.harness.limits import Meter
from woodshed.harness.shelf import Shelf
from woodshed.harness.tools import chosen
from woodshed.interfaces import Acting, ToolResult, ToolSpec
from woodshed.model import StopReason, Task, ToolCall

NAME = "outside"
"""Of the agents in the record. It answers to no plugin: nobody can run it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answered:
    """What a tool gave; ``over``: the attempt takes no more calls."""

    result: ToolResult
    over: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """The sandbox stands, and ``task`` (of several steps: one of them) is to be acted for at most ``deadline_s``.

    ``over`` is done when that is over, for whatever reason.
    """

    task: Task
    tools: Sequence[ToolSpec]
    deadline_s: float
    over: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    call: ToolCall
    answer: asyncio.Future[Answered]


class Outside:
    """A harness of one attempt, in one event loop. Who is silent for ``idle_s`` has left: that is nobody's work.

    ``standing`` is what is acted, or was last; ``next`` comes to be what is acted after that: the task, or a next step.
    """

    needs_model = False

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._coming: asyncio.Queue[_Waiting | None] = asyncio.Queue()
        self._count, self._ending = 0, False
        self._loop = asyncio.get_running_loop()
        self.standing: Standing | None = None
        self.next: asyncio.Future[Standing] = self._loop.create_future()
        self._left: asyncio.Future[str] = self._loop.create_future()

    async def act(self, acting: Acting) -> StopReason:
        """FINISHED, or the limit that was reached. Raises Cancelled where whoever acted has left."""
        if self._left.done():
            raise Cancelled(self._left.result())
        if self._ending:  # of the steps after the one in which the end was said nothing is acted
            return StopReason.FINISHED
        meter, kit = Meter(acting), Kit(acting.task, Shelf(acting.blobs), acting.emit)
        hands = Hands(acting, chosen(acting.agent.tools), meter, kit)
        standing = self.standing = Standing(acting.task, hands.specs, acting.deadline_s, self._loop.create_future())
        begun, self.next = self.next, self._loop.create_future()
        begun.set_result(standing)
        try:
            return await self._until_over(hands, meter, kit)
        finally:
            standing.over.set_result(None)
            while not self._coming.empty():  # calls that nobody carries out, and is to carry out in a later step
                self._coming.get_nowait()
            await hands.close()

    async def _until_over(self, hands: Hands, meter: Meter, kit: Kit) -> StopReason:
        while (waiting := await self._unless_left(self._next())) is not None:
            result = await self._unless_left(hands.do(waiting.call))
            kit.note(waiting.call, result)
            stop = StopReason.FINISHED if result.done else meter.no_more_calls()
            if not waiting.answer.done():
                waiting.answer.set_result(Answered(result, stop is not None))
            if stop is not None:
                return stop
        return StopReason.FINISHED

    # -- for whoever acts ----------------------------------------------------------------------------------------------

    def call(self, tool: str, arguments: dict[str, Any]) -> asyncio.Future[Answered]:
        """Have a call carried out after those before it. It is never answered where the acting ends before."""
        self._count += 1
        waiting = _Waiting(ToolCall(id=f"t{self._count:04d}c001", name=tool, arguments=arguments),
                           self._loop.create_future())
        if self.standing is not None and not self.standing.over.done():
            self._coming.put_nowait(waiting)
        return waiting.answer

    def end(self) -> None:
        """What was done is to be verified, after the calls that were made; no step is acted any more. Idempotent."""
        self._ending = True
        self._coming.put_nowait(None)

    def leave(self, why: str) -> None:
        """Nobody acts any more: what runs is cut off, and nothing is verified. Idempotent."""
        if not self._left.done():
            self._left.set_result(why)

    async def _next(self) -> _Waiting | None:
        try:
            async with asyncio.timeout(self._idle_s):
                return await self._coming.get()
        except TimeoutError:
            raise Cancelled(f"nobody acted for {self._idle_s:g} s") from None

    async def _unless_left(self, doing: Coroutine[Any, Any, T]) -> T:
        work = asyncio.ensure_future(doing)
        coming: set[asyncio.Future[Any]] = {work, self._left}
        try:
            await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            if self._left.done():  # whatever came at the same moment: it was left
                raise Cancelled(self._left.result())
            return work.result()
        finally:
            if self._left.done() or not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError, Exception):  # what it came to is of no concern any more
                    await work
