"""Plain HTTP between a sandbox and a host, request by request: each is read, judged and written anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from woodshed.model.network import HostRule
from woodshed.sandbox.egress import http, inject
from woodshed.sandbox.egress.answers import Answer
from woodshed.sandbox.egress.http import Refused, Request
from woodshed.sandbox.egress.inject import Blot, Secret
from woodshed.sandbox.egress.visit import HEAD_S, Visit, both, carry
from woodshed.sandbox.egress.wires import Wire

Open = Callable[[], Awaitable[Wire]]
_OVERRIDES = frozenset((b"x-http-method-override", b"x-http-method", b"x-method-override"))
"""By which some servers take a request for one of another method."""
_LINGER_S, _LINGER_PIECES = 2.0, 64
_SHOWN_PATH = 200


class Relay:
    """The requests of one connection. The way out is opened when the first was found to be in order."""

    def __init__(self, visit: Visit, client: Wire, opens: Open, secrets: Mapping[str, Secret], *, clear: bool) -> None:
        """``clear``: what is sent out travels in the clear."""
        self._visit, self._client, self._opens = visit, client, opens
        self._rule: HostRule = visit.grant.rule
        self._host = visit.name if visit.port in (80, 443) else f"{visit.name}:{visit.port}"
        self._secrets = inject.of_rule(self._rule, secrets)
        self._forms: list[bytes] = []
        self._clear, self._buffer, self._body = clear, bytearray(), http.Body(0)
        # So that a refusal is always the first answer on its connection, and cannot fall into another one.
        self._once = self._rule.allowed_methods is not None or bool(self._secrets)

    async def run(self, first: bytes) -> None:
        """Carry requests and answers until either side ends. Raises OSError, Ended, Refused, Unreached."""
        self._buffer += first
        request = await self._head()
        if request is None:
            return
        self._judge(request)
        server = await self._opens()
        try:
            await self._forward(server, request)
            answer = Answer(Blot(self._forms), bodiless=request.method == "HEAD") if self._forms else None
            await both(self._requests(server, request), carry(server, self._client, self._visit.count_received, answer),
                       until=1)
        finally:
            server.close()

    async def _head(self) -> Request | None:
        """The next request; None where there is none. Time runs from its first byte."""
        if not self._buffer and not await self._read():
            return None
        try:
            async with asyncio.timeout(HEAD_S):
                while (request := http.take(self._buffer)) is None:
                    if not await self._read():
                        raise Refused("a request cut off", 400)
        except TimeoutError:
            raise Refused("a request too slow", 408) from None
        return request

    async def _read(self) -> bool:
        data = await self._client.read()
        self._buffer += data
        return bool(data)

    def _judge(self, request: Request) -> None:
        """It may be forwarded. Raises Refused."""
        visit, rule = self._visit, self._rule
        if request.host != visit.name or request.port not in (None, visit.port):
            raise Refused(f"its Host is {request.host}, but it was sent to {visit.name}", 421)
        allowed = rule.allowed_methods
        if allowed is not None and request.method not in allowed:
            raise Refused(f"the method {request.method}; allowed here: {', '.join(allowed) or 'none'}")
        if allowed is not None and any(name.lower() in _OVERRIDES for name, _ in request.fields):
            raise Refused("a header that overrides the method")
        if self._clear and self._secrets:
            raise Refused("in the clear a secret would be read by others: use https")

    async def _forward(self, server: Wire, request: Request) -> None:
        visit = self._visit
        filled = inject.put(request.fields, self._secrets)
        request.fields, self._forms = filled.fields, filled.forms
        more: dict[str, Any] = {"secrets": filled.names} if filled.names else {}
        visit.tell("allowed", method=request.method, path=request.path.partition("?")[0][:_SHOWN_PATH], **more)
        head = request.written(host=self._host if self._rule.upstream_tls else None, close=self._once)
        visit.count_sent(len(head))
        await server.write(head)
        self._body = http.Body(request.length)

    async def _requests(self, server: Wire, request: Request) -> None:
        """The body of the first request, and the requests after it."""
        while True:
            while not self._body.done:
                if not self._buffer and not await self._read():
                    raise ConnectionResetError("a request cut off")
                if piece := self._body.take(self._buffer):
                    self._visit.count_sent(len(piece))
                    await server.write(piece)
            if self._once or request.last:
                return  # what may follow is not read
            following = await self._head()
            if following is None:
                await server.finish()
                return
            request = following
            self._judge(request)
            await self._forward(server, request)


async def tell_refused(client: Wire, refusal: Refused) -> None:
    """Answer, and let the answer arrive: an end while something is unread would take it back."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            await client.write(http.refusal(refusal))
            for _ in range(_LINGER_PIECES):
                if not await client.read():
                    break
            await client.finish()
