"""Layers of an engine: directories of finished changes, shared by boxes and snapshots, gone with their last user."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.sandbox.native.below import Parts
from woodshed.sandbox.native.squash import discard, squash

_log = logging.getLogger(__name__)

Layers = tuple["Layer", ...]
"""Of one box or snapshot, topmost first."""


@dataclass(slots=True, eq=False)
class Layer:
    """One directory, never changed. ``digest`` is the sha256 of its archive, once somebody asked for it."""

    path: Path
    users: int = 0
    digest: str | None = None


@dataclass(slots=True)
class Stack:
    """The layers of a box above its image. A live box's change with each snapshot of it.

    Whoever changes them, or must not see them change, holds ``turn``.
    """

    layers: Layers = ()
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class _Merge:
    """``one`` shows over ``lowers`` what ``covered`` does; None where that cannot be made."""

    covered: Layers
    lowers: tuple[Path, ...]
    one: Layer | None


class Shelf:
    """The layers below one folder, which goes with its engine. ``by_digest``: the adopted, by that of their archive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_digest: dict[str, Layer] = {}
        self._made = 0
        self._merges: dict[Layer, _Merge] = {}
        self._merging: dict[Layer, asyncio.Task[None]] = {}

    def place(self) -> Path:
        """Where the next layer is to be put; nothing is there."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._made += 1
        return self.folder / str(self._made)

    def hold(self, layers: Iterable[Layer]) -> None:
        """One more user of each."""
        for layer in layers:
            layer.users += 1

    async def drop(self, layers: Iterable[Layer]) -> None:
        """One user less of each; a layer without any is removed, and what it was merged into with it."""
        todo, gone = list(layers), []
        while todo:
            layer = todo.pop()
            layer.users -= 1
            if layer.users:
                continue
            self.by_digest = {digest: known for digest, known in self.by_digest.items() if known is not layer}
            merge = self._merges.pop(layer, None)
            todo += [merge.one] if merge and merge.one else []
            gone.append(layer.path)
        if gone:
            await asyncio.to_thread(_remove, gone)

    # -- fewer layers that show the same -------------------------------------------------------------------------------

    def shortest(self, layers: Layers, lowers: tuple[Path, ...]) -> Layers:
        """The fewest layers known that show over ``lowers`` what ``layers`` do."""
        for index, layer in enumerate(layers):
            merge = self._merges.get(layer)
            if merge and merge.one and (merge.covered, merge.lowers) == (layers[index:], lowers):
                return (*layers[:index], merge.one)
        return layers

    def merge(self, layers: Layers, lowers: tuple[Path, ...]) -> asyncio.Task[None] | None:
        """Make one of them, for :meth:`shortest`, whoever asks first; None where that was tried. It may fail."""
        top = layers[0]
        if top not in self._merging:
            known = self._merges.get(top)
            if known and (known.covered, known.lowers) == (layers, lowers):
                return None
            self._merging[top] = asyncio.get_running_loop().create_task(self._merge(layers, lowers))
        return self._merging[top]

    async def _merge(self, layers: Layers, lowers: tuple[Path, ...]) -> None:
        path, one = self.place(), None
        self.hold(layers)
        try:
            if await asyncio.to_thread(squash, [layer.path for layer in layers], lowers, path):
                one = Layer(path, users=1)
        except OSError as error:
            _log.warning("layers in %s could not be merged: %s", self.folder, error)
        finally:
            if one is None:
                await asyncio.to_thread(discard, path)
            before, self._merges[layers[0]] = self._merges.get(layers[0]), _Merge(layers, lowers, one)
            del self._merging[layers[0]]
            await self.drop([*layers, *([before.one] if before and before.one else [])])

    async def close(self) -> None:
        """Wait for what is being merged."""
        await asyncio.gather(*self._merging.values())


def _remove(paths: list[Path]) -> None:
    for path in paths:
        discard(path)


@contextmanager
def merged(
    folder: Path, layers: Sequence[Layer], lowers: Sequence[Path], roots: Sequence[Parts] = ((),)
) -> Iterator[Path]:
    """All that the box of ``folder`` changed below ``roots`` since its image ``lowers``, as one upper directory.

    Where the box has layers of its own this is a directory of hard links, removed afterwards. Blocking. Raises OSError.
    """
    upper = folder / "u"
    if not layers:
        yield upper
        return
    whole = folder / f"merged-{uuid.uuid4().hex}"
    try:
        squash([upper, *(layer.path for layer in layers)], lowers, whole, roots=roots)
        yield whole
    finally:
        discard(whole)
