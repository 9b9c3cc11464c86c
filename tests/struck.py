"""Plug-ins that strike: an engine that refuses sandboxes or keeps silent, and a verifier that crashes, now and then.

``WOODSHED_TEST_STRIKES`` is how often each of the three happens, and a seed, as ``rate:seed``; drawn anew in a process.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

from woodshed import plugins
from woodshed.errors import EnvironmentFault

POINTS = "[woodshed.engines]\nstruck = struck:Engine\n[woodshed.verifiers]\nstruck = struck:Verifier\n"


def installed(folder: Path, rate: float, seed: int) -> dict[str, str]:
    """The environment in which these are known: what pip would leave in ``folder``, put on the path."""
    info = folder / "struck-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: struck\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(POINTS)
    (folder / "struck.py").write_bytes(Path(__file__).read_bytes())
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
            "WOODSHED_TEST_STRIKES": f"{rate}:{seed}"}


def _dice() -> tuple[random.Random, float]:
    rate, _, seed = os.environ["WOODSHED_TEST_STRIKES"].partition(":")
    return random.Random(f"{seed}.{os.getpid()}"), float(rate)


class Engine:
    """The native engine. A sandbox is refused, at once or late: an attempt asks twice, for its agent and its tests."""

    def __init__(self, home: Path) -> None:
        self._engine = plugins.engine("native", home)
        self._chance, self._rate = _dice()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def create(self, *given: Any, **how: Any) -> Any:
        """As the native engine's, or EnvironmentFault, at once or after a long silence."""
        drawn = self._chance.random()
        if drawn < self._rate:
            await asyncio.sleep(0 if drawn < self._rate / 2 else 15)
            raise EnvironmentFault("no room for a sandbox")
        return await self._engine.create(*given, **how)


class Verifier:
    """The usual verifier, or a crash."""

    def __init__(self) -> None:
        self._verifier = plugins.verifier("fresh")
        self._chance, self._rate = _dice()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._verifier, name)

    async def verify(self, *given: Any) -> Any:
        """As the usual one's, or a fault of its own code."""
        if self._chance.random() < self._rate:
            raise ZeroDivisionError("a fault of the verifier's own")
        return await self._verifier.verify(*given)
