"""The engine's end of the road to a PID 1 elsewhere: a message socket on this side, a stream of bytes on the other."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Protocol

from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.remote.inside.relay import READ, WRITE, Broken, Relay

_CHUNK = 1 << 18
_SPACE = socket.CMSG_SPACE(wire.MAX_FDS * 4)


class Stream(Protocol):
    """A byte stream each way, by descriptors that do not block; they may be the same one."""

    reading: int
    writing: int

    def decode(self, data: bytes) -> bytes:
        """What was read, without whatever the runtime puts around it."""

    def close(self) -> None:
        """Close both. Idempotent."""


class Pipes:
    """A stream of two pipes, as they are."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        for fd in (reading, writing):
            os.set_blocking(fd, False)

    def decode(self, data: bytes) -> bytes:
        """As it is."""
        return data

    def close(self) -> None:
        """Close both. Idempotent."""
        for fd in {self.reading, self.writing} - {-1}:
            os.close(fd)
        self.reading = self.writing = -1


class Road:
    """Carries what is sent at ``end``, a message socket for a Link, over ``stream`` and back."""

    def __init__(self, stream: Stream) -> None:
        self.end, self._near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._near.setblocking(False)
        self._stream, self._loop = stream, asyncio.get_running_loop()
        self._relay = Relay(1, self._deliver, self._watch, wary=True)
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._watched: dict[int, int] = {}
        self._open, self._writing = True, False
        self._loop.add_reader(self._near.fileno(), self._hear)
        self._loop.add_reader(stream.reading, self._arrive)

    # -- from the Link to the stream -----------------------------------------------------------------------------------

    def _hear(self) -> None:
        try:
            data, ancillary, _, _ = self._near.recvmsg(1 << 16, _SPACE, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        fds: list[int] = []
        for _, _, payload in ancillary:
            fds.extend(struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4]))
        try:
            if not data:
                self.close()
                return
            self._relay.send(data, fds, asks=True)
        finally:
            for fd in fds:
                os.close(fd)
        self._push()

    def _push(self) -> None:
        """Write what can be written now."""
        outgoing = self._relay.outgoing
        try:
            while outgoing:
                self._relay.sent(os.write(self._stream.writing, bytes(memoryview(outgoing)[:_CHUNK])))
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if bool(outgoing) != self._writing:
            self._writing = bool(outgoing)
            if outgoing:
                self._loop.add_writer(self._stream.writing, self._push)
            else:
                self._loop.remove_writer(self._stream.writing)

    # -- from the stream to the Link -----------------------------------------------------------------------------------

    def _arrive(self) -> None:
        try:
            data = os.read(self._stream.reading, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if not data:
                self.close()
                return
            self._relay.feed(self._stream.decode(data))
        except (Broken, ValueError):
            self.close()
            return
        self._push()

    def _deliver(self, data: bytes, fds: list[int]) -> None:
        self._queue.append((data, fds))
        if len(self._queue) == 1:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._queue:
            data, fds = self._queue[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
            try:
                self._near.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._near.fileno(), self._hand_over)
                return
            except OSError:
                pass  # the Link hung up: its end is told by reading
            self._queue.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._near.fileno())

    # -- channels ------------------------------------------------------------------------------------------------------

    def _watch(self, fd: int, events: int) -> None:
        before = self._watched.pop(fd, 0)
        if events & READ and not before & READ:
            self._loop.add_reader(fd, self._ready, fd, READ)
        elif before & READ and not events & READ:
            self._loop.remove_reader(fd)
        if events & WRITE and not before & WRITE:
            self._loop.add_writer(fd, self._ready, fd, WRITE)
        elif before & WRITE and not events & WRITE:
            self._loop.remove_writer(fd)
        if events:
            self._watched[fd] = events

    def _ready(self, fd: int, events: int) -> None:
        self._relay.ready(fd, events)
        if self._open:
            self._push()

    def close(self) -> None:
        """The end, of both sides. Idempotent."""
        if not self._open:
            return
        self._open = False
        while self._queue:  # last words
            data, fds = self._queue.popleft()
            with suppress(OSError):
                self._near.sendmsg([data], [], socket.MSG_NOSIGNAL)
            for fd in fds:
                os.close(fd)
        for fd in list(self._watched):
            self._watch(fd, 0)
        self._loop.remove_reader(self._near.fileno())
        self._loop.remove_writer(self._near.fileno())
        self._loop.remove_reader(self._stream.reading)
        self._loop.remove_writer(self._stream.writing)
        self._relay.forget()
        self._near.close()
        self._stream.close()
