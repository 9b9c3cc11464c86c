"""The road from a thread that prepares images to sandboxes, which live on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from woodshed.interfaces import SandboxEngine

T = TypeVar("T")


class Crossing:
    """Runs work on an engine's event loop, and waits for it in a thread that is not the loop's."""

    def __init__(self, engine: SandboxEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop = engine, loop

    def __call__(self, work: Callable[[SandboxEngine], Awaitable[T]]) -> T:
        """What ``work`` returns. Raises what it raises. Blocking."""
        async def run() -> T:
            return await work(self._engine)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
