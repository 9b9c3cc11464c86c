"""One port for the doors of many attempts, for programs that stand in no sandbox: the key says whose door is meant.

``/r/ATTEMPT/v1/…`` names the attempt, too, and opens with its key alone; ``/v1/…`` goes where the key belongs. All that
is said there is answered by the attempt's own :class:`woodshed.gateway.server.Door`.
"""

from __future__ import annotations

import asyncio
import hashlib
from urllib.parse import quote

from aiohttp import web

from woodshed.errors import UsageError
from woodshed.gateway import denial
from woodshed.gateway.connections import Connections
from woodshed.gateway.server import Door, failed, given_key, meant

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 4096
_BACKLOG = 1024


class Frontend:
    """Doors by attempt, behind one port. Made inside the running event loop."""

    def __init__(self, *, most_connections: int = MOST_CONNECTIONS) -> None:
        self._connections = Connections(self._respond, most=most_connections)
        self._by_attempt: dict[str, Door] = {}
        self._by_key: dict[bytes, Door] = {}
        self._server: asyncio.Server | None = None
        self.address = ""
        """``http://HOST:PORT`` once it is open."""

    async def open(self, host: str = LOOPBACK, port: int = 0) -> None:
        """Listen. Port 0: the kernel chooses. Raises UsageError where it cannot."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connections.made, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise UsageError(f"cannot listen at {host}:{port}: {error.strerror or error}",
                             remedy="Choose another port, or 0 for any.") from error
        bound = self._server.sockets[0].getsockname()
        self.address = f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"

    def add(self, attempt: str, door: Door) -> str:
        """Let programs in by ``door``, until it is removed. The base URL for its key, which ends in ``/v1``."""
        self.remove(attempt)
        self._by_attempt[attempt] = door
        self._by_key[_digest(door.key.encode())] = door
        return f"{self.address}/r/{quote(attempt, safe='')}/v1"

    def remove(self, attempt: str) -> None:
        """Nobody comes in by that door any more; closing it is its owner's to do. Idempotent."""
        door = self._by_attempt.pop(attempt, None)
        if door is not None:
            self._by_key.pop(_digest(door.key.encode()), None)

    async def close(self) -> None:
        """Nothing more comes in, and what is being served is cut off. The doors stay their owners'. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._connections.cut()
        self._by_attempt.clear()
        self._by_key.clear()

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        path, door = request.path, self._by_key.get(_digest(given_key(request.headers)))
        parts = path.split("/", 3)
        if parts[1:2] == ["r"] and len(parts) > 2:
            attempt, path = parts[2], "/" + "/".join(parts[3:])
            door = door if door is not None and self._by_attempt.get(attempt) is door else None
        if door is None:
            return failed(meant(tuple(part for part in path.split("/") if part), request.headers), denial.DEAD_KEY)
        return await door.respond(request, path)


def _digest(key: bytes) -> bytes:
    """By what a key is looked up: how long a look takes tells nothing of any key."""
    return hashlib.sha256(key).digest()
