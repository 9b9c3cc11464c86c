"""Snapshots of a live box: its changes so far become a layer that forks share, and it goes on over an empty directory.

Where nothing runs but PID 1 the directory with the changes is moved aside as it is, and the box gets a new root over it
(``inside/rebase.py``): no file is copied, however many there are. Otherwise everything is frozen while a copy is made
(of the changes since the last snapshot; blocks are shared where the file system can), and the box keeps its directory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import stat
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import EnvironmentFault, SandboxDied
from woodshed.interfaces import BlobSink
from woodshed.model import EnvironmentSpec, SandboxPolicy, SnapshotManifest
from woodshed.sandbox.native import archive, trees, unpack
from woodshed.sandbox.native.copies import settle
from woodshed.sandbox.native.forkserver import ForkServer
from woodshed.sandbox.native.layers import Layer, Layers, Shelf
from woodshed.sandbox.native.link import Link, World
from woodshed.sandbox.native.meter import Meter
from woodshed.sandbox.native.roots import Root
from woodshed.sandbox.native.squash import discard, squash

MOST_LAYERS = 100
"""Of one box, its image's included; then a snapshot waits for the merge. Each costs a descriptor when a box is made, of
which a message carries 253, and looking up a name that is nowhere asks all of them."""

_MERGE_FROM = 32
"""Layers of one box that are merged into one behind its back: with forty a fork costs an eighth more than a create."""
_FEWEST, _CANNOT = 8, 200
"""Layers that a box may have whatever its image has; and those, its image's included, with which it cannot be made."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """What a box was made of, for others to be made like it."""

    root: Root
    spec: EnvironmentSpec


class NativeSnapshot:
    """Layers of a native engine, held until it is released. See :class:`woodshed.interfaces.Snapshot`."""

    def __init__(self, shelf: Shelf, layers: Sequence[Layer], start: Start, policy: SandboxPolicy) -> None:
        self.id, self.image_digest = uuid.uuid4().hex, start.root.digest
        self.shelf, self.layers, self.start, self.policy = shelf, tuple(layers), start, policy
        self.released = False
        shelf.hold(self.layers)

    @property
    def digest(self) -> str:
        """Of the image and all layers above it: equal digests are equal files.

        Every file is read for it when it is first asked for; :meth:`export` does that in a thread.
        """
        return _digest(self.image_digest, [archive.digest(layer) for layer in self.held()])

    async def export(self, sink: BlobSink) -> SnapshotManifest:
        """Its layers as tar archives in ``sink``, and what names them.

        Raises EnvironmentFault where it is released, or holds more than its policy's limits; StoreFault.
        """
        layers = self.held()
        self.shelf.hold(layers)
        try:
            limits = self.policy.limits
            packed = dict.fromkeys([await asyncio.to_thread(archive.pack, layer, limits, sink) for layer in layers])
        except OSError as error:
            raise EnvironmentFault(f"the snapshot could not be exported: {error}") from error
        finally:
            await self.shelf.drop(layers)
        digests = [layer.sha256 for layer in packed]
        return SnapshotManifest(digest=_digest(self.image_digest, digests), image_digest=self.image_digest,
                                layers=tuple(digests), size_bytes=sum(layer.size for layer in packed))

    async def release(self) -> None:
        """Its layers go when the last sandbox and snapshot upon them has. Idempotent."""
        if not self.released:
            self.released = True
            await self.shelf.drop(self.layers)

    def held(self) -> Layers:
        """Its layers. Raises EnvironmentFault where it was released."""
        if self.released:
            raise EnvironmentFault(f"snapshot {self.id} was released")
        return self.layers


def _digest(image: str, layers: Sequence[str]) -> str:
    """A layer that lies above an equal one hides all of it: the topmost of equal ones stands for them."""
    return f"sha256:{hashlib.sha256(' '.join([image, *dict.fromkeys(layers)]).encode()).hexdigest()}"


async def adopt(
    manifest: SnapshotManifest, blobs: BlobSink, start: Start, shelf: Shelf, policy: SandboxPolicy
) -> NativeSnapshot:
    """The snapshot that ``manifest`` names, unpacked; layers that the engine has already are shared.

    Raises ImageFault for another image and for archives that are not what they claim, EnvironmentFault, StoreFault.
    """
    unpack.check(manifest, start.root.digest, _digest(manifest.image_digest, manifest.layers),
                 _CANNOT - len(start.root.lowers))
    room = archive.Room.of(policy.limits)
    layers: list[Layer] = []
    try:
        for sha256 in manifest.layers:
            layer = shelf.by_digest.get(sha256)
            if layer is None:
                path = shelf.place()
                exact = await asyncio.to_thread(unpack.unpack, sha256, blobs, path, room)
                layer = shelf.by_digest.setdefault(sha256, Layer(path, digest=sha256 if exact else None))
                if layer.path != path:  # somebody else was faster
                    await asyncio.to_thread(discard, path)
            shelf.hold([layer])
            layers.append(layer)
        return NativeSnapshot(shelf, layers, start, policy)
    except OSError as error:
        raise EnvironmentFault(f"the snapshot could not be unpacked: {error}") from error
    finally:
        await shelf.drop(layers)


class Snapshots:
    """Takes snapshots of one box."""

    def __init__(self, world: World, server: ForkServer, shelf: Shelf, start: Start) -> None:
        self._world, self._server, self._shelf, self._start = world, server, shelf, start
        self._clearing: set[asyncio.Task[None]] = set()

    async def take(self, link: Link, meter: Meter) -> NativeSnapshot:
        """Its files as they are now. Raises SandboxDied, EnvironmentFault."""
        taking = asyncio.get_running_loop().create_task(self._in_turn(link, meter))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_release)  # half a change of roots is none: it is finished, and let go of
            raise

    async def _in_turn(self, link: Link, meter: Meter) -> NativeSnapshot:
        async with self._world.stack.turn:
            try:
                return await self._take(link, meter)
            except OSError as error:
                raise EnvironmentFault(f"the snapshot could not be taken: {error}") from error

    async def _take(self, link: Link, meter: Meter) -> NativeSnapshot:
        if link.dead:
            raise link.death()
        if not self._changed():
            return NativeSnapshot(self._shelf, self._world.stack.layers, self._start, self._world.policy)
        under, new = await self._flat(), None
        try:
            new = await self._rebase(link, under)
            if new is None:
                new = await self._copy(meter, under)
            return NativeSnapshot(self._shelf, (*new, *under), self._start, self._world.policy)
        finally:
            await self._shelf.drop([*(new or ()), *under])

    def _changed(self) -> bool:
        """Whether there is anything in the box's own directory, or that itself differs from what it was made like."""
        upper, layers = self._world.folder / "u", self._world.stack.layers
        own, top = upper.stat(), layers[0].path.stat() if layers else None
        like_top = (own.st_mode, own.st_uid, own.st_gid) == (top.st_mode, top.st_uid, top.st_gid) if top else (
            stat.S_IMODE(own.st_mode) == 0o755 and own.st_uid == os.geteuid())
        with os.scandir(upper) as entries:
            return not like_top or next(entries, None) is not None

    async def _flat(self) -> Layers:
        """The box's layers, many of them as one where that has been made meanwhile. They are held for the caller."""
        lowers = self._world.lowers
        layers = self._shelf.shortest(self._world.stack.layers, lowers)
        deep = len(layers) >= max(MOST_LAYERS - len(lowers), _FEWEST)
        if len(layers) >= _MERGE_FROM or deep:
            merging = self._shelf.merge(layers, lowers)
            if deep and merging is not None:
                await merging  # we are shielded ourselves
                layers = self._shelf.shortest(layers, lowers)
            if len(layers) + len(lowers) > _CANNOT:
                raise EnvironmentFault(f"the sandbox has {len(layers)} layers that cannot be merged")
        self._shelf.hold(layers)
        return layers

    def _clear(self, work: Path) -> None:
        """Remove overlayfs' scratch directory of a root that is gone; each part of it waits for the journal."""
        clearing = asyncio.get_running_loop().create_task(asyncio.to_thread(discard, work))
        self._clearing.add(clearing)
        clearing.add_done_callback(self._clearing.discard)

    async def close(self) -> None:
        """Wait for what is being taken and cleared away. The box is dead already."""
        async with self._world.stack.turn:
            pass
        await asyncio.gather(*self._clearing)

    # -- where nothing runs --------------------------------------------------------------------------------------------

    async def _rebase(self, link: Link, under: Layers) -> Layers | None:
        """Give the box a new root over what it changed: that as a layer, held; None where that cannot be done now."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ident = link.next_id()
            with theirs:
                asked = link.request({"op": "rest", "id": ident}, [theirs.fileno()])
            answer, namespaces = await asked
            if "started" not in answer:
                return None
            ended = link.later(ident)
            try:
                layer = self._set_aside()
                paths = [layer.path, *(low.path for low in under), *self._world.lowers]
                plan = {"op": "rebase", "lowers": [str(path) for path in paths], "upper": str(self._world.folder)}
                self._server.send(plan, [*namespaces, ours.fileno()])
            finally:
                for fd in namespaces:
                    os.close(fd)
        try:
            return await self._settle(link, str((await ended)[0].get("said", "")), layer, under)
        except SandboxDied:
            await self._shelf.drop([layer])
            raise

    def _set_aside(self) -> Layer:
        """Move the box's directory of changes away, and put an empty one in its place. The old root does not notice."""
        folder = str(self._world.folder)
        layer = Layer(self._shelf.place())
        try:
            os.rename(f"{folder}/u", layer.path)  # noqa: PTH104 (as in places.py: a few calls that are measured)
            os.rename(f"{folder}/w", f"{folder}/{layer.path.name}")  # noqa: PTH104
            for part in "uw":
                os.mkdir(f"{folder}/{part}", 0o755)  # noqa: PTH102
            like(layer.path, self._world.folder / "u")
        except OSError:
            self._put_back(layer)
            raise
        self._shelf.hold([layer])
        return layer

    def _put_back(self, layer: Layer) -> None:
        folder = self._world.folder
        for part, aside in (("u", layer.path), ("w", folder / layer.path.name)):
            if aside.exists():
                trees.remove(folder / part)
                aside.rename(folder / part)

    async def _settle(
        self, link: Link, said: str, layer: Layer, under: Layers
    ) -> Layers | None:
        """What the change of roots came to, by what was ``said`` of it last."""
        if said == "done":
            stack = self._world.stack
            old, stack.layers = stack.layers, (layer, *under)
            self._shelf.hold(stack.layers)
            self._clear(self._world.folder / layer.path.name)
            await self._shelf.drop(old)
            return (layer,)
        if said == "" or said.startswith("unchanged"):
            self._put_back(layer)
            _log.debug("sandbox %s keeps its root: %s", self._world.id, said or "the fork server is gone")
            return None
        link.doom(f"its root could not be changed for a snapshot ({said})")
        raise link.death()

    # -- where something does ------------------------------------------------------------------------------------------

    async def _copy(self, meter: Meter, under: Layers) -> Layers:
        """A copy of what the box changed since its last snapshot, made while it stands still: as a layer, held."""
        path = self._shelf.place()
        lowers = [*(layer.path for layer in under), *self._world.lowers]
        standing = meter.frozen
        await meter.freeze()
        try:
            try:
                whole = await asyncio.to_thread(squash, [self._world.folder / "u"], lowers, path, copy=True)
            finally:
                if not standing:
                    await meter.thaw()
            if not whole:
                raise EnvironmentFault("a directory of the sandbox lies too deep to be copied")
        except BaseException:
            await asyncio.to_thread(discard, path)
            raise
        self._shelf.hold(new := (Layer(path),))
        return new


def like(top: Path, upper: Path) -> None:
    """The root directory of ``upper`` becomes like that of ``top``: a box may have changed its mode."""
    source, target = os.open(top, _DIRECTORY), os.open(upper, _DIRECTORY)
    try:
        settle(source, target, stat.S_IMODE(os.fstat(source).st_mode))
    finally:
        os.close(source)
        os.close(target)


def _release(taking: asyncio.Task[NativeSnapshot]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        releasing = asyncio.get_running_loop().create_task(taking.result().release())
        _RELEASING.add(releasing)
        releasing.add_done_callback(_RELEASING.discard)


_RELEASING: set[asyncio.Task[None]] = set()
"""Held, for the loop holds tasks weakly."""
