"""The answer to a request that may carry a secret, with what it repeats of the secret blotted out.

Only so much of HTTP/1.1 is understood as that takes: where the head ends, and the frames of chunks, between which a
secret could stand in two pieces. A host's answer that cannot be read ends the connection.
"""

from __future__ import annotations

import re

from woodshed.sandbox.egress.inject import Blot

_LARGEST_HEAD, _LONGEST_LINE = 65_536, 4096
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r|\Z)")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*\bchunked[ \t]*(?=\r\n)", re.IGNORECASE)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;.*)?", re.DOTALL)
_BODILESS = (204, 304)


class Unreadable(Exception):
    """The host does not answer in HTTP/1.1; the message says what is wrong."""


class Answer:
    """One final answer, with those before it that say to go on. Bytes go in as they come, in whatever pieces."""

    def __init__(self, blot: Blot, *, bodiless: bool) -> None:
        """``bodiless``: the request was a HEAD."""
        self._blot, self._bodiless = blot, bodiless
        self._buffer = bytearray()
        self._step = self._head

    @property
    def holds(self) -> bool:
        """Whether :meth:`release` would give something."""
        return self._blot.holds

    def pass_on(self, data: bytes) -> bytes:
        """What may be passed on now. Raises Unreadable."""
        self._buffer += data
        out = b""
        while self._buffer and (more := self._step()) is not None:
            out += more
        return out

    def release(self) -> bytes:
        """What was held back of the body in case that more follows, which is long in coming."""
        held = self._blot.rest()
        return _chunk(held) if self._step in (self._size, self._data, self._end) else held

    def rest(self) -> bytes:
        """What was held back, at the end of the stream."""
        return self.release() + self._blot.all(bytes(self._buffer)) if self._step == self._head else self.release()

    # -- steps: each takes what it can off the buffer, and is done for now with None -----------------------------------

    def _head(self) -> bytes | None:
        end = self._buffer.find(b"\r\n\r\n", 0, _LARGEST_HEAD)
        if end < 0:
            if len(self._buffer) >= _LARGEST_HEAD:
                raise Unreadable("an answer whose head has no end")
            return None
        head = self._taken(end + 4)
        status = _STATUS.match(head)
        if status is None:
            raise Unreadable("an answer that is not of HTTP/1.1")
        code = int(status[1])
        if code >= 200:
            chunked = _CHUNKED.search(head) and code not in _BODILESS and not self._bodiless
            self._step = self._size if chunked else self._plain
        return self._blot.all(head)

    def _plain(self) -> bytes | None:
        return self._blot.pass_on(self._taken(len(self._buffer)))

    def _size(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, _LONGEST_LINE)
        if end < 0:
            if len(self._buffer) >= _LONGEST_LINE:
                raise Unreadable("a chunk without a size")
            return None
        size = _SIZE.fullmatch(self._taken(end + 2)[:-2])
        if size is None:
            raise Unreadable("a chunk without a size")
        self._left = int(size[1], 16)
        if self._left:
            self._step = self._data
            return b""
        self._step = self._nothing  # trailers may be left out (RFC 9110, section 6.5.1)
        return _chunk(self._blot.rest()) + b"0\r\n\r\n"

    def _data(self) -> bytes | None:
        taken = self._taken(min(self._left, len(self._buffer)))
        self._left -= len(taken)
        if not self._left:
            self._step = self._end
        return _chunk(self._blot.pass_on(taken))

    def _end(self) -> bytes | None:
        if len(self._buffer) < 2:
            return None
        if self._taken(2) != b"\r\n":
            raise Unreadable("a chunk longer than its size")
        self._step = self._size
        return b""

    def _nothing(self) -> bytes | None:
        self._buffer.clear()
        return None

    def _taken(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


def _chunk(data: bytes) -> bytes:
    """Framed anew; nothing for nothing, which would be the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
