"""The first words of TLS: which host a ClientHello names. Hostile input raises Malformed and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST = 32_768
"""Bytes within which a ClientHello must end; post-quantum key shares need two or three thousand."""
HANDSHAKE = 0x16
"""The first byte of a connection that speaks TLS (RFC 8446, section 5.1)."""
UNRECOGNIZED_NAME, ACCESS_DENIED = 112, 49
_CLIENT_HELLO, _SERVER_NAME, _ALPN = 1, 0, 16
_HIDING = frozenset((*range(0xFE08, 0xFE0E), 0xFF02, 0xFF03, 0xFFCE))
"""Encrypted ClientHello (draft-ietf-tls-esni: 0xfe0d in the end), and what it was in earlier drafts."""
_MOST_RECORD = 16_384
_MOST_RECORDS = 16
"""A hello in a thousand crumbs is no client's, and would be put together anew for each."""


class Malformed(ValueError):
    """Not a ClientHello."""


@dataclass(frozen=True, slots=True)
class Hello:
    """``name`` in lower case without a final dot, None where no server name is given. ``hidden``: ECH is offered."""

    name: str | None
    protocols: tuple[str, ...]
    hidden: bool


class _Reader:
    """Takes lengths and bytes off a buffer. Raises Malformed at its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at:self._at + count]
        if len(taken) < count:
            raise Malformed("cut off")
        self._at += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Reader:
        """What a length of ``size`` bytes announces."""
        return _Reader(self.take(self.number(size)))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)


def read(data: bytes | bytearray) -> Hello | None:
    """The ClientHello that ``data`` begins with; None where more is needed. Raises Malformed."""
    message = _handshake(data)
    if message is None:
        if len(data) >= LARGEST:
            raise Malformed("a ClientHello without end")
        return None
    hello = _Reader(message)
    hello.take(2 + 32)  # version and random
    hello.vector(1)  # session
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression
    if not hello:
        return Hello(None, (), hidden=False)
    return _extensions(hello.vector(2))


def _handshake(data: bytes | bytearray) -> bytes | None:
    """The body of the first handshake message, put together from its records; None where more is needed."""
    message, at = bytearray(), 0
    for _ in range(_MOST_RECORDS):
        if len(message) >= 4:
            length = int.from_bytes(message[1:4], "big")
            if message[0] != _CLIENT_HELLO or length > LARGEST:
                raise Malformed("not a ClientHello")
            if len(message) >= 4 + length:
                return bytes(message[4:4 + length])
        header = bytes(data[at:at + 5])
        if header[:1] not in (b"", b"\x16") or header[1:2] not in (b"", b"\x03"):
            raise Malformed("not a TLS handshake")
        if len(header) < 5:
            return None
        length = int.from_bytes(header[3:5], "big")
        if not 0 < length <= _MOST_RECORD:
            raise Malformed("a record of an impossible length")
        if len(data) < at + 5 + length:
            return None
        message += data[at + 5:at + 5 + length]
        at += 5 + length
    raise Malformed("a ClientHello in crumbs")


def _extensions(extensions: _Reader) -> Hello:
    name: str | None = None
    protocols: tuple[str, ...] = ()
    seen: set[int] = set()
    while extensions:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind in seen:
            raise Malformed("an extension twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _server_name(body)
        elif kind == _ALPN:
            protocols = _protocols(body.vector(2))
    return Hello(name, protocols, hidden=bool(_HIDING & seen))


def _server_name(body: _Reader) -> str:
    names = body.vector(2)
    if names.number(1) != 0:
        raise Malformed("a server name of an unknown kind")
    raw = names.vector(2).rest()
    if names or body:
        raise Malformed("more than one server name")
    if not raw or not raw.isascii() or any(byte <= 0x20 or byte == 0x7F for byte in raw):
        raise Malformed("a server name of odd bytes")
    return raw.decode("ascii").lower().removesuffix(".")


def _protocols(names: _Reader) -> tuple[str, ...]:
    found = []
    while names:
        found.append(names.vector(1).rest().decode("latin-1"))
    return tuple(found)


def alert(description: int) -> bytes:
    """A fatal alert in the clear, as before any key is agreed upon."""
    return bytes((0x15, 3, 3, 0, 2, 2, description))
