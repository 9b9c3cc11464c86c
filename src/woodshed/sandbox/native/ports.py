"""Ports: doors of a sandbox's own loopback that lead to this process, made by its PID 1 and served from here.

The listening socket belongs to the sandbox's network namespace, so nothing outside it can connect; what connects inside
reaches the one function that the port was made for. How many and how fast is bounded as for the network by policy.
"""

from __future__ import annotations

import asyncio
import socket

from woodshed.interfaces import Admit
from woodshed.sandbox.egress.doors import door
from woodshed.sandbox.egress.seats import Seats
from woodshed.sandbox.native.link import Link

MOST = 64
"""Connections of one port at a time; more wait in the kernel."""


class Port:
    """See :class:`woodshed.interfaces.Listener`."""

    def __init__(self, listener: socket.socket, admit: Admit, seats: Seats) -> None:
        """``listener`` is the port's own now."""
        self.port: int = listener.getsockname()[1]
        self._admit, self._seats = admit, seats
        self._tasks: set[asyncio.Task[None]] = set()
        seats.enter(self)
        self._door = door(listener, self._come, self._free)

    def _free(self) -> bool:
        return len(self._tasks) < MOST and self._seats.free(self)

    def _come(self, end: socket.socket) -> None:
        self._seats.take(self)
        task = asyncio.get_running_loop().create_task(self._serve(end))
        self._tasks.add(task)
        task.add_done_callback(self._gone)

    async def _serve(self, end: socket.socket) -> None:
        await self._admit(end.detach())

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._seats.give_back(self)
        if not task.cancelled():
            task.exception()  # whose it is knows of it; the port goes on

    async def close(self) -> None:
        """Nothing more comes in, and what is being served is cut off. Idempotent."""
        self._door.close()
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._seats.leave(self)


class Ports:
    """The ports of one sandbox."""

    def __init__(self, link: Link, seats: Seats) -> None:
        self._link, self._seats = link, seats
        self._made: list[Port] = []

    async def listen(self, admit: Admit, *, port: int = 0) -> Port:
        """See :meth:`woodshed.interfaces.Sandbox.listen`."""
        _, fds = await self._link.ask({"op": "listen", "port": port}, f"127.0.0.1:{port}")
        self._made.append(made := Port(socket.socket(fileno=fds[0]), admit, self._seats))
        return made

    async def close(self) -> None:
        """All of them close. Idempotent."""
        while self._made:
            await self._made.pop().close()
