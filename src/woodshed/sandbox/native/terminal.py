"""A terminal of a box: its command's output read as the reader likes, its keys written, its size told."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

from woodshed.errors import SandboxDied, UsageError
from woodshed.interfaces import Process
from woodshed.sandbox.native.process import Feed, NativeProcess

_MOST = 65535
"""Of rows and of columns: struct winsize has 16 bits for each (include/uapi/asm-generic/termios.h)."""


def check_size(rows: int, columns: int) -> None:
    """Raises UsageError for what no window can have."""
    for field, value in (("rows", rows), ("columns", columns)):
        if not 0 < value <= _MOST:
            raise UsageError(f"{value} is no size of a window", field=field, remedy=f"Use 1 to {_MOST}.")


class NativeTerminal:
    """The master side of a terminal made inside. See :class:`woodshed.interfaces.Terminal`.

    A reader that is slow slows the command, as with any terminal: nothing is read ahead here.
    """

    def __init__(
        self, process: NativeProcess, fd: int, loop: asyncio.AbstractEventLoop,
        dropped: Callable[[NativeTerminal], None],
    ) -> None:
        """``fd`` is ours from now on, unless OSError is raised; ``dropped`` is called when it is closed."""
        os.set_blocking(fd, False)
        self.process: Process = process
        self._process, self._fd, self._loop = process, fd, loop
        self._feed, self._dropped = Feed(os.dup(fd), loop), dropped  # one descriptor to watch for each direction
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False
        process.call_when_ended(self._over)

    async def read(self, max_bytes: int = 65536) -> bytes:
        """The next output; empty when the command has ended and all was read, or after close. Raises SandboxDied."""
        if max_bytes < 1:
            raise UsageError(f"{max_bytes} bytes cannot be read", field="max_bytes", remedy="Use at least 1.")
        async with self._turn:
            while self._fd >= 0:
                over = self._process.ended  # asked first: what it wrote before its end is there to be read after it
                try:
                    data = os.read(self._fd, max_bytes)
                except BlockingIOError:
                    if over:
                        break
                    await self._readable()
                    continue
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    break  # nobody holds the other side any more
                if data:
                    return data
                break
        if not self._closed and (self._fd < 0 or self._process.ended):
            await self._process.wait()  # raises where it was the box that ended
        return b""

    async def _readable(self) -> None:
        self._waiting = self._loop.create_future()
        self._loop.add_reader(self._fd, self._wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if self._fd >= 0:
                self._loop.remove_reader(self._fd)

    def _over(self) -> None:
        self._feed.close()  # the kernel would take what is typed to nobody
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def write(self, data: bytes) -> None:
        """Type. Waits while the command does not read. Raises BrokenPipeError when it has ended, SandboxDied."""
        if data:
            await self._process.guarded(self._feed.write(data))

    def resize(self, rows: int, columns: int) -> None:
        """The window's new size; the foreground process group gets SIGWINCH. Nothing happens after close."""
        check_size(rows, columns)
        if self._fd >= 0:
            fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    async def close(self) -> None:
        """Hang up and end the command with all that came of it. Idempotent."""
        self._closed = True
        self.drop()
        with suppress(SandboxDied):
            await self._process.kill()

    def drop(self) -> None:
        """Hang up. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            if self._waiting is not None:
                self._loop.remove_reader(fd)
            self._wake()
            self._feed.close()
            os.close(fd)
            self._dropped(self)
