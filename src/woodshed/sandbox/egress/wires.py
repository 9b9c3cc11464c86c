"""Two ends of a connection, plain or under TLS, that hold no more than one piece in flight each way.

While nothing arrives no buffer is held; a reader that is slow makes its writer wait.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from typing import Protocol

PIECE = 32_768
"""Bytes read at a time."""


class Wire(Protocol):
    """One end. Methods raise OSError (ssl.SSLError is one) when the connection broke."""

    async def read(self) -> bytes:
        """What has arrived, at most a piece; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Send all of it, waiting while the other side does not read. One at a time."""

    async def finish(self) -> None:
        """Nothing more is sent; reading goes on."""

    def close(self, *, abort: bool = False) -> None:
        """Nobody may be reading or writing. ``abort``: the other side sees a reset. Idempotent."""


class Plain:
    """A TCP socket."""

    def __init__(self, end: socket.socket) -> None:
        """``end`` does not block, and is ours to close."""
        self._socket, self._first = end, b""
        self._loop = asyncio.get_running_loop()
        with suppress(OSError):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def unread(self, data: bytes) -> None:
        """``data`` is read again, before what arrives."""
        self._first = data

    async def read(self) -> bytes:
        """See :class:`Wire`."""
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._loop.sock_recv(self._socket, PIECE)

    async def write(self, data: bytes) -> None:
        """See :class:`Wire`."""
        await self._loop.sock_sendall(self._socket, data)

    async def finish(self) -> None:
        """See :class:`Wire`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self, *, abort: bool = False) -> None:
        """See :class:`Wire`."""
        if abort:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


class Sealed:
    """TLS over a plain wire, as its client or its server."""

    def __init__(self, wire: Plain, context: ssl.SSLContext, *, name: str | None = None) -> None:
        """``name``: of the server whose client this is; None for a server."""
        self._wire, self._lock = wire, asyncio.Lock()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=name is None, server_hostname=name)

    async def handshake(self) -> None:
        """Agree upon keys; a client also checks the certificate. Raises OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._more():
                    raise ConnectionResetError("the other side hung up during the handshake") from None
            except ssl.SSLError:
                await self._flush()  # the alert says why
                raise
            else:
                return await self._flush()

    async def read(self) -> bytes:
        """See :class:`Wire`."""
        while True:
            try:
                return self._tls.read(PIECE)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._more()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        """See :class:`Wire`."""
        self._tls.write(data)
        await self._flush()

    async def finish(self) -> None:
        """See :class:`Wire`."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()  # sends our end, and does not wait for theirs
        with suppress(OSError):
            await self._flush()

    def close(self, *, abort: bool = False) -> None:
        """See :class:`Wire`."""
        self._wire.close(abort=abort)

    async def _more(self) -> bool:
        data = await self._wire.read()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        return bool(data)

    async def _flush(self) -> None:
        async with self._lock:  # reading may have something to send, too
            if data := self._out.read():
                await self._wire.write(data)
