"""A live sandbox of the native engine: what the engine's side knows and does; the other side is its PID 1."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from woodshed.sandbox.native.commands import Commands
from woodshed.sandbox.native.files import Files
from woodshed.sandbox.native.link import Link, World


class NativeSandbox:
    """A sandbox of the native engine. See :class:`woodshed.interfaces.Sandbox`.

    Its parts do the work: ``commands.py`` runs, ``files.py`` reads, writes and captures, over the one ``link.py``.
    """

    def __init__(self, world: World, end: socket.socket, gone: Callable[[], Awaitable[None]]) -> None:
        """``end`` is our end of PID 1's channel; ``gone`` gives back what the box took of the host."""
        self.id, self.image_digest, self.world = world.id, world.image_digest, world
        self._gone = gone
        self._closing: asyncio.Task[None] | None = None
        self.link = Link(world.id, end)
        self._commands = commands = Commands(world, self.link)
        files = Files(world, self.link)
        self.exec, self.start, self.pty, self.kill_all = commands.exec, commands.start, commands.pty, commands.kill_all
        self.read, self.write, self.list, self.upload = files.read, files.write, files.list, files.upload
        self.changes = files.changes

    @property
    def pid(self) -> int:
        """Of its first process, on the host."""
        return self.link.pid

    async def opened(self) -> None:
        """Wait until it serves. Raises SandboxDied with its reason where it never will."""
        await self.link.opened()

    async def close(self) -> None:
        """Leave nothing: no process, mount, cgroup, directory. Idempotent; never raises for a dead sandbox."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._commands.close()
        await self.link.close()
        await self._gone()
