"""The addresses that stand for names in one sandbox: made up, of 198.18.0.0/15, and so telling what was meant."""

from __future__ import annotations

import ipaddress

_FIRST = int(ipaddress.IPv4Address("198.18.0.1"))
_COUNT = (1 << 17) - 2
"""Of 198.18.0.0/15 (RFC 2544: for tests of networks, used by nobody's Internet), without its first and last address."""
MOST = 1024
"""Names known at once; then the one unused for longest is forgotten, and a connection to its address is refused."""


class Names:
    """Hands out addresses in turn, so that a forgotten one is long in coming back for another name."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}  # in the order of their last use
        self._names: dict[str, str] = {}
        self._next = 0

    def address(self, name: str) -> tuple[str, bool]:
        """The address that stands for ``name``, and whether it is new."""
        known = self._addresses.pop(name, None)
        if known is not None:
            self._addresses[name] = known
            return known, False
        if len(self._addresses) >= MOST:
            oldest = next(iter(self._addresses))
            del self._names[self._addresses.pop(oldest)]
        while (address := str(ipaddress.IPv4Address(_FIRST + self._next % _COUNT))) in self._names:
            self._next += 1
        self._next += 1
        self._addresses[name], self._names[address] = address, name
        return address, True

    def name(self, address: str) -> str | None:
        """What ``address`` stands for; None where it was not handed out."""
        name = self._names.get(address)
        if name is not None:
            self._addresses[name] = self._addresses.pop(name)
        return name
