"""The way out: names are resolved here, what they lead to is judged, and exactly what was judged is connected to."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from woodshed.errors import UsageError
from woodshed.model.network import HostRule, NetworkPolicy, split_address
from woodshed.sandbox.egress import outer
from woodshed.sandbox.egress.addresses import is_own, why_refused
from woodshed.sandbox.egress.seats import Seats
from woodshed.sandbox.egress.wires import Plain, Sealed, Wire

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name, best first. Raises OSError."""

CONNECT_S = 15.0
_EACH_S = 6.0
_MOST_ADDRESSES = 4
_KNOWN_S, _UNKNOWN_S, _MOST_NAMES = 30.0, 5.0, 1024
_THREADS = 128
"""For getaddrinfo(3), which blocks: apart from the event loop's own threads, so that slow names stop nobody else. They
are started when they are needed."""
ASKING = 4
"""Names that one sandbox may be waiting for, so that those which never answer leave threads for others."""


class Unreached(Exception):
    """No connection. ``refused``: by us, because of where the name leads."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.refused = reason, refused


@dataclass(frozen=True, slots=True)
class _Known:
    addresses: tuple[str, ...]
    until: float


class Outside:
    """The network outside, for all sandboxes of an engine. ``seats``: their connections."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        """``lookup`` instead of the system's resolver."""
        self._lookup = lookup or self._system
        self.seats, self._proxies = Seats(), outer.Proxies({})
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        self._contexts: dict[str | None, ssl.SSLContext] = {}
        self._threads: ThreadPoolExecutor | None = None

    async def prepare(self, policy: NetworkPolicy) -> None:
        """Read which proxy is used, and once the certificates that the rules trust: some ten milliseconds.

        Raises UsageError.
        """
        self._proxies = outer.chosen()
        for rule in policy.rules:
            if (rule.upstream_tls or rule.intercept) and rule.ca_file not in self._contexts:
                self._contexts[rule.ca_file] = await asyncio.to_thread(_context, rule.ca_file)

    async def connect(
        self, rule: HostRule, name: str, port: int, asking: asyncio.Semaphore, *, tls: bool = False
    ) -> Wire:
        """A connection to ``name`` as ``rule`` admits. Raises Unreached.

        Where ``tls`` its certificate is checked; the rule's policy was prepared for. ``asking`` is the sandbox's.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                proxy = None if rule.address is not None else self._proxies.find(name, port, tls=tls)
                if proxy is None:
                    plain = await self._plain(await self._targets(rule, name, port, asking))
                else:
                    plain = await self._through(proxy, rule, name, port, asking)
                return await self._sealed(plain, rule, name) if tls else plain
        except TimeoutError:
            raise Unreached("no answer in time") from None
        except ssl.SSLCertVerificationError as error:
            raise Unreached(f"its certificate: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise Unreached(f"TLS: {error.reason}") from None
        except OSError as error:
            raise Unreached(_reason(error)) from None

    async def _targets(
        self, rule: HostRule, name: str, port: int, asking: asyncio.Semaphore
    ) -> list[tuple[str, int]]:
        if rule.address is not None:
            address, own = split_address(rule.address)
            return [(address, own or port)]
        addresses = await self._resolve(name, rule.private, asking)
        reasons = {address: why_refused(address, private=rule.private) or _own(address, port) for address in addresses}
        fine = [address for address, reason in reasons.items() if reason is None]
        if not fine:
            raise Unreached("leads to " + ", ".join(sorted({reason for reason in reasons.values() if reason})),
                            refused=True)
        return [(address, port) for address in fine[:_MOST_ADDRESSES]]

    async def _through(
        self, proxy: outer.Proxy, rule: HostRule, name: str, port: int, asking: asyncio.Semaphore
    ) -> Plain:
        """To ``name`` by a proxy, which resolves it."""
        if not rule.private and (reason := outer.why_refused(name)) is not None:
            raise Unreached(reason, refused=True)
        try:
            addresses = await self._resolve(proxy.host, True, asking)
            plain = await self._plain([(address, proxy.port) for address in addresses[:_MOST_ADDRESSES]])
        except (Unreached, OSError) as error:
            raise Unreached(f"the proxy outside cannot be reached: {_reason(error)}") from None
        try:
            await proxy.ask(plain, name, port)
        except outer.Declined as error:
            plain.close()
            raise Unreached(f"the proxy outside {error}") from None
        except BaseException:
            plain.close()
            raise
        return plain

    async def _plain(self, targets: Sequence[tuple[str, int]]) -> Plain:
        failure: OSError = ConnectionRefusedError("no address")
        for address, port in targets:
            end = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            try:
                end.setblocking(False)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                async with asyncio.timeout(_EACH_S):
                    await asyncio.get_running_loop().sock_connect(end, (address, port))
                return Plain(end)
            except OSError as error:  # TimeoutError is one
                end.close()
                failure = error
            except BaseException:
                end.close()
                raise
        raise failure

    async def _sealed(self, plain: Plain, rule: HostRule, name: str) -> Sealed:
        try:
            wire = Sealed(plain, self._contexts[rule.ca_file], name=name)
            await wire.handshake()
        except BaseException:
            plain.close()
            raise
        return wire

    # -- names ---------------------------------------------------------------------------------------------------------

    async def _resolve(self, name: str, private: bool, asking: asyncio.Semaphore) -> tuple[str, ...]:
        """Asked once however many want to know. A name of the Internet is absolute: no search list makes it another."""
        asked = name if private or "." not in name else name + "."
        known = self._known.get(asked)
        if known is not None and known.until > time.monotonic():
            addresses = known.addresses
        else:
            async with asking:
                task = self._asked.get(asked)
                if task is None:
                    task = self._asked[asked] = asyncio.get_running_loop().create_task(self._ask(asked))
                addresses = await asyncio.shield(task)
        if not addresses:
            raise Unreached("the name is not known")
        return addresses

    async def _ask(self, name: str) -> tuple[str, ...]:
        try:
            addresses = tuple(await self._lookup(name))
        except (OSError, UnicodeError):
            addresses = ()
        finally:
            self._asked.pop(name, None)
        if len(self._known) >= _MOST_NAMES:
            del self._known[next(iter(self._known))]
        self._known[name] = _Known(addresses, time.monotonic() + (_KNOWN_S if addresses else _UNKNOWN_S))
        return addresses

    async def _system(self, name: str) -> Sequence[str]:
        self._threads = self._threads or ThreadPoolExecutor(_THREADS, "egress-names")
        return await asyncio.get_running_loop().run_in_executor(self._threads, _addresses, name)

    def close(self) -> None:
        """No name is asked for any more; threads that wait for an answer end when it comes."""
        for task in self._asked.values():
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"{ca_file} cannot be used: {error.strerror or error}", field="network.rules.ca_file",
                         remedy="Name a file of certificates in PEM.") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _addresses(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def _reason(error: Exception) -> str:
    """What went wrong in few words: asyncio's own would name the address."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno else type(error).__name__
    return str(error)


def _own(address: str, port: int) -> str | None:
    return "this machine itself" if is_own(address, port) else None
