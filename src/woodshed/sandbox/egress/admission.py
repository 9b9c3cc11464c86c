"""One connection to an allowed name: what it says must be for that name, and may then pass."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from woodshed.sandbox.egress import tls
from woodshed.sandbox.egress.ca import Authority
from woodshed.sandbox.egress.http import Refused
from woodshed.sandbox.egress.inject import Secret
from woodshed.sandbox.egress.relay import Relay, tell_refused
from woodshed.sandbox.egress.upstream import Outside, Unreached
from woodshed.sandbox.egress.visit import HEAD_S, IDLE_S, Ended, Visit, both, carry
from woodshed.sandbox.egress.wires import Plain, Sealed, Wire

_HTTP, _HTTPS = 80, 443
_INTERNAL_ERROR = 80
"""The TLS alert where the host cannot be reached."""


class Admission:
    """Lets one connection pass, or not."""

    def __init__(
        self, visit: Visit, outside: Outside, asking: asyncio.Semaphore, secrets: Mapping[str, Secret],
        authority: Authority | None,
    ) -> None:
        self._visit, self._rule = visit, visit.grant.rule
        self._outside, self._asking, self._secrets, self._authority = outside, asking, secrets, authority

    async def run(self, client: Plain) -> bool:
        """Whether it came to an orderly end; otherwise the client is to see a reset. The client stays the caller's."""
        visit = self._visit
        try:
            async with asyncio.timeout(IDLE_S) as visit.idle:
                orderly = await self._speak(client)
        except asyncio.CancelledError:
            visit.told_end("the sandbox ended")
            raise
        except Ended as error:
            visit.told_end(str(error))
            return False
        except TimeoutError:
            visit.told_end(f"nothing moved for {IDLE_S:.0f} s")
            return False
        except OSError as error:
            visit.told_end(type(error).__name__)
            return False
        visit.told_end()
        return orderly

    async def _speak(self, client: Plain) -> bool:
        if self._rule.raw:
            return await self._pass(client, b"")
        first = await self._begins(client)
        if not first:
            return True
        if first[0] == tls.HANDSHAKE:
            self._visit.what = "tls"
            return await self._tls(client, first)
        self._visit.what = "http"
        return await self._http(client, first, tls_outside=self._rule.upstream_tls)

    async def _begins(self, client: Wire) -> bytes:
        """What is said first; nothing where nothing comes."""
        try:
            async with asyncio.timeout(HEAD_S):
                return await client.read()
        except TimeoutError:
            self._visit.tell("refused", "nothing was said")
            return b""

    async def _pass(self, client: Wire, first: bytes) -> bool:
        """Whatever is said goes to the host, and back. Whether it could be reached."""
        visit = self._visit
        try:
            server = await self._outside.connect(self._rule, visit.name, visit.port, self._asking)
        except Unreached as error:
            visit.tell("refused" if error.refused else "failed", error.reason)
            return False
        try:
            visit.tell("allowed")
            if first:
                visit.count_sent(len(first))
                await server.write(first)
            await both(carry(client, server, visit.count_sent), carry(server, client, visit.count_received))
        finally:
            server.close()
        return True

    # -- TLS -----------------------------------------------------------------------------------------------------------

    async def _tls(self, client: Plain, first: bytes) -> bool:
        said = bytearray(first)
        try:
            async with asyncio.timeout(HEAD_S):
                while (hello := tls.read(said)) is None:
                    data = await client.read()
                    if not data:
                        return True
                    said += data
        except (tls.Malformed, TimeoutError) as error:
            self._visit.tell("refused", str(error) or "a ClientHello too slow")
            return False
        if reason := self._amiss(hello):
            self._visit.tell("refused", reason)
            return await _alert(client, tls.UNRECOGNIZED_NAME)
        if self._rule.intercept:
            client.unread(bytes(said))
            return await self._intercepted(client)
        return await self._pass(client, bytes(said)) or await _alert(client, _INTERNAL_ERROR)

    def _amiss(self, hello: tls.Hello) -> str:
        """Why the connection may not pass; empty where it may."""
        if hello.name is None:
            return "TLS without a server name"
        if hello.name != self._visit.name:
            return f"its server name is {hello.name}, but it was sent to {self._visit.name}"
        if hello.hidden:
            return "an encrypted ClientHello, whose server name could be another"
        if self._rule.upstream_tls and not self._rule.intercept:
            return "TLS begins outside: speak http here"
        return ""

    async def _intercepted(self, client: Plain) -> bool:
        assert self._authority is not None, "an engine gives one where a rule has intercept"
        sealed = Sealed(client, self._authority.context(self._visit.name))
        try:
            async with asyncio.timeout(HEAD_S):
                await sealed.handshake()
        except TimeoutError:
            self._visit.tell("refused", "a TLS handshake too slow")
            return False
        except OSError as error:  # most often, a client that does not trust us
            self._visit.tell("failed", f"the sandbox ended the handshake: {getattr(error, 'reason', '') or error}")
            return False
        first = await self._begins(sealed)
        return not first or await self._http(sealed, first, tls_outside=True)

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    async def _http(self, client: Wire, first: bytes, *, tls_outside: bool) -> bool:
        visit, rule = self._visit, self._rule
        port = _HTTPS if tls_outside and visit.port == _HTTP else visit.port

        async def opens() -> Wire:
            return await self._outside.connect(rule, visit.name, port, self._asking, tls=tls_outside)

        try:
            await Relay(visit, client, opens, self._secrets, clear=not tls_outside).run(first)
        except Refused as refusal:
            visit.tell("refused", refusal.reason)
            if visit.sent:
                return False  # in the middle of an answer there is no room for another
            await tell_refused(client, refusal)
        except Unreached as error:
            visit.tell("refused" if error.refused else "failed", error.reason)
            await tell_refused(client, Refused(f"{visit.name}: {error.reason}", 403 if error.refused else 502))
        return True


async def _alert(client: Plain, description: int) -> bool:
    """Say why by an alert; the end then is an orderly one, or the alert would be lost."""
    with suppress(OSError):
        await client.write(tls.alert(description))
        await client.finish()
    return True
