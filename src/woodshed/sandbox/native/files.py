"""Files of a box, from the engine's side: by descriptors that its first process opened, inside."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

from woodshed.errors import Unsupported
from woodshed.interfaces import BlobSink, FileInfo
from woodshed.model import ChangeSet
from woodshed.sandbox.native import capture, trees, upload
from woodshed.sandbox.native.link import Link, World

_INLINE_BYTES = 1 << 20
"""Larger writes go to a thread."""


class Files:
    """Reads, writes and captures a box's files. See :class:`woodshed.interfaces.Sandbox`."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link = world, link

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """Content of a regular file. Raises FileNotFoundError, IsADirectoryError, PermissionError, OSError (EFBIG)."""
        _, fds = await self._link.ask({"op": "read", "path": self._world.path(path)}, path)
        with os.fdopen(fds[0], "rb", buffering=0) as file:
            parts, size = [], 0
            while data := file.read(min(1 << 20, max_bytes + 1 - size)):
                parts.append(data)
                size += len(data)
                if size > max_bytes:
                    raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
        return b"".join(parts)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Replace a file's content, parents made as needed. Refuses devices and FIFOs (OSError)."""
        _, fds = await self._link.ask({"op": "write", "path": self._world.path(path), "mode": mode & 0o777}, path)
        if len(content) > _INLINE_BYTES:
            await asyncio.to_thread(_write, fds[0], content)
        else:
            _write(fds[0], content)

    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, by name. Raises FileNotFoundError, NotADirectoryError."""
        message, _ = await self._link.ask({"op": "list", "path": self._world.path(path)}, path)
        return [FileInfo(name, kind, size, mode) for name, kind, size, mode in sorted(message["entries"])]

    async def stat(self, path: str) -> FileInfo:
        """What stands at ``path``, not followed. Raises FileNotFoundError."""
        raise Unsupported("stat: not built yet")

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or folder to ``target``. Raises UsageError for the source, OSError for the target."""
        pack = upload.pack
        contents, index_bytes = pack(source) if trees.small(source) else await asyncio.to_thread(pack, source)
        reason, inner = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            message = {"op": "extract", "target": self._world.path(target), "index_bytes": index_bytes}
            try:
                ended = self._link.request(message, [contents, inner])
            finally:
                os.close(inner)
            end, _ = await ended
            if end["exit"]:
                raise _failure(os.read(reason, 1 << 16), target)
        finally:
            os.close(contents)
            os.close(reason)

    async def changes(self, sink: BlobSink, *, roots: Sequence[str] = ("/",)) -> ChangeSet:
        """What differs from the start below ``roots``. Call it after kill_all. Bounded by the policy's limits."""
        if self._link.dead:
            raise self._link.death()
        places = [self._world.path(root) for root in roots] or ["/"]
        upper = self._world.folder / "u"
        asked = (upper, self._world.lowers, places, self._world.limits, sink)
        return capture.capture(*asked) if trees.small(upper) else await asyncio.to_thread(capture.capture, *asked)


def _write(fd: int, content: bytes) -> None:
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view):]
    finally:
        os.close(fd)


def _failure(reason: bytes, target: str) -> OSError:
    if not reason:
        return OSError(errno.EIO, "the upload was killed", target)
    code, text = json.loads(reason)
    return OSError(code, text, target)
