"""A live sandbox that another program made: the parts of a native one, over the road to its PID 1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from woodshed.errors import Unsupported
from woodshed.interfaces import Admit, FileEvent, Listener, SandboxStats, Session, Snapshot, Terminal
from woodshed.model import Used
from woodshed.sandbox.native.commands import Commands
from woodshed.sandbox.native.files import Files
from woodshed.sandbox.native.link import Link, World
from woodshed.sandbox.native.meter import Meter, pressure
from woodshed.sandbox.native.transfer import Transfer
from woodshed.sandbox.remote.changes import Changes
from woodshed.sandbox.remote.minding import Minder
from woodshed.sandbox.remote.road import Road
from woodshed.sandbox.remote.terminal import open_terminal


class RemoteSandbox:
    """A sandbox of a RemoteEngine. See :class:`woodshed.interfaces.Sandbox`."""

    def __init__(self, engine: str, world: World, road: Road, gone: Callable[[], Awaitable[None]], *,
                 watches: bool) -> None:
        """``gone`` gives back what it took: its container first. ``watches``: inotify works in it."""
        self.id, self.image_digest, self.world = world.id, world.image_digest, world
        self._engine, self._road, self._gone, self._watches = engine, road, gone, watches
        self._closing: asyncio.Task[None] | None = None
        self.link = link = Link(world.id, road.end)
        link.born()
        self._commands = commands = Commands(world, link)
        self.exec, self.start, self.kill_all = commands.exec, commands.start, commands.kill_all
        files, self._transfer = Files(world, link), Transfer(world, link)
        self.read, self.write, self.list, self.stat = files.read, files.write, files.list, files.stat
        self.upload, self.download = self._transfer.upload, self._transfer.download
        self.upload_tar, self.download_tar = self._transfer.upload_tar, self._transfer.download_tar
        self._changes = Changes(world, link, self._transfer)
        self.changes, self.restore = self._changes.changes, self._changes.restore
        meter, self._minder = Meter(world, link), Minder(world, link)
        self.freeze, self.thaw = meter.freeze, meter.thaw

    async def opened(self) -> None:
        """Wait until it serves. Raises SandboxDied with its reason where it never will."""
        await self.link.opened()

    async def begin(self) -> None:
        """What is there now is the start that changes are told from."""
        answer, _ = await self.link.ask({"op": "begin"}, "/")
        assert "entries" in answer
        self._minder.begin()

    def watch(self, path: str) -> AsyncIterator[FileEvent]:
        """Events at and below a directory. See :meth:`woodshed.interfaces.Sandbox.watch`."""
        if not self._watches:
            raise self._unsupported("watch")
        return self._transfer.watch(path)

    async def pty(
        self, command: str | Sequence[str] = (), *, rows: int = 24, columns: int = 80, cwd: str | None = None,
        env: Mapping[str, str] | None = None, user: int | None = None,
    ) -> Terminal:
        """Start a command on a terminal. See :meth:`woodshed.interfaces.Sandbox.pty`."""
        return await open_terminal(self._commands, command, (rows, columns), cwd, env, user)

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: int | None = None
    ) -> Session:
        """Raises Unsupported."""
        raise self._unsupported("session")

    async def listen(self, admit: Admit, *, port: int = 0) -> Listener:
        """Raises Unsupported."""
        raise self._unsupported("listen")

    async def snapshot(self) -> Snapshot:
        """Raises Unsupported."""
        raise self._unsupported("snapshot")

    def _unsupported(self, capability: str) -> Unsupported:
        return Unsupported(f"{capability}: the {self._engine} engine does not have it; the native one does")

    async def stats(self) -> SandboxStats:
        """What it has used so far. CPU and memory are sums over its live processes and, of CPU, those that ended.

        Bytes read and written are those of ended commands. Raises SandboxDied.
        """
        told, _ = await self.link.ask({"op": "measure"}, "/")
        ended, _ = await self.link.ask({"op": "usage"}, "/")
        return SandboxStats(
            cpu_s=told["cpu_s"] + ended["cpu_s"], memory_bytes=told["memory"],
            memory_peak_bytes=max(told["memory"], ended["peak_kb"] << 10), read_bytes=ended["read"],
            written_bytes=ended["written"], disk_bytes=told["bytes"], files=told["files"],
            processes=told["processes"], pressure=pressure(),
        )

    def used(self) -> Used:
        """What it has used so far; of its disk, what was counted while its commands ran."""
        return self.link.account.used()

    async def close(self) -> None:
        """Leave nothing. Idempotent; never raises for a dead sandbox."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self.end()
        await self._gone()
        self.link.account.close()

    async def end(self) -> None:
        """Its first process ends, and so does everything in it; its files are still there. Idempotent."""
        await self._minder.close()
        self._commands.close()
        await self.link.close()
        self._road.close()


