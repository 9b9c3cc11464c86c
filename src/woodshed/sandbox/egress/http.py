"""Requests of HTTP/1.1 (RFC 9112), read strictly: what two readers could understand differently is refused.

Hostile input raises Refused and nothing else. What is forwarded is written anew from what was read, so that the server
finds the bounds of each request where we found them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LARGEST_HEAD = 32_768
_MOST_FIELDS = 128
_LINE = re.compile(rb"([A-Z][A-Z-]{0,31}) ([\x21-\x7e]+) HTTP/1\.([01])")
_BEGINS = re.compile(rb"[A-Z][A-Z-]{0,31}( |\Z)")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):(.*)", re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK = re.compile(rb"[0-9A-Fa-f]{1,12}")
_LONGEST_CHUNK_LINE = 16
_DROPPED = frozenset((b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings",
                      b"proxy-connection", b"proxy-authorization"))
"""Between the sandbox and us alone (RFC 9110, section 7.6.1)."""
Fields = list[tuple[bytes, bytes]]


class Refused(Exception):
    """``reason`` is a phrase for an event and for the answer, ``status`` the answer's."""

    def __init__(self, reason: str, status: int = 403) -> None:
        super().__init__(reason)
        self.reason, self.status = reason, status


@dataclass(slots=True)
class Request:
    """``path`` is as sent. ``host`` is in lower case without port and final dot. ``length`` None: chunked.

    ``last``: nothing more will be asked on the connection.
    """

    method: str
    path: str
    minor: int
    host: str
    port: int | None
    fields: Fields
    length: int | None
    last: bool

    def written(self, *, host: str | None = None, close: bool = False) -> bytes:
        """The head to forward; with another Host where one is given, and asking for no more on ``close``."""
        lines = [f"{self.method} {self.path} HTTP/1.{self.minor}".encode("ascii")]
        given = self.host if self.port is None else f"{self.host}:{self.port}"
        lines.append(b"Host: " + (host or given).encode("ascii"))
        lines += [name + b": " + value for name, value in self.fields]
        if self.length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.length or self.method in ("POST", "PUT", "PATCH"):
            lines.append(b"Content-Length: %d" % self.length)
        if close or self.last:
            lines.append(b"Connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"


def take(buffer: bytearray) -> Request | None:
    """The request head at the start of ``buffer``, removed from it; None where more is needed. Raises Refused."""
    end = buffer.find(b"\r\n\r\n", 0, LARGEST_HEAD)
    if end < 0:
        if len(buffer) >= LARGEST_HEAD:
            raise Refused("a request head too long", 431)
        first, ended, _ = buffer.partition(b"\n")
        whole = not ended or (first.endswith(b"\r") and _LINE.fullmatch(first[:-1]))
        if (buffer and not _BEGINS.match(buffer)) or not whole:
            raise Refused("neither HTTP nor TLS", 400)
        return None
    lines = bytes(buffer[:end]).split(b"\r\n")
    del buffer[:end + 4]
    begins = _LINE.fullmatch(lines[0])
    if begins is None:
        raise Refused("not a request of HTTP/1.1", 400)
    method, target, minor = begins[1].decode(), begins[2].decode(), int(begins[3])
    if method == "CONNECT":
        raise Refused("CONNECT: there is no proxy to be asked; connect to the host itself", 405)
    if not target.startswith("/") and (target, method) != ("*", "OPTIONS"):
        raise Refused("a target with a host in it: there is no proxy to be asked", 400)
    return _request(method, target, minor, _fields(lines[1:]))


def _fields(lines: list[bytes]) -> Fields:
    if len(lines) > _MOST_FIELDS:
        raise Refused("too many header fields", 431)
    found: Fields = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None or _CONTROL.search(field[2]):
            raise Refused("a broken header field", 400)
        # Not by the pattern: it would look for the end of each run of spaces anew from every space in it.
        found.append((field[1], field[2].strip(b" \t")))
    return found


def _request(method: str, target: str, minor: int, fields: Fields) -> Request:
    by_name: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        by_name.setdefault(name.lower(), []).append(value)
    # Clients that know HTTP/2 offer it so (RFC 7540, section 3.2); servers need not take it, and never hear of it.
    if any(token.strip().lower() != b"h2c" for value in by_name.get(b"upgrade", ()) for token in value.split(b",")):
        raise Refused("an upgrade to another protocol, which could not be read", 501)
    if any(value.lower() != b"100-continue" for value in by_name.get(b"expect", ())):
        raise Refused("an unknown expectation", 417)
    host, port = _host(by_name.get(b"host", []))
    length = _length(by_name.get(b"content-length", []), by_name.get(b"transfer-encoding", []), minor)
    kept = [(name, value) for name, value in fields
            if name.lower() not in _DROPPED | {b"host", b"content-length", b"transfer-encoding"}]
    options = b",".join(by_name.get(b"connection", ())).lower().replace(b" ", b"").split(b",")
    return Request(method, target, minor, host, port, kept, length, last=minor == 0 or b"close" in options)


def _host(values: list[bytes]) -> tuple[str, int | None]:
    if len(values) != 1:
        raise Refused("not one Host", 400)
    name, colon, port = values[0].decode("latin-1").lower().partition(":")
    if not re.fullmatch(r"[a-z0-9_.-]+", name) or (colon and not re.fullmatch(r"[0-9]{1,5}", port)):
        raise Refused("a broken Host", 400)
    return name.removesuffix("."), int(port) if colon else None


def _length(lengths: list[bytes], codings: list[bytes], minor: int) -> int | None:
    """Of the body; None for chunks. One way to tell it is right, two are an attack (RFC 9112, section 11.2)."""
    if codings:
        if lengths or minor == 0 or len(codings) != 1 or codings[0].lower() != b"chunked":
            raise Refused("a body whose end could be read in two ways", 400)
        return None
    if not lengths:
        return 0
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        raise Refused("a broken Content-Length", 400)
    return int(lengths[0])


class Body:
    """Finds the end of a request's body. Chunks are read strictly: no extensions, no trailers."""

    def __init__(self, length: int | None) -> None:
        """``length`` in bytes; None for chunks."""
        self._left = length or 0
        self._chunked, self._last = length is None, False
        self._line, self._tail = b"", b""
        self.done = length == 0

    def take(self, buffer: bytearray) -> bytes:
        """What of ``buffer`` belongs to the body, removed from it. Raises Refused; empty where more is needed."""
        at = 0
        while at < len(buffer) and not self.done:
            if self._left:
                step = min(self._left, len(buffer) - at)
                self._left -= step
                self.done = not self._chunked and not self._left
                at += step
            else:
                self._frame(bytes(buffer[at:at + 1]))
                at += 1
        taken = bytes(buffer[:at])
        del buffer[:at]
        return taken

    def _frame(self, byte: bytes) -> None:
        """One byte between the data of two chunks: the CRLF after the one, or the size line before the other."""
        if self._tail:
            if byte != self._tail[:1]:
                raise Refused("a broken chunk", 400)
            self._tail = self._tail[1:]
            return
        self._line += byte
        if self._line.endswith(b"\r\n"):
            line, self._line = self._line[:-2], b""
            self._begin(line)
        elif byte == b"\n" or len(self._line) > _LONGEST_CHUNK_LINE:
            raise Refused("a broken chunk", 400)

    def _begin(self, line: bytes) -> None:
        if self._last:  # after the chunk of size 0 comes an empty line
            if line:
                raise Refused("trailers after a body", 400)
            self.done = True
            return
        if not _CHUNK.fullmatch(line):
            raise Refused("a broken chunk", 400)
        self._left = int(line, 16)
        self._last, self._tail = not self._left, b"\r\n" if self._left else b""


def refusal(error: Refused) -> bytes:
    """The answer to a request that is refused; the connection ends with it."""
    text = f"Refused by the network policy of this sandbox: {error.reason}.\n".encode()
    head = (f"HTTP/1.1 {error.status} Refused", "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(text)}", "Connection: close", "", "")
    return "\r\n".join(head).encode() + text
