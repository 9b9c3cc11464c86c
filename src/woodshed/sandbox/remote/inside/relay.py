"""Messages with descriptors over a stream of bytes, which carries none: each side stands in for the other's.

A pipe or socket that one side hands over becomes a channel: the other side makes one like it, and what is read from the
one is written to the other. A regular file (a memory file, a file that was opened to be read) goes with its content.
Both sides run this module: :class:`Relay` is told what its descriptors are ready for, and never blocks.

::

    frame   kind (1), channel (4), length (4), then as many bytes
    P       a packet: how many descriptors (1), for each its kind (1), channel (4), length (4) and content; then JSON
    D E X   of a channel: data; no more comes; no more is wanted
    G       of a channel: so many bytes more may be sent, as a number (4)

A command's end overtakes none of its output: the side inside reads what its pipes hold before it says so, and the other
side hands the message on when those bytes are in its own pipes.
"""
# (Loaded in the box's first process, which stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import socket
import stat
import struct
from collections.abc import Callable
from typing import Any

WINDOW = 1 << 18
"""Bytes of a channel that may be on their way; what a slow reader holds back is bounded by it."""
LARGEST = 1 << 30
"""Bytes of one frame; more is no frame of ours."""
_UNASKED = 96 << 20
"""Bytes of a frame that a wary side takes unasked: a message (wire.LARGEST) and to spare."""
_WHOLE = LARGEST // 2
_CHUNK = 1 << 16
_FULL = 1 << 20
"""Bytes that wait for the stream, above which no channel is read."""
_LAST = 1 << 20
"""Bytes at most that an ended command left in one pipe (fs.pipe-max-size)."""
_HEAD, _COUNT, _ENTRY = struct.Struct(">cII"), struct.Struct(">B"), struct.Struct(">cII")
_NUMBER = struct.Struct(">I")
READ, WRITE = select.POLLIN, select.POLLOUT

Deliver = Callable[[bytes, list[int]], None]
"""Takes a packet and its descriptors, which are its own from then on."""
Watch = Callable[[int, int], None]
"""Wants to hear of these events (READ, WRITE) of a descriptor; 0: of none."""


class Broken(Exception):
    """The stream ended or is not one of ours."""


class _Flow:
    """One channel's descriptor here."""

    def __init__(self, number: int, owner: int, fd: int, kind: bytes) -> None:
        """``kind``: what this side does with ``fd``: i reads it, o writes it, s both."""
        self.number, self.owner, self.fd = number, owner, fd
        self.reads, self.writes = kind in b"is", kind in b"os"
        self.credit, self.pending, self.ending = WINDOW, bytearray(), False
        self.taken = self.written = 0
        self.watched = 0


class Relay:
    """One side of the road. ``first`` is the number of its first channel: 1 on the one side, 2 on the other."""

    def __init__(self, first: int, deliver: Deliver, watch: Watch, *, wary: bool = False) -> None:
        """``wary``: the other side is hostile. It opens no channels, and sends no more than it is asked for."""
        self._next, self._deliver, self._watch = first, deliver, watch
        self._kinds, self._largest = (b"b", _UNASKED) if wary else (b"biso", LARGEST)
        self.flows: dict[int, _Flow] = {}
        self.by_fd: dict[int, _Flow] = {}
        self.outgoing = bytearray()
        self._incoming = bytearray()
        self._held: list[tuple[bytes, list[int], dict[int, int]]] = []
        self._most: dict[int, int] = {}

    # -- packets -------------------------------------------------------------------------------------------------------

    def send(self, data: bytes, fds: list[int], *, asks: bool) -> None:
        """Send a packet with its descriptors, which stay the caller's. ``asks``: it is a request, not an answer."""
        message = json.loads(data) if data != b"M" else {}
        ident = int(message.get("id", 0))
        if asks and "most" in message:
            self._largest = min(LARGEST, max(self._largest, _UNASKED + message["most"]))
        if "exit" in message:
            self._drain(ident)
        entries = b""
        for fd in fds:
            entries += self._entry(fd, ident if asks else 0, self._most.pop(ident, LARGEST))
        owner = ident if "exit" in message else 0
        body = _COUNT.pack(len(fds)) + entries + data
        self._frame(b"P", owner, body)

    def _entry(self, fd: int, owner: int, most: int) -> bytes:
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode):
            if min(most, info.st_size) > _WHOLE:
                raise OSError(errno.EFBIG, "too large to be read at once")
            content = _content(fd, min(most, _WHOLE))
            return _ENTRY.pack(b"b", 0, len(content)) + content
        if stat.S_ISSOCK(info.st_mode):
            kind, own = b"s", os.dup(fd)
        else:
            access = _access(fd)
            kind, own = (b"o" if access == os.O_WRONLY else b"i"), _own(fd, access)
        number, self._next = self._next, self._next + 2
        if own < 0:
            own, far = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            os.close(far)  # nobody was at the other end; nor is there now
            if kind == b"o":
                own = _orphan(own)
        elif kind == b"s":
            os.set_blocking(own, False)
        self._add(_Flow(number, owner, own, kind))
        return _ENTRY.pack(kind, number, 0)

    def graft(self, owner: int, fd: int) -> None:
        """The two-way channel that came with the message ``owner`` is ``fd`` from now on, which is ours then."""
        flow = next((flow for flow in self.flows.values() if flow.owner == owner and flow.reads and flow.writes), None)
        if flow is None:
            os.close(fd)
            raise OSError(errno.EBADF, "no channel came with it")
        if flow.watched:
            self._watch(flow.fd, 0)
        del self.by_fd[flow.fd]
        os.close(flow.fd)
        os.set_blocking(fd, False)
        flow.fd, flow.watched = fd, 0
        self._add(flow)

    def grafted(self, owner: int) -> int:
        """What :meth:`graft` put there; -1 where it is closed."""
        return next((flow.fd for flow in self.flows.values() if flow.owner == owner), -1)

    def _add(self, flow: _Flow) -> None:
        self.flows[flow.number], self.by_fd[flow.fd] = flow, flow
        self._look(flow)

    def _frame(self, kind: bytes, number: int, body: bytes | bytearray = b"") -> None:
        self.outgoing += _HEAD.pack(kind, number, len(body))
        self.outgoing += body

    def sent(self, count: int) -> None:
        """``count`` bytes of ``outgoing`` are on their way."""
        full = len(self.outgoing) >= _FULL
        del self.outgoing[:count]
        if full and len(self.outgoing) < _FULL:
            for flow in list(self.flows.values()):
                self._look(flow)

    def feed(self, data: bytes) -> None:
        """Take what came over the stream. Raises Broken."""
        self._incoming += data
        at = 0
        while len(self._incoming) - at >= _HEAD.size:
            kind, number, length = _HEAD.unpack_from(self._incoming, at)
            if length > self._largest:
                raise Broken("a frame too large")
            end = at + _HEAD.size + length
            if len(self._incoming) < end:
                break
            self._take(kind, number, bytes(self._incoming[at + _HEAD.size:end]))
            at = end
        del self._incoming[:at]

    def _take(self, kind: bytes, number: int, body: bytes) -> None:
        if kind == b"P":
            try:
                self._packet(number, body)
            except (struct.error, ValueError, TypeError, AttributeError, RecursionError) as error:
                raise Broken("no packet of ours") from error
            return
        flow = self.flows.get(number)
        if flow is None:
            return  # it was closed here meanwhile
        if kind == b"D" and flow.writes:
            if len(flow.pending) + len(body) > WINDOW + _LAST:
                raise Broken("more than it may send")
            flow.pending += body
            flow.taken += len(body)
            self._flush(flow)
        elif kind == b"E" and flow.writes:
            flow.ending = True
            self._flush(flow)
        elif kind == b"X" and flow.reads:
            flow.reads = False
            self._settle(flow)
        elif kind == b"G" and len(body) == _NUMBER.size:
            flow.credit = min(WINDOW, flow.credit + _NUMBER.unpack(body)[0])
            self._look(flow)

    def _packet(self, owner: int, body: bytes) -> None:
        (count,), at = _COUNT.unpack_from(body), _COUNT.size
        wanted: list[tuple[bytes, int, bytes]] = []
        for _ in range(count):
            kind, number, length = _ENTRY.unpack_from(body, at)
            at += _ENTRY.size
            wanted.append((kind, number, body[at:at + length]))
            at += length
        data = body[at:]
        message: dict[str, Any] = json.loads(data) if data != b"M" else {}
        ident = int(message.get("id", 0))
        if "most" in message:
            self._most[ident] = int(message["most"])
        fds: list[int] = []
        try:
            for kind, number, content in wanted:
                fds.append(self._stand_in(kind, number, ident, content))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        marks = {flow.number: flow.taken for flow in self.flows.values()
                 if owner and flow.owner == owner and flow.writes and flow.written < flow.taken}
        if marks:
            self._held.append((data, fds, marks))
        else:
            self._deliver(data, fds)

    def _stand_in(self, kind: bytes, number: int, owner: int, content: bytes) -> int:
        """A descriptor like the other side's, for the receiver; what belongs to it here becomes a channel."""
        if kind not in self._kinds:
            raise ValueError("nothing of that kind is taken")
        if kind == b"b":
            return memory(content)
        if number in self.flows or not kind:
            raise ValueError("no such channel can be")
        if kind == b"s":
            ours, theirs = socket.socketpair()
            mine, given = ours.detach(), theirs.detach()
            os.set_blocking(mine, False)
        else:
            reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            mine, given = (reading, writing) if kind == b"o" else (writing, reading)
            os.set_blocking(given, True)
        self._add(_Flow(number, owner, mine, {b"o": b"i", b"i": b"o", b"s": b"s"}[kind]))
        return given

    # -- channels ------------------------------------------------------------------------------------------------------

    def ready(self, fd: int, events: int) -> None:
        """Something can be done with a descriptor that was watched."""
        flow = self.by_fd.get(fd)
        if flow is None:
            return
        if flow.writes and events & ~READ:
            self._flush(flow)
        if flow.fd >= 0 and flow.reads and events & ~WRITE and flow.credit > 0:
            self._pull(flow, min(_CHUNK, flow.credit))
            self._look(flow)

    def _pull(self, flow: _Flow, most: int) -> int:
        """Send what can be read, ``most`` bytes; how many, 0 where there is nothing now or any more."""
        try:
            data = os.read(flow.fd, most)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._frame(b"E", flow.number)
            flow.reads = False
            self._settle(flow)
            return 0
        flow.credit -= len(data)
        self._frame(b"D", flow.number, data)
        return len(data)

    def _drain(self, owner: int) -> None:
        """Read what the command ``owner``, which has ended, left in its pipes."""
        for flow in [flow for flow in self.flows.values() if flow.owner == owner and flow.reads]:
            left = _LAST
            while left > 0 and flow.fd >= 0 and (done := self._pull(flow, min(_CHUNK, left))):
                left -= done

    def _flush(self, flow: _Flow) -> None:
        try:
            while flow.pending:
                done = os.write(flow.fd, flow.pending[:_CHUNK])
                del flow.pending[:done]
                flow.written += done
                self._frame(b"G", flow.number, _NUMBER.pack(done))
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            flow.pending.clear()
            flow.written = flow.taken
            self._frame(b"X", flow.number)
            flow.writes = False
        if flow.ending and not flow.pending:
            if flow.reads:
                _shut(flow.fd)
            flow.writes = False
        self._settle(flow)
        if self._held:
            self._hand_on()

    def _hand_on(self) -> None:
        for held in list(self._held):
            if all((flow := self.flows.get(number)) is None or flow.written >= mark
                   for number, mark in held[2].items()):
                self._held.remove(held)
                self._deliver(held[0], held[1])

    def _settle(self, flow: _Flow) -> None:
        if not flow.reads and not flow.writes:
            self._drop(flow)
        else:
            self._look(flow)

    def _look(self, flow: _Flow) -> None:
        if flow.fd < 0:
            return
        wanted = READ if flow.reads and flow.credit > 0 and len(self.outgoing) < _FULL else 0
        wanted |= WRITE if flow.writes and flow.pending else 0
        if wanted != flow.watched:
            flow.watched = wanted
            self._watch(flow.fd, wanted)

    def _drop(self, flow: _Flow) -> None:
        if flow.fd >= 0:
            if flow.watched:
                self._watch(flow.fd, 0)
            del self.flows[flow.number], self.by_fd[flow.fd]
            os.close(flow.fd)
            flow.fd = -1

    def forget(self) -> None:
        """Close every channel here and tell nobody: in a child that has nothing to do with them, or at the end."""
        for flow in self.flows.values():
            if flow.fd >= 0:
                os.close(flow.fd)
                flow.fd = -1
        for _, fds, _ in self._held:
            for fd in fds:
                os.close(fd)
        self.flows, self.by_fd, self._held = {}, {}, []


def memory(content: bytes) -> int:
    """A memory file of ``content``, to be read from its start."""
    fd = os.memfd_create("content", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view):]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _content(fd: int, most: int) -> bytes:
    parts, at = [], 0
    while at < most and (data := os.pread(fd, min(1 << 20, most - at), at)):
        parts.append(data)
        at += len(data)
    return b"".join(parts)


def _access(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE


def _own(fd: int, access: int) -> int:
    """The same pipe, not blocking, without a change for who else holds it; -1 where nobody is at its other end."""
    try:
        return os.open(f"/proc/self/fd/{fd}", access | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return -1


def _orphan(reading: int) -> int:
    """Instead of a pipe's reading end: a writing end that nobody reads."""
    os.close(reading)
    far, own = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.close(far)
    return own


def _shut(fd: int) -> None:
    try:
        with socket.socket(fileno=os.dup(fd)) as end:
            end.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other end is gone
