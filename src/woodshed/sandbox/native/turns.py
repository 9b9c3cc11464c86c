"""How many commands may hold pipes at once: so many that this process keeps descriptors for everything else."""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from weakref import WeakKeyDictionary

_SHARE = 8
"""A command holds up to seven descriptors while it starts, two later; at most all of them may be just starting."""
_LEAST, _MOST = 4, 8192


class Turns:
    """Those who come when all are taken wait, first come first served. One of these serves all boxes of a loop."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._short: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Whether there was one: then it is the caller's, to give back."""
        if self._free <= 0:
            return False
        self._free -= 1
        self._taken += 1
        return True

    async def wait(self) -> None:
        """Take the next one that comes free."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it came, but too late
            raise

    async def fell_short(self) -> bool:
        """Whether one of the others has come back meanwhile: who has a turn but found no descriptor may try again.

        What is free is guessed from the limit, and others of this process may hold more than the guess leaves. False
        at once where no other holds a turn that could give any back. Those who fall short go before those who wait.
        """
        if self._taken - sum(not again.done() for again in self._short) <= 1:
            return False
        again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._short.append(again)
        await again
        return True

    def give_back(self) -> None:
        """Another's turn."""
        self._taken -= 1
        self._free += 1
        while self._short:
            again = self._short.popleft()
            if not again.done():
                again.set_result(None)
                return
        while self._free and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                self._taken += 1
                turn.set_result(None)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns(loop: asyncio.AbstractEventLoop) -> Turns:
    """The loop's; descriptors belong to the process, but two loops with much to do in one are rare."""
    found = _turns.get(loop)
    if found is None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft // _SHARE)
        found = _turns[loop] = Turns(max(_LEAST, share))
    return found
