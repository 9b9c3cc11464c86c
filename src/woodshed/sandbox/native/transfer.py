"""Whole trees into and out of a box, and events of its files: by helpers inside, through pipes.

A pipe is all that is buffered, so either side waits for the other, and memory does not grow with a tree. What blocks on
our side runs in a thread of its own each: a box that stops its helper must not use up the event loop's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from woodshed.interfaces import FileEvent
from woodshed.sandbox.native import landing, trees, upload
from woodshed.sandbox.native.helper import Helper
from woodshed.sandbox.native.inside import frames, wire
from woodshed.sandbox.native.link import Link, World
from woodshed.sandbox.native.watching import Watching

_STALLED_S = 60.0
"""A box that neither takes nor gives a byte for so long has stopped the helper, or is itself held up."""
_PIPE_BYTES = 1 << 20
"""fs.pipe-max-size of a usual system, and what an ordinary user may ask for."""


class Transfer:
    """Moves trees and watches them. See :class:`woodshed.interfaces.Sandbox`."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link = world, link

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or folder to ``target``. Raises UsageError for the source, OSError for the target."""
        message: wire.Message = {"op": "unpack", "path": self._world.path(target)}
        if trees.small(source):
            message["small"] = 1
            contents = upload.pack(source)
            try:
                helper = Helper(self._link, message, contents, target)
            finally:
                os.close(contents)
            await helper.ended()
        else:
            await self.send(message, target, lambda write: upload.feed(source, write))

    async def download(self, path: str, target: Path, *, max_bytes: int = 1_000_000_000) -> None:
        """Copy a file or folder to ``target`` of the host, which must not exist. Links arrive as links.

        A link named by ``path`` itself is not followed. What crosses from /proc is left out. The target appears whole,
        or not at all. Raises FileNotFoundError, FileExistsError, OSError (EFBIG), SandboxDied.
        """
        target = target.absolute()
        await self.receive(
            {"op": "pack", "path": self._world.path(path)}, path,
            lambda read: landing.land(frames.Frames(frames.Reader(read)), target, max_bytes))

    async def upload_tar(self, source: BinaryIO, target: str) -> None:
        """Unpack a plain tar stream below ``target``, a directory, made where it is missing.

        Names that are absolute or climb out, devices, pipes, sparse members, and names that pass a link are refused;
        what came before them stays. Permission bits and times are kept, owners are not. Raises UsageError for the
        archive, OSError for the target, SandboxDied.
        """
        def feed(write: frames.Write) -> None:
            while data := source.read(frames.CHUNK):
                write(data)

        await self.send({"op": "untar", "path": self._world.path(target)}, target, feed)

    async def download_tar(self, path: str, sink: BinaryIO, *, max_bytes: int = 1_000_000_000) -> None:
        """Write a tar stream of ``path`` and all below it, named from the last part of ``path``.

        It is made inside, and so hostile: no more than ``max_bytes`` of it are written. Raises FileNotFoundError,
        OSError (EFBIG, EIO where it is cut off), SandboxDied; what was written until then is of no use.
        """
        def drain(read: frames.Read) -> None:
            left = max_bytes
            while data := read(frames.CHUNK):
                if (left := left - len(data)) < 0:
                    raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
                sink.write(data)

        await self.receive({"op": "tar", "path": self._world.path(path)}, path, drain, to_the_end=True)

    def watch(self, path: str) -> AsyncIterator[FileEvent]:
        """Events at and below a directory, from now on, until the iterator is closed (``aclose``).

        Other file systems below it (/proc, /tmp of /) are not watched. A file that came and went within a moment is
        not told. Raises, on the first step, FileNotFoundError, NotADirectoryError, SandboxDied.
        """
        return Watching(self._link, self._world.path(path))

    async def send(self, message: wire.Message, path: str, feed: Callable[[frames.Write], None]) -> None:
        """Start the helper that ``message`` asks for and write what ``feed`` has to it. Raises as they do."""
        inner, outer = _pipe()
        os.set_blocking(outer, False)
        try:
            helper = Helper(self._link, message, inner, path)
        except BaseException:
            os.close(outer)
            raise
        finally:
            os.close(inner)
        failure = await helper.beside(lambda: _fed(feed, outer), outer)
        if failure is not None:  # ours: what the helper makes of the end of it is no news
            helper.forget()
            raise failure
        await helper.ended()

    async def receive(
        self, message: wire.Message, path: str, take: Callable[[frames.Read], None], *, to_the_end: bool = False
    ) -> None:
        """Start the helper that ``message`` asks for and have ``take`` read what it writes, in a thread."""
        outer, inner = _pipe()
        try:
            helper = Helper(self._link, message, inner, path)
        except BaseException:
            os.close(outer)
            raise
        finally:
            os.close(inner)
        failure = await helper.beside(lambda: take(lambda size: _read(outer, size)), outer)
        if failure is None and not to_the_end:
            helper.forget()  # all is here
        else:
            await helper.ended(failure)


def _pipe() -> Sequence[int]:
    ends = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # a user with many pipes gets no larger ones
        fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ends


def _fed(feed: Callable[[frames.Write], None], fd: int) -> None:
    """Feed a pipe that does not block. A reader that wants no more is no failure here: it says what it thinks."""
    with suppress(BrokenPipeError):
        feed(lambda data: _write(fd, data))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view):]
        except BlockingIOError:
            _wait(fd, select.POLLOUT)


def _read(fd: int, size: int) -> bytes:
    _wait(fd, select.POLLIN)
    return os.read(fd, size)


def _wait(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(_STALLED_S * 1000):
        raise OSError(errno.ETIMEDOUT, f"the sandbox neither took nor gave anything for {_STALLED_S:.0f} s")
