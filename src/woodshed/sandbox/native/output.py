"""The output of one command: read as it comes, kept up to a bound, never waited for once the command has ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Literal

from woodshed.interfaces import Stream

Take = Callable[[bytes], None]

_CHUNK = 1 << 16
_ROUNDS = 16
"""Reads in a row before other work of the loop gets its turn."""
_LAST = 1 << 20
"""Bytes read at most after the end: what an ended command left in a pipe fits (fs.pipe-max-size). A descendant that
keeps writing does not keep us."""


class Kept:
    """The first and the last half of ``limit`` bytes; what lies between is dropped."""

    def __init__(self, limit: int) -> None:
        self._half, self._odd = limit // 2, limit % 2
        self._head, self._tail, self._seen = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self._seen += len(data)
        room = self._half + self._odd - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half + _CHUNK:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]

    def bytes(self) -> bytes:
        """What is kept, in order."""
        self._trim()
        return bytes(self._head + self._tail)

    def overflows(self, more: int = 0) -> bool:
        """Whether ``more`` bytes would leave something dropped."""
        return self._seen + more > 2 * self._half + self._odd

    @property
    def truncated(self) -> bool:
        """Whether something was dropped."""
        return self.overflows()


class Told:
    """A caller's ``stream``, which may raise: it is then told nothing more, and ``error`` is what it raised."""

    def __init__(self, stream: Stream) -> None:
        self._stream: Stream | None = stream
        self.error: Exception | None = None

    def taker(self, name: Literal["stdout", "stderr"]) -> Take:
        """What takes the pieces of one of the two streams."""

        def take(data: bytes) -> None:
            if self._stream is None:
                return
            try:
                self._stream(name, data)
            except Exception as error:
                self._stream, self.error = None, error

        return take


class Pipe:
    """A pipe whose writing end goes into the box. ``take`` gets every piece that comes out of the other."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self.fd, self.inner = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Commands expect to block where a reader is slow; the flag belongs to each end's own file.
        os.set_blocking(self.inner, True)
        self._reading = False

    def sent(self) -> None:
        """Our copy of the writing end is not needed any more."""
        os.close(self.inner)
        self.inner = -1

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read as it comes."""
        if self.fd >= 0 and not self._reading:
            self._reading = True
            loop.add_reader(self.fd, self._readable, loop)

    def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._pull(_ROUNDS * _CHUNK):
            self.close(loop)

    def _pull(self, most: int) -> bool:
        """Read what is there, up to ``most`` bytes; True at the end of the stream."""
        while most > 0:
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return False
            if not data:
                return True
            most -= len(data)
            self._take(data)
        return False

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read nothing until it is attached again, or told to. Idempotent."""
        if self._reading:
            loop.remove_reader(self.fd)
            self._reading = False

    def take_some(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read a little of what is there now."""
        if self.fd >= 0 and self._pull(_CHUNK):
            self.close(loop)

    def take_present(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read what is there now, as far as an ended command can have left it."""
        if self.fd >= 0 and self._pull(_LAST):
            self.close(loop)

    def finish(self, loop: asyncio.AbstractEventLoop) -> int | None:
        """The command ended: read what it left. The descriptor, now the caller's, where someone else holds the pipe."""
        if self.fd < 0:
            return None
        if self._pull(_LAST):
            self.close(loop)
            return None
        if self._reading:
            loop.remove_reader(self.fd)
        fd, self.fd, self._reading = self.fd, -1, False
        return fd

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop reading. Idempotent."""
        if self.inner >= 0:
            self.sent()
        if self.fd >= 0:
            if self._reading:
                loop.remove_reader(self.fd)
                self._reading = False
            os.close(self.fd)
            self.fd = -1


class Drain:
    """Pipes that descendants of ended commands still hold: emptied now and then and thrown away.

    Closing such a pipe would kill a background server with SIGPIPE at its next line; leaving it full would stop it.
    """

    EVERY_S = 0.05

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._fds = loop, list[int]()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, fd: int) -> None:
        """Take over a non-blocking descriptor."""
        self._fds.append(fd)
        if self._timer is None:
            self._timer = self._loop.call_later(self.EVERY_S, self._empty)

    def _empty(self) -> None:
        for fd in list(self._fds):
            try:
                ended = not os.read(fd, _CHUNK)
            except BlockingIOError:
                ended = False
            if ended:
                self._fds.remove(fd)
                os.close(fd)
        self._timer = self._loop.call_later(self.EVERY_S, self._empty) if self._fds else None

    def close(self) -> None:
        """Close all. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._fds:
            os.close(self._fds.pop())
