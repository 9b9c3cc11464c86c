"""Room for connections of all sandboxes of an engine: descriptors of this process, of which none takes another's."""

from __future__ import annotations

import resource

_SHARE = 8
"""One in so many descriptors is a seat. A connection takes two, and where some sandboxes have many seats already the
others still get their fair parts: that makes half of all in the end, and leaves half for what else an engine does."""
_LEAST = 2
"""Any sandbox may have so many, however many there are."""


class Seats:
    """Who has how many. A sandbox is known by any object of its own."""

    def __init__(self) -> None:
        self._taken: dict[object, int] = {}

    def enter(self, who: object) -> None:
        """One sandbox more shares in them."""
        self._taken[who] = 0

    def free(self, who: object) -> bool:
        """Whether ``who``, which has entered, may have one more: while any is left, and then up to its fair part."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # each time: whoever runs us may raise it
        most = soft // _SHARE
        if soft == resource.RLIM_INFINITY or sum(self._taken.values()) < most:
            return True
        return self._taken[who] < max(_LEAST, most // len(self._taken))

    def take(self, who: object) -> None:
        """It has one more."""
        self._taken[who] += 1

    def give_back(self, who: object) -> None:
        """One of its seats is free."""
        if who in self._taken:
            self._taken[who] -= 1

    def leave(self, who: object) -> None:
        """It needs none any more. Idempotent."""
        self._taken.pop(who, None)
