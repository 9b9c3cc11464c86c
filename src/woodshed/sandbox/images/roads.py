"""Connections to where a registry sends us: never to this machine or to what answers for a cloud's secrets.

A registry names other hosts: for tokens, and in redirects. What a name leads to is judged on the connection itself,
before anything is sent, so no answer of a name server that changes meanwhile leads elsewhere. The registry's own host,
which whoever pulls has named, may be anywhere; so may a proxy.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import urllib.request
from typing import Any
from urllib.parse import urlsplit

HERE = ("localhost", "127.0.0.1", "::1")
_METADATA = tuple(map(ipaddress.ip_network, (
    "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::/32")))
"""Of clouds that keep it outside the link-local ranges: Alibaba, Azure, Oracle; AWS and Google by IPv6."""


class Elsewhere(OSError):
    """A registry led to where nothing of it can be."""


class Stay(urllib.request.HTTPRedirectHandler):
    """Redirects are followed by hand: urllib would carry the token to another host."""

    def redirect_request(self, *_: Any) -> None:
        """None: it becomes an HTTPError, as any other answer that is not 2xx."""
        return


def opener(own: str) -> urllib.request.OpenerDirector:
    """What opens addresses that the registry at host ``own`` (no port) leads to; one of this machine, also to it."""
    proxies = {urlsplit(address if "://" in address else f"//{address}").hostname
               for address in urllib.request.getproxies().values()}
    trusted = frozenset({own.lower(), *filter(None, proxies)})
    return urllib.request.build_opener(Stay, *_handlers(trusted, local=own.lower() in HERE))


def _handlers(trusted: frozenset[str], *, local: bool) -> tuple[urllib.request.BaseHandler, urllib.request.BaseHandler]:
    def connect(address: tuple[str, int], *rest: Any) -> socket.socket:
        made = socket.create_connection(address, *rest)
        if address[0].strip("[]").lower() not in trusted and (
            why := _why(str(made.getpeername()[0]), local=local)
        ):
            made.close()
            raise Elsewhere(f"the registry leads to {address[0]}, which is {why}")
        return made

    class Plain(http.client.HTTPConnection):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._create_connection = connect  # the one place that both kinds connect by

    class Sealed(http.client.HTTPSConnection):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._create_connection = connect

    class Http(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, request)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Sealed, request)

    return Http(), Https()


def _why(address: str, *, local: bool) -> str:
    """What is wrong with an address; empty where nothing is. Private ones may hold a company's storage."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback or ip.is_unspecified:
        return "" if local else "this machine"
    if ip.is_link_local or any(ip in network for network in _METADATA):
        return "a link-local address or a metadata service"
    return ""
