"""Files of a box, from the engine's side: by descriptors that its first process opened, inside."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import Sequence

from woodshed.interfaces import BlobSink, FileInfo
from woodshed.model import ChangeSet
from woodshed.sandbox.native import capture, trees
from woodshed.sandbox.native.helper import Helper
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.layers import merged
from woodshed.sandbox.native.link import Link, World

_INLINE_BYTES = 1 << 20
"""Larger contents are read and copied in a thread, and written by a helper: PID 1 has others to serve."""


class Files:
    """Reads, writes and captures a box's files. See :class:`woodshed.interfaces.Sandbox`."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link = world, link

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """Content of a regular file. Raises FileNotFoundError, IsADirectoryError, PermissionError, OSError (EFBIG)."""
        _, fds = await self._link.ask(
            {"op": "read", "path": self._world.path(path), "most": max_bytes + 1}, path)
        if os.fstat(fds[0]).st_size <= _INLINE_BYTES:
            return _read(fds[0], path, max_bytes)
        return await asyncio.to_thread(_read, fds[0], path, max_bytes)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Replace a file's content in one step, parents made as needed. Refuses devices and FIFOs (OSError).

        Whoever reads meanwhile sees the old content or the new, and a failure (a full disk) leaves the old. A link at
        ``path`` is followed and stays; the owner stays, the mode becomes ``mode``; further names of the same file keep
        the old content.
        """
        message: wire.Message = {"op": "write", "path": self._world.path(path), "mode": mode & 0o777}
        if len(content) <= _INLINE_BYTES:
            source = _memory(content)
            try:
                await self._link.ask(message, path, [source])
            finally:
                os.close(source)
            return
        source = await asyncio.to_thread(_memory, content)
        try:
            helper = Helper(self._link, {**message, "op": "place"}, source, path)
        finally:
            os.close(source)
        await helper.ended()

    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, by name. Raises FileNotFoundError, NotADirectoryError."""
        message, _ = await self._link.ask({"op": "list", "path": self._world.path(path)}, path)
        return [FileInfo(*entry) for entry in sorted(message["entries"])]

    async def stat(self, path: str) -> FileInfo:
        """What stands at ``path``, not followed. Raises FileNotFoundError."""
        message, _ = await self._link.ask({"op": "stat", "path": self._world.path(path)}, path)
        return FileInfo(posixpath.basename(posixpath.normpath(self._world.path(path))) or "/", *message["entry"][1:])

    async def changes(self, sink: BlobSink, *, roots: Sequence[str] = ("/",)) -> ChangeSet:
        """What differs from the start below ``roots``. Call it after kill_all. Bounded by the policy's limits."""
        if self._link.dead:
            raise self._link.death()
        places = [self._world.path(root) for root in roots] or ["/"]
        stack = self._world.stack
        async with stack.turn:
            if not stack.layers and trees.small(self._world.folder / "u"):
                return self._capture(places, sink)
            return await asyncio.to_thread(self._capture, places, sink)

    def _capture(self, places: Sequence[str], sink: BlobSink) -> ChangeSet:
        world = self._world
        below = [capture.split(place) for place in places]
        with merged(world.folder, world.stack.layers, world.lowers, below) as upper:
            return capture.capture(upper, world.lowers, places, world.limits, sink)


def _memory(content: bytes) -> int:
    """A memory file of ``content``."""
    fd = os.memfd_create("content", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view):]
    return fd


def _read(fd: int, path: str, max_bytes: int) -> bytes:
    """The content of ``fd``, which is closed. Raises OSError (EFBIG)."""
    try:
        parts, size = [], 0
        while data := os.read(fd, min(1 << 20, max_bytes + 1 - size)):
            parts.append(data)
            size += len(data)
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
        return b"".join(parts)
    finally:
        os.close(fd)
