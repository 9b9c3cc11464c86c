"""HTTP connections of a door: bounded in time, and cut off at once where they must be."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

IDLE_S = 60.0
"""Within this a connection has said, or says again, what it wants."""
_SILENT = logging.getLogger("woodshed.gateway.server")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False  # what hostile programs send is no news, and may hold a key


class Connections:
    """Those that one function answers. Made inside the running event loop."""

    def __init__(self, respond: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        self._respond = respond
        self._open: dict[object, _Connection] = {}
        self._server = web.Server(
            self._handle, handler_cancellation=True, access_log=None, logger=_SILENT, auto_decompress=False,
            keepalive_timeout=IDLE_S, lingering_time=1.0)

    async def admit(self, descriptor: int) -> None:
        """Serve one connection until it ends. The descriptor is closed then."""
        end = socket.socket(fileno=descriptor)
        end.setblocking(False)
        connection = _Connection(self._server(), self._open)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, end)
            await connection.ended.wait()
        except OSError:
            end.close()
        finally:
            connection.cut()

    def cut(self) -> None:
        """End all of them now. Idempotent."""
        for connection in list(self._open.values()):
            connection.cut()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        async with self._serving(request):
            return await self._respond(request)

    @asynccontextmanager
    async def _serving(self, request: web.BaseRequest) -> AsyncIterator[None]:
        connection = self._open.get(request.protocol)
        if connection is not None:
            connection.busy()
        try:
            yield
        finally:
            if connection is not None:
                connection.idle()


class _Connection(asyncio.Protocol):
    """What passes between a connection and the HTTP library. One that wants nothing for too long is cut off."""

    def __init__(self, handler: RequestHandler, among: dict[object, _Connection]) -> None:
        self.ended = asyncio.Event()
        self._handler, self._among = handler, among
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._later = self._loop.call_later(IDLE_S, self.cut)

    def busy(self) -> None:
        """A request is being served."""
        self._later.cancel()

    def idle(self) -> None:
        """It was."""
        self._later.cancel()
        if not self.ended.is_set():
            self._later = self._loop.call_later(IDLE_S, self.cut)

    def cut(self) -> None:
        """End it now. Idempotent."""
        self._later.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its class
        self._handler.connection_made(transport)
        self._among[self._handler] = self

    def connection_lost(self, exc: Exception | None) -> None:
        self._later.cancel()
        self.ended.set()
        self._among.pop(self._handler, None)
        self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._handler.data_received(data)

    def eof_received(self) -> None:
        self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()
