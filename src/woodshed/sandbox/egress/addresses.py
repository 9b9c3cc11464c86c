"""Which addresses an allowed name may lead to: public ones; private ones where a rule says so; others never."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

_V4, _V6 = ipaddress.IPv4Network, ipaddress.IPv6Network
_PRIVATE: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = (
    _V4("10.0.0.0/8"), _V4("100.64.0.0/10"), _V4("172.16.0.0/12"), _V4("192.168.0.0/16"), _V6("fc00::/7"),
)
_METADATA = (
    _V4("100.100.100.200/32"), _V6("fd00:ec2::/32"), _V6("fd20:ce::/32"), _V6("fd00:42::/32"), _V4("168.63.129.16/32"))
"""Of clouds that keep it in private or public ranges: Alibaba; AWS, Google, Scaleway by IPv6; Azure's wire server."""
# IANA IPv4 Special-Purpose Address Registry (RFC 6890 and later), what is not globally reachable, and multicast.
_REFUSED_V4 = tuple(map(_V4, (
    "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
    "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
)))
_GLOBAL_V6 = _V6("2000::/3")
"""All that IANA gives out. Outside of it lie loopback, link-local, multicast, IPv4-mapped (::ffff:0:0/96) and NAT64
(64:ff9b::/96, 64:ff9b:1::/48), behind which any IPv4 address can stand."""
# Inside 2000::/3: protocol assignments with Teredo and ORCHID, documentation, 6to4 (it carries an IPv4 address).
_REFUSED_V6 = tuple(map(_V6, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))


def why_refused(address: str, *, private: bool = False) -> str | None:
    """Why nothing may be sent to ``address``, a literal without a port; None where it may. Unreadable ones are refused.

    ``private`` admits the ranges of organisations (RFC 1918, 4193, 6598), and no others.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "not an address"
    if _within(ip, _METADATA):
        return "a metadata service"
    if _within(ip, _PRIVATE):
        return None if private else "a private address"
    if isinstance(ip, ipaddress.IPv4Address):
        return "a special address" if _within(ip, _REFUSED_V4) else None
    return None if ip in _GLOBAL_V6 and not _within(ip, _REFUSED_V6) else "a special address"


def _within(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
    networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network],
) -> bool:
    return any(ip in network for network in networks)  # of another family: False


def is_own(address: str, port: int) -> bool:
    """Whether ``address`` is this machine's: a packet to it would be sent from it. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False  # no way there at all: the connection will say so
