"""A live sandbox of the native engine: what the engine's side knows and does; the other side is its PID 1."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from woodshed.model import Used
from woodshed.sandbox.egress.seats import Seats
from woodshed.sandbox.native import policy as policies
from woodshed.sandbox.native.commands import Commands
from woodshed.sandbox.native.egress import Network
from woodshed.sandbox.native.files import Files
from woodshed.sandbox.native.link import Link, World
from woodshed.sandbox.native.meter import Meter
from woodshed.sandbox.native.ports import Ports
from woodshed.sandbox.native.sessions import Sessions
from woodshed.sandbox.native.snapshots import NativeSnapshot, Snapshots
from woodshed.sandbox.native.transfer import Transfer


class NativeSandbox:
    """A sandbox of the native engine. See :class:`woodshed.interfaces.Sandbox`.

    Its parts do the work, over the one ``link.py``: ``commands.py`` and ``sessions.py`` run, ``files.py`` and
    ``transfer.py`` read and write, ``meter.py`` measures.
    """

    def __init__(
        self, world: World, end: socket.socket, snapshots: Snapshots, gone: Callable[[], Awaitable[None]], seats: Seats
    ) -> None:
        """``end`` is our end of PID 1's channel; ``gone`` gives back what the box took of the host."""
        self.id, self.image_digest, self.world = world.id, world.image_digest, world
        self._gone = gone
        self._closing: asyncio.Task[None] | None = None
        self.link = Link(world.id, end)
        self._commands = commands = Commands(world, self.link)
        self.exec, self.start, self.pty, self.kill_all = commands.exec, commands.start, commands.pty, commands.kill_all
        self.session = Sessions(commands).session
        self._files = files = Files(world, self.link)
        transfer, meter = Transfer(world, self.link), Meter(world, self.link)
        self.read, self.write, self.list, self.stat = files.read, files.write, files.list, files.stat
        self.changes, self.upload = files.changes, transfer.upload
        self.download, self.upload_tar = transfer.download, transfer.upload_tar
        self.download_tar, self.watch = transfer.download_tar, transfer.watch
        self._snapshots, self._meter, self._ports = snapshots, meter, Ports(self.link, seats)
        self.listen = self._ports.listen
        self.network: Network | None = None
        """By its policy; set before its first process is asked for."""
        self.stats, self.freeze, self.thaw = meter.stats, meter.freeze, meter.thaw

    @property
    def pid(self) -> int:
        """Of its first process, on the host."""
        return self.link.pid

    @property
    def notes(self) -> tuple[str, ...]:
        """What its policy does not hold though it may look so, a sentence each."""
        return (*policies.notes(self.world.policy), *self.link.notes)

    def on_decision(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        """See :meth:`woodshed.interfaces.Governed.on_decision`."""
        if self.network is not None:
            self.network.egress.decisions.listen(tell)

    @property
    def alive(self) -> bool:
        """Whether its first process runs, as far as is known."""
        return not self.link.dead

    def used(self) -> Used:
        """What it has used so far; all of it once it is closed. See :class:`woodshed.attempt.stages.Accounted`."""
        return self.link.account.used()

    async def opened(self) -> None:
        """Wait until it serves. Raises SandboxDied with its reason where it never will."""
        await self.link.opened()
        if self.network is not None:
            await self.network.introduce(self._files)

    async def snapshot(self) -> NativeSnapshot:
        """Its files as they are now; the sandbox goes on from there. Raises SandboxDied, EnvironmentFault."""
        return await self._snapshots.take(self.link, self._meter)

    async def close(self) -> None:
        """Leave nothing: no process, mount, cgroup, directory. Idempotent; never raises for a dead sandbox."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._commands.close()
        await self._ports.close()
        await self.link.close()
        await self._snapshots.close()
        await self._gone()
