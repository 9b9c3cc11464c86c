"""Events of a box's files, pulled from the helper inside that watches them (``inside/watch.py``)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections import deque
from contextlib import suppress
from typing import Literal, cast

from woodshed.interfaces import FileEvent
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.link import Link, Reply, resolve

_READ = 1 << 16
_LINE = 1 << 17
"""Bytes of one event: a path has 4,095, each at most twelve characters in JSON."""
_AGAIN_S = 0.1
_KINDS = ("created", "changed", "deleted", "overflow")


class Watching:
    """An iterator of events. Nothing is read ahead but one buffer, so a flood waits inside, and is cut off there.

    Where the helper is ended from within (kill_all, too) it is started again, and an ``overflow`` says so.
    """

    def __init__(self, link: Link, path: str) -> None:
        """Starts to watch ``path``. Raises SandboxDied."""
        self._link, self._path = link, path
        self._loop = asyncio.get_running_loop()
        self._events: deque[FileEvent] = deque()
        self._fd = self._reason = -1
        self._waited: asyncio.Future[None] | None = None
        self._rest = b""
        self._begin()

    def __aiter__(self) -> Watching:
        """Itself."""
        return self

    async def __anext__(self) -> FileEvent:
        """The next event. Raises FileNotFoundError, NotADirectoryError, SandboxDied."""
        while not self._events:
            if self._fd < 0:
                raise StopAsyncIteration
            await self._readable()
            if self._fd < 0:
                raise StopAsyncIteration  # closed meanwhile
            data = os.read(self._fd, _READ)
            if data:
                self._take(data)
            else:
                await self._again()
        return self._events.popleft()

    async def aclose(self) -> None:
        """Watch no more; the helper ends. Idempotent."""
        if self._fd >= 0:
            if self._waited is not None:
                resolve(self._waited)  # who waits for the next event hears that there is none
            if not self._link.dead:
                self._link.send({"op": "drop", "target": self._id})
            self._loop.remove_reader(self._fd)
        self._events.clear()
        self._close()

    def __del__(self) -> None:
        """Closed pipes end the helper, too."""
        self._close()

    def _begin(self) -> None:
        self._id = self._link.next_id()
        message: wire.Message = {"op": "watch", "path": self._path, "id": self._id}
        self._fd, data = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._reason, reason = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._ended: asyncio.Future[Reply] = self._link.request(message, [data, reason])
        except BaseException:
            self._close()
            raise
        finally:
            os.close(data)
            os.close(reason)

    async def _readable(self) -> None:
        """Wait for the pipe. It is not closed before the loop has let go of it."""
        self._waited = ready = self._loop.create_future()
        self._loop.add_reader(self._fd, resolve, ready)
        try:
            await ready
        finally:
            self._waited = None
            if self._fd >= 0:
                self._loop.remove_reader(self._fd)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE:
            raise OSError(errno.EIO, "what the sandbox sent is no event", self._path)
        for line in lines:
            path, kind = json.loads(line)
            if kind in _KINDS:
                self._events.append(
                    FileEvent(str(path), cast("Literal['created', 'changed', 'deleted', 'overflow']", kind)))

    async def _again(self) -> None:
        """The helper has ended: because the directory is gone, because it cannot be watched, or because it was killed.

        Raises what it said.
        """
        try:
            end, _ = await self._ended
            said = b""
            with suppress(BlockingIOError):
                said = os.read(self._reason, 1 << 16)
        finally:
            self._close()
        if end["exit"] == 0:
            return
        if "errno" in end:
            raise OSError(end["errno"], end["reason"], self._path)
        if said:
            number, text = json.loads(said)
            raise OSError(number or errno.EIO, text, self._path)
        await asyncio.sleep(_AGAIN_S)
        self._rest = b""
        self._begin()
        self._events.append(FileEvent(self._path, "overflow"))

    def _close(self) -> None:
        for fd in (self._fd, self._reason):
            if fd >= 0:
                os.close(fd)
        self._fd = self._reason = -1
