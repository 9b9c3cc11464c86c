"""What a box uses: measured, bounded while it runs, and stopped for a while where that is asked."""

from __future__ import annotations

from woodshed.errors import Unsupported
from woodshed.interfaces import SandboxStats
from woodshed.sandbox.native.link import Link, World


class Meter:
    """Measures and freezes one box."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link = world, link

    async def stats(self) -> SandboxStats:
        """What the box has used so far."""
        raise Unsupported("stats: not built yet")

    async def freeze(self) -> None:
        """Nothing inside runs until :meth:`thaw`. Idempotent."""
        raise Unsupported("freeze: not built yet")

    async def thaw(self) -> None:
        """Everything goes on. Idempotent."""
        raise Unsupported("freeze: not built yet")
