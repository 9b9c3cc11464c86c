"""The gateway's server: programs that speak to a model over HTTP are let in here, and every call they make is a call().

One :class:`Door` belongs to one attempt. It knows one key, speaks the dialects listed in ``SPOKEN``, and asks its gate
before each call, so that an attempt's limits hold for programs that know nothing of them. What is said here is hostile:
sizes and times are bounded, and nothing of ours stands in an answer but what the dialect needs.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from woodshed.errors import WoodshedError
from woodshed.gateway import denial
from woodshed.gateway.dialects import Asked, Denied, Dialect, Failure, Refused, Stamp, chat
from woodshed.gateway.turns import GRACE_S, Turn, Turns
from woodshed.interfaces import Gate, ModelClient, ModelRequest, ModelResponse
from woodshed.model import StopReason

SPOKEN: Mapping[tuple[str, ...], Dialect] = {("v1", "chat", "completions"): chat}
"""Dialects by the path of their requests."""
BODY_BYTES = 32_000_000
BODY_S, IDLE_S = 60.0, 60.0
"""Within this a request's body is here, and a connection has said, or says again, what it wants."""
MOST_RUNNING = 32
"""Calls of one attempt that run at once; more are told to come again."""
PATIENCE_S, ALIVE_S = 5.0, 10.0
"""A stream begins when the answer is there, or after this, with a sign of life each ``ALIVE_S``: until it has begun, a
failure still has a status of its own."""
_ALIVE = b": waiting for the model\n\n"
_SILENT = logging.getLogger("woodshed.gateway.server")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False  # what hostile programs send is no news, and may hold a key


class Door:
    """A ModelDoor: see :class:`woodshed.interfaces.ModelDoor`. Made inside the running event loop."""

    def __init__(self, model: ModelClient, gate: Gate, name: str, *, grace_s: float = GRACE_S) -> None:
        """``name`` is the model's, as programs are told it."""
        self.key = secrets.token_urlsafe(32)
        self._model, self._gate, self._name, self._open = model, gate, name, True
        self._turns = Turns(grace_s=grace_s)
        self._connections: dict[object, _Connection] = {}
        self._server = web.Server(
            self._handle, handler_cancellation=True, access_log=None, logger=_SILENT, auto_decompress=False,
            keepalive_timeout=IDLE_S, lingering_time=1.0)

    async def admit(self, descriptor: int) -> None:
        """Serve one connection until it ends. The descriptor is closed then."""
        end = socket.socket(fileno=descriptor)
        end.setblocking(False)
        handler = self._server()
        connection = self._connections[handler] = _Connection(handler)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, end)
            await connection.ended.wait()
        except OSError:
            end.close()
        finally:
            connection.cut()
            del self._connections[handler]

    async def close(self) -> None:
        """The key is dead, calls in flight are cut off. Idempotent."""
        self._open = False
        await self._turns.close()
        for connection in list(self._connections.values()):
            connection.cut()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one request; whatever goes wrong here, no word of it gets out."""
        path = tuple(part for part in request.path.split("/") if part)
        dialect = SPOKEN.get(path, chat)
        async with self._serving(request):
            try:
                return await self._answer(request, path, dialect)
            except Denied as denied:
                return _failed(dialect, denied.failure)
            except WoodshedError as fault:
                return _failed(dialect, denial.of_fault(fault))
            except ConnectionError:  # nobody is there to be told
                raise
            except Exception as error:  # of ours: the attempt is told, the program is not
                self._gate.broken(f"the gateway's server failed upon a request ({type(error).__name__})")
                return _failed(dialect, denial.BROKEN)

    @asynccontextmanager
    async def _serving(self, request: web.BaseRequest) -> AsyncIterator[None]:
        connection = self._connections.get(request.protocol)
        if connection is not None:
            connection.busy()
        try:
            yield
        finally:
            if connection is not None:
                connection.idle()

    async def _answer(self, request: web.BaseRequest, path: tuple[str, ...], dialect: Dialect) -> web.StreamResponse:
        if not self._known(request.headers):
            raise Denied(denial.DEAD_KEY)
        if path in SPOKEN:
            if request.method != "POST":
                raise Refused("use POST", status=405)
            return await self._complete(request, dialect)
        if path[:2] == ("v1", "models") and request.method == "GET":
            model = {"id": self._name, "object": "model", "created": 0, "owned_by": "woodshed"}
            if len(path) == 2:
                return _json(200, {"object": "list", "data": [model]})
            return _json(200, model | {"id": "/".join(path[2:])[:200]})  # any name is this model's
        raise Denied(denial.NOT_FOUND)

    def _known(self, headers: Mapping[str, str]) -> bool:
        """Whether they hold the key; compared in a time that tells nothing of it."""
        kind, _, token = headers.get("Authorization", "").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        right = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self.key.encode())
        return right and self._open

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _complete(self, request: web.BaseRequest, dialect: Dialect) -> web.StreamResponse:
        body = (await _body(request)).replace(self.key.encode(), b"***")  # no model needs it, and no record holds it
        asked = dialect.read(_object(body))
        turn = self._turns.find(body, request.headers) or self._begin(body, request.headers, asked)
        stamp, delivered = Stamp(secrets.token_hex(12), int(time.time()), self._name), False
        self._turns.join(turn)
        try:
            if asked.stream:
                answer = await _streamed(request, dialect, asked, turn, stamp)
            else:
                answer = _json(200, dialect.answer(await asyncio.shield(turn.task), stamp))
                await answer.prepare(request)
                await answer.write_eof()
            delivered = True
        finally:
            self._turns.leave(turn, delivered=delivered)
        return answer

    def _begin(self, body: bytes, headers: Mapping[str, str], asked: Asked) -> Turn:
        if self._turns.running >= MOST_RUNNING:
            raise Denied(denial.BUSY)
        allowed = self._gate.before(asked.request)
        if isinstance(allowed, StopReason):
            raise Denied(denial.limit(allowed))
        return self._turns.begin(body, headers, self._call(allowed))

    async def _call(self, request: ModelRequest) -> ModelResponse:
        """One call of the attempt's client; the gate is told once how it ended."""
        try:
            response = await self._model.call(request)
        except BaseException as error:
            self._gate.failed(error if isinstance(error, Exception) else None)
            raise
        self._gate.after(request, response)
        return response


async def _streamed(
    request: web.BaseRequest, dialect: Dialect, asked: Asked, turn: Turn, stamp: Stamp
) -> web.StreamResponse:
    """The answer as a stream: whole when it comes, with signs of life until then."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8",
                                         "Cache-Control": "no-cache"})
    done, _ = await asyncio.wait([turn.task], timeout=PATIENCE_S)
    if done:
        turn.task.result()  # a failure is answered as one
    await answer.prepare(request)
    while not done:
        await answer.write(_ALIVE)
        done, _ = await asyncio.wait([turn.task], timeout=ALIVE_S)
    try:
        response = await asyncio.shield(turn.task)
    except WoodshedError as fault:
        await answer.write(dialect.broken(denial.of_fault(fault)))
    else:
        await answer.write(b"".join(dialect.stream(response, asked, stamp)))
    await answer.write_eof()
    return answer


async def _body(request: web.BaseRequest) -> bytes:
    """The body as it was sent. Raises Refused for one too large, too slow or packed."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refused("a packed body is not served: send it as it is", status=415)
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > BODY_BYTES:
                    raise Refused(f"a body is at most {BODY_BYTES} bytes", status=413)
    except TimeoutError:
        raise Refused("the body came too slowly", status=408) from None
    except (web.RequestPayloadError, ValueError):
        raise Refused("the body is no HTTP") from None
    return b"".join(parts)


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):  # UnicodeDecodeError is one
        data = None
    if not isinstance(data, dict):
        raise Refused("the body must be a JSON object")
    return data


def _json(status: int, data: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return web.Response(status=status, body=text, headers={"Content-Type": "application/json", **(headers or {})})


def _failed(dialect: Dialect, failure: Failure) -> web.Response:
    headers = {"x-should-retry": "true" if failure.again else "false"}
    if failure.after_s is not None:
        headers["Retry-After"] = f"{max(0.0, failure.after_s):.0f}"
    return _json(failure.status, dialect.failure(failure), headers)


class _Connection(asyncio.Protocol):
    """What passes between a connection and the HTTP library. One that wants nothing for too long is cut off."""

    def __init__(self, handler: RequestHandler) -> None:
        self.ended = asyncio.Event()
        self._handler, self._transport = handler, None
        self._loop = asyncio.get_running_loop()
        self._later = self._loop.call_later(IDLE_S, self.cut)

    _transport: asyncio.BaseTransport | None

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
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()
        elif self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._later.cancel()
        self.ended.set()
        self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._handler.data_received(data)

    def eof_received(self) -> None:
        self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()
