"""Images of containers: pull, build, list, and remove what nobody used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed import plugins
from woodshed.errors import Cause, boundary
from woodshed.model import SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.container import Image, Named
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.dockerfile.build import policy_of_setting
from woodshed.sandbox.images.dockerfile.state import Order
from woodshed.sandbox.images.layers import Layers

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Made:
    """An image that is here now."""

    id: str
    layers: int
    size: int

    def record(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"id": self.id, "layers": self.layers, "size_bytes": self.size}


async def pull(home: Path, image: str, name: str = "", tell: Tell | None = None) -> Made:
    """Fetch ``image`` as its source has it now. Raises UsageError, ImageFault, EnvironmentFault."""
    return await _with(home, f"pulling {image}", lambda images: images.containers.pull(image, name, tell))


async def build(
    home: Path, context: Path, file: Path | None = None, *, name: str = "", target: str | None = None,
    arguments: Mapping[str, str] | None = None, policy: SandboxPolicy | None = None, tell: Tell | None = None,
) -> Made:
    """Build a Dockerfile without any daemon. Raises UsageError naming file and line, ImageFault, EnvironmentFault."""
    order = Order(file or context / "Dockerfile", context, target, dict(arguments or {}), policy or policy_of_setting())
    return await _with(home, f"building {order.file}", lambda images: images.containers.build(order, name, tell))


async def _with(home: Path, doing: str, work: Callable[[Images], Image]) -> Made:
    engine = plugins.engine("native", home)
    images = Images(home, None, Crossing(engine, asyncio.get_running_loop()))

    def whole() -> Made:
        with boundary(Cause.ENVIRONMENT, doing):
            image = work(images)
        return Made(image.id, len(image.layers), sum(map(images.layers.size, image.layers)))

    try:
        return await asyncio.to_thread(whole)
    finally:
        images.close()
        await engine.close()


def listing(home: Path) -> list[Named]:
    """The images that have a name here."""
    images = Images(home)
    try:
        return images.containers.shelf.all()
    finally:
        images.close()


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed; ``busy`` where another process uses the layers, and nothing was."""

    layers: int
    names: tuple[str, ...]
    busy: bool


def collect(home: Path, days: float) -> Collected:
    """Remove layers that were not used for ``days``, and the names of images that lack one."""
    layers = Layers(home)
    try:
        busy = not layers.alone()
        gone = layers.gc(days * 86400)
    finally:
        layers.close()
    images = Images(home)
    try:
        names = images.containers.shelf.forget_incomplete()
    finally:
        images.close()
    return Collected(len(gone), tuple(names), busy)
