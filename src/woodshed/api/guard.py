"""Guard: what every request passes first: the key, the size and the time of its body, the time a reader may take.

Plain ASGI, so that nothing of a request is read by anyone before its key is known.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from woodshed.api import problems
from woodshed.api.problems import Refused
from woodshed.services.metrics import Requests

BODY_BYTES = 1_000_000
BODY_S, SEND_S = 20.0, 60.0
"""Within this a body is here, and a piece of an answer is taken by whoever asked."""
LINGER_BYTES, LINGER_S = 16_000_000, 1.0
"""So much of a body that is too large is read, so that its sender hears why it is refused."""
OPEN = frozenset({"/health", "/openenv/health", "/openenv/metadata", "/openenv/schema"})
"""Paths that need no key: they tell nothing of anyone."""


class Guard:
    """Lets a request in, or answers it with a problem. Counts what it let in, or not, in ``seen``.

    With ``ending`` set, whoever waits for something is answered that it has not come.
    """

    def __init__(
        self, app: ASGIApp, key: str, seen: Requests, ending: asyncio.Event, *, body_s: float = BODY_S
    ) -> None:
        self.ending = ending
        self._app, self._seen, self._body_s = app, seen, body_s
        self._key = hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or a WebSocket whose key is known; anything else is closed."""
        if scope["type"] != "http":
            if scope["type"] == "websocket" and self._known(dict(scope["headers"])):
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Answer(send)
        started = time.perf_counter()
        try:
            with self._seen.running():
                await self._admit(scope, receive, answer)
        except Refused as refused:
            await answer.problem(refused)
        finally:
            self._seen.add(_route(scope), scope["method"], answer.status, time.perf_counter() - started)

    async def _admit(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if scope["path"] not in OPEN and not self._known(headers):
            raise Refused(401, "this is for those who have the service's key")
        if scope["method"] in ("GET", "HEAD", "DELETE"):
            await self._app(scope, _without_body(receive), answer)
            return
        try:
            async with asyncio.timeout(self._body_s):
                content = await _whole(headers, receive)
        except TimeoutError:
            raise Refused(408, f"its body was not here after {self._body_s:g} s") from None
        except Refused as refused:
            if refused.status == 413:
                await _let_go(receive)
            raise
        await self._app(scope, _with_body(content, receive), answer)

    def _known(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether they hold the key; compared in a time that tells nothing of it, nor of its length."""
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        right = hmac.compare_digest(hashlib.sha256(given.strip()).digest(), self._key)
        return right and kind.lower() == b"bearer"


class _Answer:
    """Passes an answer on, piece by piece; who does not take one in time is left."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
        async with asyncio.timeout(SEND_S):
            await self._send(message)

    async def problem(self, refused: Refused) -> None:
        content = problems.body(refused.status, refused.detail, field=refused.field, remedy=refused.remedy)
        headers = [(b"content-type", problems.MEDIA.encode()), (b"content-length", str(len(content)).encode()),
                   (b"connection", b"close")]
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self({"type": "http.response.body", "body": content})


async def _whole(headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    """The body. Raises Refused where it is too large, or its sender is gone."""
    told = headers.get(b"content-length", b"0")
    if not told.isdigit() or int(told[:20]) > BODY_BYTES:
        raise Refused(413, f"a body has {BODY_BYTES} bytes at the most")
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused(400, "its body was cut off")
        found += message.get("body", b"")
        if len(found) > BODY_BYTES:
            raise Refused(413, f"a body has {BODY_BYTES} bytes at the most")
        if not message.get("more_body"):
            return bytes(found)


async def _let_go(receive: Receive) -> None:
    """What still comes is read for a moment, and forgotten: an answer before that would be lost with the connection."""
    left = LINGER_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (message := await receive()).get("more_body"):
                left -= len(message.get("body", b""))


def _with_body(content: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, and then what else comes: that the sender is gone."""
    pending: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def received() -> Message:
        return pending.pop() if pending else await receive()

    return received


def _without_body(receive: Receive) -> Receive:
    """What is sent with a request that has no body is let go, as it comes."""
    asked: list[bool] = []

    async def received() -> Message:
        if not asked:
            asked.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] == "http.request":
            if not message.get("more_body"):
                continue
        return message

    return received


def _route(scope: Mapping[str, Any]) -> str:
    """The route's own path, with its parameters unfilled: what anyone may make up makes no series of its own."""
    return str(getattr(scope.get("route"), "path", "other"))
