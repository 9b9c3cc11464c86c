"""The way out through a proxy that this machine needs, by the setting ``egress_proxy``.

The proxy is asked for a name and resolves it, so nothing here can tell where that leads: what of a name alone says that
it is no public host is refused, and the proxy must keep it from others.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from woodshed.errors import UsageError
from woodshed.sandbox.egress.wires import Plain
from woodshed.settings import setting

ENVIRONMENT = "environment"
_FIELD = "WOODSHED_EGRESS_PROXY"
_HTTP = 80
_LARGEST_HEAD = 16_384
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r)")
# RFC 6761, 6762, 8375 and ICANN's reservation of .internal: names that are answered within a network, or on a machine.
_SPECIAL = ("localhost", "local", "internal", "home.arpa", "localdomain", "lan", "intranet", "private", "corp", "home")


class Declined(Exception):
    """The proxy does not connect; the message says what it answered."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where it listens, and the value of Proxy-Authorization, empty for none."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    async def ask(self, wire: Plain, name: str, port: int) -> None:
        """Have ``wire``, a connection to the proxy, go on to ``name`` (RFC 9110, 9.3.6). Raises Declined, OSError."""
        login = f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""
        await wire.write(f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n{login}\r\n".encode("ascii"))
        said = bytearray()
        while (end := said.find(b"\r\n\r\n")) < 0:
            data = await wire.read()
            said += data
            if not data or len(said) > _LARGEST_HEAD:
                raise Declined("did not answer as one")
        status = _STATUS.match(said)
        if status is None:
            raise Declined("did not answer as one")
        if not status[1].startswith(b"2"):
            raise Declined(f"answered {status[1].decode()}")
        wire.unread(bytes(said[end + 4:]))  # of hosts that speak first


class Proxies:
    """Which connection goes through which proxy."""

    def __init__(self, proxies: Mapping[str, Proxy], direct: str = "") -> None:
        """``proxies`` for ``http`` (in the clear, to port 80) and ``https`` (all else); ``direct`` is NO_PROXY."""
        self._proxies = proxies
        self._direct = [entry.strip().lower() for entry in direct.split(",") if entry.strip()]

    def __bool__(self) -> bool:
        return bool(self._proxies)

    def find(self, name: str, port: int, *, tls: bool) -> Proxy | None:
        """For a connection to ``name``, over which TLS is begun here or not; None where it goes there itself."""
        proxy = self._proxies.get("http" if port == _HTTP and not tls else "https")
        return None if proxy is None or any(_matches(entry, name, port) for entry in self._direct) else proxy


def _matches(entry: str, name: str, port: int) -> bool:
    """Whether an entry of NO_PROXY is for ``name``: ``*``, a name for itself and all below it, with a port or not."""
    host, colon, only = entry.rpartition(":")
    if not colon:
        host, only = entry, ""
    host = host.removeprefix("*").removeprefix(".")
    return (not only or only == str(port)) and (entry == "*" or (host != "" and f".{name}".endswith(f".{host}")))


def why_refused(name: str) -> str | None:
    """Why no proxy is asked for ``name``; None where it may be a public host's."""
    if "." not in name or any(name.endswith("." + special) for special in _SPECIAL):
        return "a name of a network's own"
    return None


def chosen() -> Proxies:
    """By the setting: none, one for all, or as the environment has them. Raises UsageError."""
    said = setting("egress_proxy")
    if not said:
        return Proxies({})
    from urllib.request import getproxies_environment  # slow to import

    found = getproxies_environment()
    direct = found.get("no", "")
    if said != ENVIRONMENT:
        return Proxies(dict.fromkeys(("http", "https"), _parsed(said, _FIELD)), direct)
    named = {scheme: found.get(scheme) or found.get("all") for scheme in ("http", "https")}
    return Proxies({scheme: _parsed(url, f"{scheme.upper()}_PROXY") for scheme, url in named.items() if url}, direct)


def _parsed(url: str, where: str) -> Proxy:
    """Raises UsageError, in which no password is shown."""
    try:
        parts = urlsplit(url if "://" in url else "http://" + url)
        host, port = parts.hostname, parts.port or _HTTP
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme != "http" or parts.path.strip("/") or parts.query:
        raise UsageError("not the address of a proxy that is spoken to in HTTP", field=where,
                         remedy="Write http://HOST:PORT, with USER:PASSWORD@ before the host where it wants a login.")
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(host, port, "Basic " + base64.b64encode(login.encode()).decode() if login else "")
