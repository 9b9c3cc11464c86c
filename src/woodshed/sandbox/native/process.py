"""A background command of a native sandbox, and what feeds its standard input."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable

from woodshed.errors import UsageError
from woodshed.sandbox.native.link import Link, Reply

Kill = Callable[[int], Awaitable[None]]


class Feed:
    """The writing end of a non-blocking descriptor: writes wait for their turn and for room, never block the loop."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        """``fd`` is ours from now on."""
        self._fd, self._loop = fd, loop
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        """Write all of ``data``. Raises BrokenPipeError where nobody takes it, or it is closed meanwhile."""
        view = memoryview(data)
        async with self._turn:
            while True:
                if self._fd < 0:
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
                try:
                    view = view[os.write(self._fd, view):]
                except BlockingIOError:
                    await self._room()
                    continue
                except OSError as error:
                    if error.errno == errno.EIO:  # a terminal's other side is gone
                        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error
                    raise
                if not view:
                    return
                await asyncio.sleep(0)

    async def _room(self) -> None:
        self._waiting = self._loop.create_future()
        self._loop.add_writer(self._fd, _settle, self._waiting)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if self._fd >= 0:
                self._loop.remove_writer(self._fd)

    def close(self) -> None:
        """Nothing more comes; who waits is told. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            if self._waiting is not None:
                self._loop.remove_writer(fd)
                _settle(self._waiting)
            os.close(fd)


class NativeProcess:
    """A background command of a native sandbox. See :class:`woodshed.interfaces.Process`."""

    def __init__(
        self, link: Link, ident: int, ended: asyncio.Future[Reply], kill: Kill, feed: Feed | None = None
    ) -> None:
        """``kill`` ends a command with all its descendants."""
        self.id, self._link, self._ended, self._kill, self._feed = ident, link, ended, kill, feed

    @property
    def ended(self) -> bool:
        """Whether it has ended, or the box has."""
        return self._ended.done()

    async def wait(self) -> int:
        """The exit code, once it ended. Raises SandboxDied."""
        message, _ = await asyncio.shield(self._ended)
        return int(message["exit"])

    def call_when_ended(self, call: Callable[[], None]) -> None:
        """Call in the loop's next round after its end, or the box's."""
        self._ended.add_done_callback(lambda _: call())

    async def signal(self, number: int) -> None:
        """Send a signal to its process group. Nothing happens when it has ended. Raises SandboxDied, UsageError."""
        if isinstance(number, bool) or number not in signal.valid_signals():
            raise UsageError(f"no signal has the number {number}", field="number", remedy="Use one of 1 to 64.")
        await self._ask({"op": "signal", "target": self.id, "number": int(number)})

    async def write(self, data: bytes) -> None:
        """Feed its standard input, waiting while it does not read. Raises BrokenPipeError, SandboxDied."""
        await self.guarded(self._feed.write(data) if self._feed is not None else _no_stdin())

    async def guarded(self, writing: Awaitable[None]) -> None:
        """A write that fails because the box is gone says so: SandboxDied instead of BrokenPipeError."""
        try:
            await writing
        except BrokenPipeError:
            await self._ask({"op": "signal", "target": 0, "number": signal.SIGCONT})
            raise

    async def _ask(self, message: dict[str, object]) -> None:
        await self._link.request(message)

    def close_stdin(self) -> None:
        """Its standard input ends. Idempotent."""
        if self._feed is not None:
            self._feed.close()

    async def kill(self) -> None:
        """End it and its descendants. Idempotent."""
        await self._kill(self.id)


async def _no_stdin() -> None:
    raise BrokenPipeError(errno.EPIPE, "it was started without stdin=True")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
