"""The gateway's server: programs that speak to a model over HTTP are let in here, and every call they make is a call().

One :class:`Door` belongs to one attempt. It knows one key, speaks the dialects listed in ``SPOKEN``, and asks its gate
before each call, so that an attempt's limits hold for programs that know nothing of them. What is said here is hostile:
sizes and times are bounded, and nothing of ours stands in an answer but what the dialect needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from woodshed.errors import WoodshedError
from woodshed.gateway import denial
from woodshed.gateway.connections import Connections
from woodshed.gateway.dialects import Asked, Denied, Dialect, Failure, Refused, Stamp, chat, messages, responses
from woodshed.gateway.estimate import estimate
from woodshed.gateway.memory import Memory
from woodshed.gateway.parsing import dumps, loads
from woodshed.gateway.turns import GRACE_S, Turn, Turns
from woodshed.interfaces import Gate, ModelClient, ModelRequest, ModelResponse
from woodshed.model import StopReason

SPOKEN: Mapping[tuple[str, ...], Dialect] = {
    ("v1", "chat", "completions"): chat, ("v1", "responses"): responses, ("v1", "messages"): messages}
"""Dialects by the path of their requests."""
COUNTED = ("v1", "messages", "count_tokens")
BODY_BYTES = 32_000_000
LARGE_BYTES, MOST_THINGS = 256_000, 20_000
"""A body beyond the former may hold no more lists' elements than the latter: to read one costs far more than a byte."""
BODY_S = 60.0
"""Within this a request's body is here."""
MOST_RUNNING = 32
"""Calls of one attempt that run at once; more are told to come again."""
PATIENCE_S, ALIVE_S = 5.0, 10.0
"""A stream begins when the answer is there, or after this, with a sign of life each ``ALIVE_S``: until it has begun, a
failure still has a status of its own."""
_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Door:
    """A ModelDoor: see :class:`woodshed.interfaces.ModelDoor`. Made inside the running event loop."""

    def __init__(self, model: ModelClient, gate: Gate, name: str, *, grace_s: float = GRACE_S) -> None:
        """``name`` is the model's, as programs are told it."""
        self.key = secrets.token_urlsafe(32)
        self._model, self._gate, self._name, self._open = model, gate, name, True
        self._turns, self._memory = Turns(grace_s=grace_s), Memory()
        self._counted: tuple[ModelRequest, int] | None = None
        self._connections = Connections(self._respond)

    async def admit(self, descriptor: int) -> None:
        """Serve one connection until it ends. The descriptor is closed then."""
        await self._connections.admit(descriptor)

    async def close(self) -> None:
        """The key is dead, calls in flight are cut off. Idempotent."""
        self._open = False
        await self._turns.close()
        self._connections.cut()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one request; whatever goes wrong here, no word of it gets out."""
        parts = tuple(part for part in request.path.split("/") if part)
        dialect = _meant(parts, request.headers)
        try:
            return await self._answer(request, parts, dialect)
        except Denied as denied:
            return _failed(dialect, denied.failure)
        except WoodshedError as fault:
            return _failed(dialect, denial.of_fault(fault))
        except ConnectionError:  # nobody is there to be told
            raise
        except Exception as error:  # of ours: the attempt is told, the program is not
            self._gate.broken(f"the gateway's server failed upon a request ({type(error).__name__})")
            return _failed(dialect, denial.BROKEN)

    async def _answer(self, request: web.BaseRequest, path: tuple[str, ...], dialect: Dialect) -> web.StreamResponse:
        if not self._known(request.headers):
            raise Denied(denial.DEAD_KEY)
        if path in SPOKEN or path == COUNTED:
            if request.method != "POST":
                raise Refused("use POST", status=405)
            asked, digest = await self._asked(request, path, dialect)
            if path == COUNTED:
                return _json(200, {"input_tokens": estimate(asked.request, self._counted)})
            return await self._complete(request, dialect, asked, digest)
        if path[:2] == ("v1", "models") and request.method == "GET":
            return _json(200, _models(dialect, self._name, "/".join(path[2:])[:200]))
        raise Denied(denial.NOT_FOUND)

    def _known(self, headers: Mapping[str, str]) -> bool:
        """Whether they hold the key; compared in a time that tells nothing of it."""
        right = hmac.compare_digest(_given_key(headers), self.key.encode())
        return right and self._open

    async def _asked(self, request: web.BaseRequest, path: tuple[str, ...], dialect: Dialect) -> tuple[Asked, bytes]:
        """What is asked, and the digest of all that it says."""
        body = (await _body(request)).replace(self.key.encode(), b"***")  # no model needs it, and no record holds it
        asked = dialect.read(_object(body), request.headers)
        if asked.follows is not None:
            asked = asked.after(self._memory.find(asked.follows))
        if not asked.request.messages:
            raise Refused("there is nothing to answer: send at least one message")
        return asked, hashlib.sha256("/".join(path).encode() + b"\0" + body).digest()

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _complete(
        self, request: web.BaseRequest, dialect: Dialect, asked: Asked, digest: bytes
    ) -> web.StreamResponse:
        turn = self._turns.find(digest, request.headers) or self._begin(digest, request.headers, asked)
        delivered = False
        self._turns.join(turn)
        try:
            answer = await self._delivered(request, dialect, asked, turn)
            delivered = True
        finally:
            self._turns.leave(turn, delivered=delivered)
        return answer

    async def _delivered(
        self, request: web.BaseRequest, dialect: Dialect, asked: Asked, turn: Turn
    ) -> web.StreamResponse:
        """The answer, sent. A stream whose answer comes in time is sent in one piece; so is a failure, in its body."""
        done, _ = await asyncio.wait([turn.task], timeout=PATIENCE_S if asked.stream else None)
        named = {dialect.REQUEST_ID: f"req_{turn.stamp.id}"}
        if not done:
            return await self._slow(request, dialect, asked, turn, web.StreamResponse(headers=_STREAM | named))
        response = self._result(asked, turn)
        if asked.stream:
            events = (dialect.opening(response, asked, turn.stamp), *dialect.stream(response, asked, turn.stamp))
            answer = web.Response(body=b"".join(events), headers=_STREAM | named)
        else:
            answer = _json(200, dialect.answer(response, asked, turn.stamp), named)
        await answer.prepare(request)
        await answer.write_eof()
        return answer

    async def _slow(
        self, request: web.BaseRequest, dialect: Dialect, asked: Asked, turn: Turn, answer: web.StreamResponse
    ) -> web.StreamResponse:
        """A stream that begins before its answer is there: with signs of life until then."""
        await answer.prepare(request)
        await answer.write(dialect.opening(None, asked, turn.stamp))
        while not turn.task.done():
            await answer.write(dialect.ALIVE)
            await asyncio.wait([turn.task], timeout=ALIVE_S)
        try:
            response = self._result(asked, turn)
        except Denied as denied:
            await answer.write(dialect.broken(denied.failure, asked, turn.stamp))
        except WoodshedError as fault:
            await answer.write(dialect.broken(denial.of_fault(fault), asked, turn.stamp))
        else:
            await answer.write(b"".join(dialect.stream(response, asked, turn.stamp)))
        await answer.write_eof()
        return answer

    def _result(self, asked: Asked, turn: Turn) -> ModelResponse:
        """What the call came to. Raises what it raised; Denied where it was cut off, which closing alone does."""
        if turn.task.cancelled():
            raise Denied(denial.DEAD_KEY)
        response = turn.task.result()
        if asked.remembered:
            self._memory.keep(f"resp_{turn.stamp.id}", asked.conversation(response))
        return response

    def _begin(self, digest: bytes, headers: Mapping[str, str], asked: Asked) -> Turn:
        if self._turns.running >= MOST_RUNNING:
            raise Denied(denial.BUSY)
        allowed = self._gate.before(asked.request)
        if isinstance(allowed, StopReason):
            raise Denied(denial.limit(allowed))
        stamp = Stamp(secrets.token_hex(12), int(time.time()), self._name)
        return self._turns.begin(digest, headers, self._call(allowed), stamp)

    async def _call(self, request: ModelRequest) -> ModelResponse:
        """One call of the attempt's client; the gate is told once how it ended."""
        try:
            response = await self._model.call(request)
        except BaseException as error:
            self._gate.failed(error if isinstance(error, Exception) else None)
            raise
        self._gate.after(request, response)
        self._counted = (request, response.prompt_tokens) if response.prompt_tokens else self._counted
        return replace(response, tokens=None)  # no program is told them, and answers are remembered for a while


def _meant(path: tuple[str, ...], headers: Mapping[str, str]) -> Dialect:
    """The dialect of a request, and of the refusal of one for a path that none has."""
    return SPOKEN.get(path) or (messages if path == COUNTED or "anthropic-version" in headers else chat)


def _given_key(headers: Mapping[str, str]) -> bytes:
    """The key that a request holds: as a bearer's token, or in Anthropic's header."""
    kind, _, token = headers.get("Authorization", "").partition(" ")
    given = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
    return given.encode("utf-8", "surrogateescape")


def _failed(dialect: Dialect, failure: Failure) -> web.Response:
    """The answer that is none."""
    headers = {"x-should-retry": "true" if failure.again else "false"}
    if failure.after_s is not None:
        headers["Retry-After"] = f"{max(0.0, failure.after_s):.0f}"
    return _json(failure.status, dialect.failure(failure), headers)


def _models(dialect: Dialect, name: str, asked: str) -> Mapping[str, Any]:
    """The attempt's model, alone in a list; or by whatever name it is asked for."""
    if dialect is messages:
        return messages.model(asked) if asked else messages.listed(name)
    model = {"id": asked or name, "object": "model", "created": 0, "owned_by": "woodshed"}
    return model if asked else {"object": "list", "data": [model]}


async def _body(request: web.BaseRequest) -> bytes:
    """The body as it was sent. Raises Refused for one too large, too slow or packed."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refused("a packed body is not served: send it as it is", status=415)
    if request.headers.get("Expect", "").lower() == "100-continue":  # curl waits a second for it
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # it is no part of the answer
    parts, size = [], 0
    try:
        if request.content.is_eof() and request.content.total_bytes <= BODY_BYTES:
            return request.content.read_nowait()  # it came with its head
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
        data = loads(body)
    except (ValueError, RecursionError):  # UnicodeDecodeError is one
        data = None
    if not isinstance(data, dict):
        raise Refused("the body must be a JSON object")
    if len(body) > LARGE_BYTES and _things(data) > MOST_THINGS:
        raise Refused(f"a conversation is of at most {MOST_THINGS} messages, calls and parts", status=413)
    return data


def _things(data: Any) -> int:
    """Elements of all lists in parsed JSON; counted no further than ``MOST_THINGS``."""
    count, left = 0, [data]
    while left and count <= MOST_THINGS:
        one = left.pop()
        count += len(one) if isinstance(one, list) else 0
        left += [inner for inner in (one.values() if isinstance(one, dict) else one) if isinstance(inner, dict | list)]
    return count


def _json(status: int, data: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=dumps(data),
                        headers={"Content-Type": "application/json", **(headers or {})})
