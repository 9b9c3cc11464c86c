"""NativeEngine: sandboxes in about ten milliseconds, as root or as an ordinary user, without a daemon."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.errors import EnvironmentFault, SandboxDied, Unsupported
from woodshed.interfaces import BlobSink, Capability, Snapshot
from woodshed.model import ChangeSet, EnvironmentSpec, SandboxPolicy, SnapshotManifest
from woodshed.sandbox.egress.upstream import Outside
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.build import run_build
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.native import cgroups, egress, roots, trees
from woodshed.sandbox.native import policy as policies
from woodshed.sandbox.native.account import Account
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.egress import Network, network
from woodshed.sandbox.native.forkserver import ForkServer
from woodshed.sandbox.native.guard import Guard
from woodshed.sandbox.native.ids import Ranges, privileged
from woodshed.sandbox.native.layers import Layer, Shelf, Stack
from woodshed.sandbox.native.link import World
from woodshed.sandbox.native.places import Place, remove_box, sweep
from woodshed.sandbox.native.restore import apply
from woodshed.sandbox.native.roots import Bound, Prepares, Root, in_own_thread
from woodshed.sandbox.native.snapshots import NativeSnapshot, Snapshots, Start, adopt, like
from woodshed.settings import setting

_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "USER": "root",
    "LANG": "C.UTF-8",
}
"""A box with no more entries than this is removed at once, a larger one in a thread."""
_FEW, _SMALL_BYTES = 64, 1 << 20
_ALWAYS: frozenset[Capability] = frozenset(
    {"network", "snapshot", "fork", "export", "memory", "cpus", "disk", "freeze", "pty", "session", "watch",
     "listen"})
_SPARE_PIDS = 64
"""Where a cgroup bounds processes it is to be the one that refuses: it counts that, an rlimit does not."""
_WATCHERS = 32
"""Inotify instances of an ordinary user's box: it shares the user's own (fs.inotify.max_user_instances, 128) with him
and with his other boxes. A box of root's has a count of its own."""
_TMP_MB, _SHM_MB = 1024, 256
"""Of /tmp and /dev/shm: at most this, and the disk limit where that is less. They are memory that nobody can be killed
for: a half and a quarter of the memory limit, so that a box which filled them can still run what empties them."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an engine holds once it has begun."""

    place: Place
    server: ForkServer
    control: cgroups.Control
    ids: Ranges
    guard: Guard
    shelf: Shelf
    outside: Outside


@dataclass(slots=True)
class _Hold:
    """What a box takes of the host, besides its processes."""

    opened: _Opened
    folder: Path
    first_id: int = 0
    groups: cgroups.Groups | None = None
    network: Network | None = None
    stack: Stack = field(default_factory=Stack)
    account: Account | None = None

    def _clear(self) -> None:
        """Blocking: a dozen directories wait for the file system's journal each."""
        account = self.account or Account()
        account.closing(self.groups)
        with suppress(OSError):
            if remove_box(self.folder):
                account.nothing_left()
            else:
                account.left(self.folder)
                trees.remove(self.folder)
        if self.groups is not None and (self.groups.by_controller or self.groups.freezer):
            self.groups.remove()

    async def release(self) -> None:
        """Give it all back. What cannot be removed now is swept with the instance's folder."""
        if self.network is not None:
            await self.network.egress.close()
        await asyncio.to_thread(self._clear)
        if self.account is not None:
            self.account.close()
        if self.first_id:
            self.opened.ids.give_back(self.first_id)
        if self.stack.layers:
            layers, self.stack.layers = self.stack.layers, ()
            await self.opened.shelf.drop(layers)


class NativeEngine:
    """Makes native sandboxes below ``home``. ``instance`` names its folder there; one live engine each."""

    name = "native"

    def __init__(self, home: Path, *, instance: str | None = None, images: Prepares | None = None) -> None:
        """Nothing starts before the first ``create``. ``images`` prepares root file systems; by default our own."""
        self._home, self._instance, self._images = home.absolute(), instance, images
        self._privileged = privileged()
        self._own_images: Images | None = None
        self._opening: asyncio.Task[_Opened] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._boxes: dict[str, NativeSandbox] = {}
        self._roots: dict[object, asyncio.Task[Root]] = {}
        self._made = 0

    def check(self, spec: EnvironmentSpec, policy: SandboxPolicy) -> tuple[str, ...]:
        """What the policy does not hold. Raises UsageError for a contradiction, Unsupported."""
        self._check(policy, spec)
        egress.check(policy.network)
        return policies.notes(policy)

    async def open(self) -> None:
        """The fork server runs. Raises EnvironmentFault where it cannot."""
        await self._ready()

    async def create(
        self,
        spec: EnvironmentSpec,
        policy: SandboxPolicy,
        *,
        restore: tuple[ChangeSet, BlobSink] | None = None,
    ) -> NativeSandbox:
        """A fresh sandbox of ``spec``, with ``restore`` already in place, above what ``spec.setup`` left.

        The setup command runs once an engine for equal specs; what it leaves is a layer below every such sandbox.
        Raises ImageFault, EnvironmentFault, Unsupported.
        """
        self._check(policy, spec)
        opened = await self._ready()
        return await self._create(opened, await self._root(opened, spec), spec, policy, restore)

    def _check(self, policy: SandboxPolicy, spec: EnvironmentSpec) -> None:
        policies.check(policy, spec.workdir)

    async def _ready(self) -> _Opened:
        if self._closing is not None:
            raise EnvironmentFault("the native engine is closed")
        return await self._open()

    async def _open(self) -> _Opened:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(asyncio.to_thread(self._claim))
        if not self._opening.done():
            await asyncio.wait([self._opening])
        if self._opening.exception():
            failed, self._opening = self._opening, None
            return failed.result()  # raises
        opened = self._opening.result()
        await opened.server.ready()
        return opened

    def _claim(self) -> _Opened:
        """Sweep what dead engines left, and take a folder of our own."""
        sweep(self._home)
        guard = Guard(self._home, setting("disk_reserve_mb"))
        place = Place(self._home, self._instance)
        server = ForkServer(place.dev, self._privileged)
        layers = Shelf(place.path / "layers")
        return _Opened(place, server, cgroups.control(place.path), Ranges(), guard, layers, Outside())

    # -- root file systems ---------------------------------------------------------------------------------------------

    async def _root(self, opened: _Opened, spec: EnvironmentSpec) -> Root:
        return await roots.once(self._roots, spec, lambda: self._prepare(opened, spec))

    async def _prepare(self, opened: _Opened, spec: EnvironmentSpec) -> Root:
        loop = asyncio.get_running_loop()
        if self._images is None:
            self._images = self._own_images = Images(  # source distributions are built in boxes of ours
                self._home, lambda job: asyncio.run_coroutine_threadsafe(run_build(self, job), loop).result(),
                Crossing(self, loop))  # and layers are unpacked in them
        image = await in_own_thread(self._images.prepare, spec)
        root = Root(image.digest, image.lowers, image)
        return root if spec.setup is None else await self._set_up(opened, root, spec, spec.setup)

    async def _set_up(self, opened: _Opened, root: Root, spec: EnvironmentSpec, command: str) -> Root:
        """Run the setup command in a box of its own and keep what it changed as a layer."""
        box = await self._create(opened, root, spec, SandboxPolicy(limits=spec.limits), None)
        try:
            try:
                result = await box.exec(command, user=0, timeout_s=spec.setup_timeout_s)
            except SandboxDied as error:
                raise EnvironmentFault(f"the setup command ended its sandbox: {error}") from error
            roots.check_setup(result)
            await box.kill_all()
            kept = opened.place.path / f"setup-{self._made}"
            (box.world.folder / "u").rename(kept)
        finally:
            await box.close()
        return Root(roots.set_up_digest(root.digest, spec, command), (kept, *root.lowers), root.image)

    # -- boxes ---------------------------------------------------------------------------------------------------------

    async def _create(
        self, opened: _Opened, root: Root, spec: EnvironmentSpec, policy: SandboxPolicy,
        restore: tuple[ChangeSet, BlobSink] | None, layers: tuple[Layer, ...] = (),
    ) -> NativeSandbox:
        workdir = roots.workdir(spec, root.image)
        acting = roots.acting(spec, policy, root.image, self._privileged)
        if not spec.workdir:
            policies.check(policy, workdir)
        self._made += 1
        name = str(self._made)
        hold = _Hold(opened, opened.place.path / name, stack=Stack(layers))
        opened.shelf.hold(layers)
        try:
            hold.network = await network(policy.network, opened.outside) if policy.network else None
            hold.first_id = opened.ids.take() if self._privileged else 0
            opened.place.box(name)
            if layers:
                like(layers[0].path, hold.folder / "u")
            if restore is not None:
                await _restore(*restore, hold.folder / "u", root.lowers)
            hold.groups = opened.control.make(opened.place.instance, name, policy.limits)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except BaseException as error:
            await hold.release()
            if isinstance(error, OSError):
                raise EnvironmentFault(f"the host could not provide a sandbox: {error}") from error
            raise
        world = World(
            id=f"{opened.place.instance}-{name}", image_digest=root.digest, folder=hold.folder, lowers=root.lowers,
            shell=policies.shell(policy, root.image.shell), workdir=workdir,
            env=_environment(policy, {**_ENV, **root.image.env, **spec.env}, hold.network), policy=policy,
            groups=hold.groups, privileged=self._privileged, account=acting, stack=hold.stack,
        )
        snapshots = Snapshots(world, opened.server, opened.shelf, Start(root, spec))
        box = self._boxes[world.id] = NativeSandbox(
            world, ours, snapshots, self._gone(world.id, hold), opened.outside.seats)
        opened.guard.add(world, box.link)
        hold.account = box.link.account
        if hold.network is not None:
            box.network, box.link.doors = hold.network, hold.network.take
        try:
            with theirs:
                sealed = [upload.target for upload in spec.uploads if upload.read_only]
                sealed += [program.place for program in spec.programs]
                plan = {**_plan(world, root.image.binds, hold.first_id), "read_only": sealed,
                        **roots.traits(root.image, self._privileged)}
                opened.server.send(plan, [theirs.fileno()])
            await box.opened()
        except BaseException as error:
            await box.close()
            if isinstance(error, SandboxDied | OSError):
                raise policies.fault(error) from error
            raise
        return box

    def _gone(self, ident: str, hold: _Hold) -> Callable[[], Awaitable[None]]:
        async def gone() -> None:
            self._boxes.pop(ident, None)
            hold.opened.guard.remove(ident)
            await hold.release()

        return gone

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it has on this machine."""
        return _ALWAYS | policies.capabilities() | ({"users"} if self._privileged else set())

    async def fork(
        self, snapshot: Snapshot, n: int = 1, *, policy: SandboxPolicy | None = None
    ) -> list[NativeSandbox]:
        """``n`` sandboxes that start from ``snapshot``, made together; none is left where one cannot be made.

        Raises EnvironmentFault, as for a snapshot that was released, and Unsupported for one of another engine.
        """
        opened = await self._ready()
        if not isinstance(snapshot, NativeSnapshot) or snapshot.shelf is not opened.shelf:
            raise Unsupported("fork: the snapshot is another engine's; export it there and adopt it here")
        start, policy = snapshot.start, policy or snapshot.policy
        self._check(policy, start.spec)
        layers = opened.shelf.shortest(snapshot.held(), start.root.lowers)
        opened.shelf.hold(layers)  # whoever releases the snapshot meanwhile
        try:
            made = await asyncio.gather(
                *(self._create(opened, start.root, start.spec, policy, None, layers) for _ in range(n)),
                return_exceptions=True)
        finally:
            await opened.shelf.drop(layers)
        boxes = [box for box in made if isinstance(box, NativeSandbox)]
        for failure in made:
            if isinstance(failure, BaseException):
                await asyncio.gather(*(box.close() for box in boxes))
                raise failure
        return boxes

    async def adopt(self, manifest: SnapshotManifest, blobs: BlobSink, spec: EnvironmentSpec) -> NativeSnapshot:
        """A snapshot exported elsewhere, upon ``spec``'s image; its sandboxes have ``spec``'s limits.

        Raises ImageFault for another image, and for archives that are not what they claim or exceed the limits.
        """
        opened = await self._ready()
        start = Start(await self._root(opened, spec), spec)
        return await adopt(manifest, blobs, start, opened.shelf, SandboxPolicy(limits=spec.limits))

    async def close(self) -> None:
        """End all sandboxes and the fork server; remove the instance's folder. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._opening is None:
            return
        await asyncio.wait([self._opening])
        for task in self._roots.values():
            task.cancel()
        await asyncio.gather(*self._roots.values(), return_exceptions=True)
        self._roots.clear()
        while self._boxes:
            await asyncio.gather(*(box.close() for box in list(self._boxes.values())))
        if not self._opening.exception():
            opened = self._opening.result()
            opened.outside.close()
            await opened.guard.close()
            await opened.shelf.close()
            await opened.server.stop()
            opened.control.close(opened.place.instance)
            await asyncio.to_thread(opened.place.close)
            opened.ids.close()
        if self._own_images is not None:
            await asyncio.to_thread(self._own_images.close)


async def _restore(changes: ChangeSet, blobs: BlobSink, upper: Path, lowers: Sequence[Path]) -> None:
    """Few and small changes at once, others in a thread: handing them over costs more than writing them."""
    if len(changes.changes) <= _FEW and sum(change.size for change in changes.changes) <= _SMALL_BYTES:
        apply(changes, blobs, upper, lowers)
    else:
        await asyncio.to_thread(apply, changes, blobs, upper, lowers)


def _environment(policy: SandboxPolicy, declared: dict[str, str], given: Network | None) -> Mapping[str, str]:
    if given is None:
        return policies.environment(policy, declared)
    return {**policies.environment(policy, declared | given.trust()), **given.placeholders()}


def _pid_max(pids: int, exempt: bool) -> int:
    """The highest process number of a box: four times the limit, so that numbers are not reused in a hurry.

    The kernel reserves 300. Root of a container is exempt from RLIMIT_NPROC: there this bound alone holds, a close one.
    """
    return 301 + (pids if exempt else 4 * pids)


def _plan(world: World, binds: Sequence[Bound], first_id: int) -> dict[str, Any]:
    limits = world.limits
    memory_kb = (limits.memory_mb or 1 << 20) << 10
    spare = _SPARE_PIDS if world.groups.holds("pids") else 0
    return {
        "lowers": [str(path) for path in (*(layer.path for layer in world.stack.layers), *world.lowers)],
        "upper": str(world.folder), "first_id": first_id,
        "binds": [[str(bind.source), bind.target] for bind in binds], "pids": limits.pids + spare,
        "pid_max": _pid_max(limits.pids, os.geteuid() == 0 and not world.privileged),
        "cgroups": [str(path) for path in world.groups.paths],
        "tmp_kb": min(limits.disk_mb << 10, _TMP_MB << 10, memory_kb // 2),
        "shm_kb": min(limits.disk_mb << 10, _SHM_MB << 10, memory_kb // 4),
        "files": limits.files, "file_bytes": limits.disk_mb << 20, "open_files": limits.open_files,
        "workdir": world.workdir, "watchers": 0 if world.privileged else _WATCHERS,
        "egress": world.policy.network.ports, "rules": policies.rules(world.policy, world.env.get("PATH", "")),
    }
