"""The few calls of the Docker Engine API that sandboxes need, over its unix socket.

Source: docs.docker.com/reference/api/engine (version 1.41, which Docker 20.10 and Podman 4 both speak).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp

from woodshed.errors import EnvironmentFault

_VERSION = "v1.41"
_HEAD_BYTES = 16_384
_ATTACH_S = 60.0
_HEADER = 8
"""Of each piece of an attached stream without a terminal: the stream's number, three zeros, the length (4)."""
_STDOUT = 1


class ApiError(EnvironmentFault):
    """The daemon refused. ``status`` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One daemon, by its socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self.path), limit=32), timeout=aiohttp.ClientTimeout(600))
        return self._session

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None,
        data: AsyncIterator[bytes] | None = None,
    ) -> Any:
        """The answer as JSON, or its text where it is none. Raises ApiError, EnvironmentFault for a silent daemon."""
        url = f"http://docker/{_VERSION}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": "application/x-tar"} if data is not None else {}
        try:
            async with self._client().request(method, url, json=body, data=data, headers=headers) as answer:
                text = await answer.text(errors="replace")
                if answer.status >= 400:
                    raise ApiError(answer.status, _message(text))
                return await answer.json(content_type=None) if text[:1] in ("{", "[") and "\n{" not in text else text
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EnvironmentFault(f"the container daemon at {self.path} does not answer: {error}") from error

    async def attach(self, container: str) -> Attached:
        """A stream to the standard input, and from the output, of a container that has not been started yet.

        Raises EnvironmentFault.
        """
        loop = asyncio.get_running_loop()
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.setblocking(False)
        try:
            async with asyncio.timeout(_ATTACH_S):
                await loop.sock_connect(end, str(self.path))
                path = f"/{_VERSION}/containers/{quote(container)}/attach?stream=1&stdin=1&stdout=1"
                await loop.sock_sendall(end, (
                    f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
                    "Content-Length: 0\r\n\r\n").encode())
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = await loop.sock_recv(end, 4096)
                    head += piece
                    if not piece or len(head) > _HEAD_BYTES:
                        raise EnvironmentFault(f"the container daemon hung up: {head[:200]!r}")
        except (OSError, TimeoutError) as error:
            end.close()
            raise EnvironmentFault(f"a container cannot be attached to: {error}") from error
        except BaseException:
            end.close()
            raise
        first, _, rest = head.partition(b"\r\n\r\n")
        status = first.split(None, 2)[1:2]
        if status not in ([b"101"], [b"200"]):
            with end, suppress(BlockingIOError):
                rest += end.recv(_HEAD_BYTES)
            raise EnvironmentFault(f"a container cannot be started: {_message(rest.decode(errors='replace'))}")
        return Attached(end.detach(), rest)

    async def close(self) -> None:
        """Hang up. Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _message(text: str) -> str:
    """The reason in an answer that says no."""
    start = text.find('"message":"')
    return text[start + 11:].split('"', 1)[0] if start >= 0 else text[:500]


class Attached:
    """The stream of an attached container: plain towards it, in pieces with a header from it."""

    def __init__(self, fd: int, before: bytes = b"") -> None:
        """``before`` came with the head. The descriptor is ours from now on."""
        self.reading = self.writing = fd
        self._data = bytearray(before)

    def decode(self, data: bytes) -> bytes:
        """What PID 1 wrote to its standard output."""
        self._data += data
        out, at = bytearray(), 0
        while len(self._data) - at >= _HEADER:
            length = int.from_bytes(self._data[at + 4:at + _HEADER], "big")
            if len(self._data) - at - _HEADER < length:
                break
            if self._data[at] == _STDOUT:
                out += self._data[at + _HEADER:at + _HEADER + length]
            at += _HEADER + length
        del self._data[:at]
        return bytes(out)

    def close(self) -> None:
        """Hang up. Idempotent."""
        if self.reading >= 0:
            fd, self.reading, self.writing = self.reading, -1, -1
            try:
                os.close(fd)
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
