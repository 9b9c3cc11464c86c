"""RemoteEngine: sandboxes in containers that another program makes, each with our PID 1."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from woodshed.errors import EnvironmentFault, SandboxDied, Unsupported
from woodshed.interfaces import BlobSink, Capability, Snapshot
from woodshed.model import ChangeSet, EnvironmentSpec, Limits, SandboxPolicy, SnapshotManifest
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.build import run_build
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.rootfs import Bind
from woodshed.sandbox.native import policy as policies
from woodshed.sandbox.native import roots, trees
from woodshed.sandbox.native.cgroups import Control, Groups
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.link import World
from woodshed.sandbox.native.places import Place, sweep
from woodshed.sandbox.native.roots import Prepared, Prepares, in_own_thread
from woodshed.sandbox.remote.box import RemoteSandbox
from woodshed.sandbox.remote.python import TOP, Interpreter, interpreter
from woodshed.sandbox.remote.road import Road, Stream

_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "USER": "root",
    "LANG": "C.UTF-8",
}
_TMP_MB, _SHM_MB = 1024, 256
_START_S = 120.0
_OWN_MB = 24
"""Of memory for our PID 1, which is in the container's group with the commands: its limit is so much higher."""


@dataclass(frozen=True, slots=True)
class Container:
    """What a Maker starts: a root it made ready, what is mounted over it, and the limits its runtime holds.

    ``binds`` are read-only; ``tmpfs`` sizes in KiB by path. ``pids`` counts our PID 1.
    """

    name: str
    instance: str
    root: str
    binds: tuple[Bind, ...]
    tmpfs: dict[str, int]
    shm_kb: int
    limits: Limits
    pids: int
    memory_bytes: int | None
    argv: tuple[str, ...]
    env: dict[str, str]


class Made(Protocol):
    """A container that was started."""

    @property
    def stream(self) -> Stream:
        """To its PID 1's standard input and from its output."""

    async def why(self) -> str:
        """What its runtime says of its early end; empty where it says nothing."""

    async def keep(self, digest: str) -> str:
        """Its files as a new root, which is named. It has been told to end."""

    async def remove(self) -> None:
        """Leave nothing of it. Idempotent; never raises."""


class Maker(Protocol):
    """Makes containers: what differs from engine to engine."""

    groups: str
    """Where its runtime mounts cgroups of the container's own kernel, for PID 1 to use and put away; empty: nowhere."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes have."""

    async def open(self, place: Place) -> None:
        """Ready. Raises EnvironmentFault with the remedy."""

    async def root(self, image: Prepared) -> str:
        """A root of ``image``'s layers; made once. Raises EnvironmentFault."""

    async def start(self, container: Container) -> Made:
        """Start it. Raises EnvironmentFault, with nothing left."""

    async def close(self) -> None:
        """Leave nothing of this engine. Idempotent."""


@dataclass(frozen=True, slots=True)
class _Root:
    digest: str
    name: str
    image: Prepared


@dataclass(slots=True)
class _Opened:
    place: Place
    python: Interpreter
    images: Prepares
    own: Images | None
    roots: dict[object, asyncio.Task[_Root]] = field(default_factory=dict)


class RemoteEngine:
    """Makes sandboxes by ``maker``, below ``home``. See :class:`woodshed.interfaces.SandboxEngine`."""

    def __init__(self, name: str, maker: Maker, home: Path, *, images: Prepares | None = None) -> None:
        """Nothing starts before the first ``create``. ``images`` prepares root file systems; by default our own."""
        self.name, self._maker, self._home, self._images = name, maker, home.absolute(), images
        self._opening: asyncio.Task[_Opened] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._boxes: dict[str, RemoteSandbox] = {}
        self._unpacking: NativeEngine | None = None
        self._made = 0

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it has on this machine."""
        return self._maker.capabilities

    def check(self, spec: EnvironmentSpec, policy: SandboxPolicy) -> Sequence[str]:
        """A policy it takes it holds. Raises UsageError for a contradiction, Unsupported."""
        policies.check(policy, spec.workdir, self.name)
        limits = policy.limits
        asked: dict[str, bool] = {
            "network": bool(policy.network), "directories": bool(policy.directories),
            "commands": policy.commands.allow is not None or bool(policy.commands.deny),
            "memory": limits.memory_mb is not None, "cpus": limits.cpus is not None,
        }
        for capability, is_asked in asked.items():
            if is_asked and capability not in self.capabilities:
                raise Unsupported(f"{capability}: the {self.name} engine cannot hold this rule; the native one can")
        if policy.writable_is_noexec or policy.privileges == "none":
            raise Unsupported(f"noexec and privileges = 'none': the {self.name} engine cannot hold them; the native "
                              "one can")
        if spec.programs:
            raise Unsupported(f"programs: the {self.name} engine has no layers for them; the native one does")
        return ()

    async def open(self) -> None:
        """Its runtime answers. Raises EnvironmentFault where it does not."""
        await self._ready()

    async def _ready(self) -> _Opened:
        if self._closing is not None:
            raise EnvironmentFault(f"the {self.name} engine is closed")
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        if not self._opening.done():
            await asyncio.wait([self._opening])
        if self._opening.exception():
            failed, self._opening = self._opening, None
            return failed.result()  # raises
        return self._opening.result()

    async def _open(self) -> _Opened:
        def claim() -> tuple[Place, Interpreter]:
            sweep(self._home)
            place = Place(self._home)
            try:
                return place, interpreter(place.path / "python")
            except BaseException:
                place.close()
                raise

        place, python = await asyncio.to_thread(claim)
        loop = asyncio.get_running_loop()
        images, own = self._images, None
        if images is None:
            self._unpacking = NativeEngine(self._home)  # which starts when a layer is to be unpacked or built, if ever
            images = own = Images(
                self._home, lambda job: asyncio.run_coroutine_threadsafe(run_build(self, job), loop).result(),
                Crossing(self._unpacking, loop))
        try:
            await self._maker.open(place)
        except BaseException:
            await asyncio.to_thread(place.close)
            if own is not None:
                own.close()
            raise
        return _Opened(place, python, images, own)

    # -- roots ---------------------------------------------------------------------------------------------------------

    async def _root(self, opened: _Opened, spec: EnvironmentSpec) -> _Root:
        return await roots.once(opened.roots, spec, lambda: self._prepare(opened, spec))

    async def _prepare(self, opened: _Opened, spec: EnvironmentSpec) -> _Root:
        image = await in_own_thread(opened.images.prepare, spec)
        root = _Root(image.digest, await self._maker.root(image), image)
        return root if spec.setup is None else await self._set_up(opened, root, spec, spec.setup)

    async def _set_up(self, opened: _Opened, root: _Root, spec: EnvironmentSpec, command: str) -> _Root:
        """Run the setup command in a container of its own and keep its files."""
        box, made = await self._start(opened, root, spec, SandboxPolicy(limits=spec.limits))
        try:
            try:
                await box.begin()
                result = await box.exec(command, user=0, timeout_s=spec.setup_timeout_s)
                roots.check_setup(result)
                await box.kill_all()
            except SandboxDied as error:
                raise EnvironmentFault(f"the setup command ended its sandbox: {error}") from error
            digest = roots.set_up_digest(root.digest, spec, command)
            await box.end()
            return _Root(digest, await made.keep(digest), root.image)
        finally:
            await box.close()

    # -- sandboxes -----------------------------------------------------------------------------------------------------

    async def create(
        self,
        spec: EnvironmentSpec,
        policy: SandboxPolicy,
        *,
        restore: tuple[ChangeSet, BlobSink] | None = None,
    ) -> RemoteSandbox:
        """A fresh sandbox of ``spec``, with ``restore`` already in place, above what ``spec.setup`` left.

        Raises ImageFault, EnvironmentFault, Unsupported.
        """
        self.check(spec, policy)
        opened = await self._ready()
        root = await self._root(opened, spec)
        box, _ = await self._start(opened, root, spec, policy)
        try:
            await box.begin()
            if restore is not None:
                await box.restore(*restore)
        except BaseException as error:
            await box.close()
            if isinstance(error, SandboxDied | OSError):
                raise policies.fault(error) from error
            raise
        return box

    async def _start(
        self, opened: _Opened, root: _Root, spec: EnvironmentSpec, policy: SandboxPolicy
    ) -> tuple[RemoteSandbox, Made]:
        workdir, acting = roots.workdir(spec, root.image), roots.acting(spec, policy, root.image, True)
        if not spec.workdir:
            policies.check(policy, workdir, self.name)
        self._made += 1
        name = f"{opened.place.instance}-{self._made}"
        folder = opened.place.path / str(self._made)
        folder.mkdir(mode=0o700)
        try:
            made = await self._maker.start(_container(name, opened, root, spec, policy))
        except BaseException:
            folder.rmdir()
            raise
        control = Control({}, 2)
        held = {"memory": folder} if policy.limits.memory_mb is not None else {}  # by the container's own group
        world = World(
            id=name, image_digest=root.digest, folder=folder, lowers=(), workdir=workdir,
            shell=policies.shell(policy, root.image.shell), policy=policy,
            env=policies.environment(policy, {**_ENV, **root.image.env, **spec.env}),
            groups=Groups(control, "", "", held), privileged=True, account=acting,
        )
        box = RemoteSandbox(self.name, world, Road(made.stream), self._gone(name, folder, made),
                            watches="watch" in self.capabilities)
        self._boxes[name] = box
        try:
            box.link.send(self._plan(world))
            await asyncio.wait_for(box.opened(), _START_S)
        except BaseException as error:
            why = await made.why() if isinstance(error, SandboxDied) else ""
            await box.close()
            if isinstance(error, SandboxDied | TimeoutError):
                said = f"{error} {why}".strip() or "it did not answer"
                raise EnvironmentFault(f"the sandbox could not be made: {said}") from error
            raise
        return box, made

    def _plan(self, world: World) -> dict[str, Any]:
        limits = world.limits
        return {"op": "plan", "workdir": world.workdir, "file_bytes": limits.disk_mb << 20, "pids": limits.pids,
                "open_files": limits.open_files, "pids_max": limits.pids + 1,
                "groups": self._maker.groups}

    def _gone(self, name: str, folder: Path, made: Made) -> Callable[[], Awaitable[None]]:
        async def gone() -> None:
            await made.remove()
            self._boxes.pop(name, None)
            with suppress(OSError):
                await asyncio.to_thread(trees.remove, folder)

        return gone

    async def fork(
        self, snapshot: Snapshot, n: int = 1, *, policy: SandboxPolicy | None = None
    ) -> Sequence[RemoteSandbox]:
        """Raises Unsupported."""
        raise self._without("fork")

    async def adopt(self, manifest: SnapshotManifest, blobs: BlobSink, spec: EnvironmentSpec) -> Snapshot:
        """Raises Unsupported."""
        raise self._without("export")

    def _without(self, capability: str) -> Unsupported:
        return Unsupported(f"{capability}: the {self.name} engine does not have it; the native one does")

    async def close(self) -> None:
        """End all sandboxes and leave nothing. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._opening is None:
            return
        await asyncio.wait([self._opening])
        if self._opening.exception():
            return
        opened = self._opening.result()
        for task in opened.roots.values():
            task.cancel()
        await asyncio.gather(*opened.roots.values(), return_exceptions=True)
        while self._boxes:
            await asyncio.gather(*(box.close() for box in list(self._boxes.values())))
        await self._maker.close()
        await asyncio.to_thread(opened.place.close)
        if opened.own is not None:
            await asyncio.to_thread(opened.own.close)
        if self._unpacking is not None:
            await self._unpacking.close()


def _container(
    name: str, opened: _Opened, root: _Root, spec: EnvironmentSpec, policy: SandboxPolicy
) -> Container:
    limits, image = policy.limits, root.image
    memory_kb = (limits.memory_mb or 1 << 20) << 10
    tmp_kb = min(limits.disk_mb << 10, _TMP_MB << 10, memory_kb // 2)
    sealed = [Bind(_place(image, upload.target), upload.target) for upload in spec.uploads if upload.read_only]
    return Container(
        name=name, instance=opened.place.instance, root=root.name,
        binds=(*(Bind(bind.source, bind.target) for bind in image.binds), *sealed, Bind(opened.python.folder, TOP)),
        tmpfs={} if getattr(image, "own_tmp", False) else {"/tmp": tmp_kb, "/run": tmp_kb},  # noqa: S108 (its own)
        shm_kb=min(limits.disk_mb << 10, _SHM_MB << 10, memory_kb // 4), limits=limits, pids=limits.pids + 1,
        memory_bytes=None if limits.memory_mb is None else (limits.memory_mb + _OWN_MB) << 20,
        argv=opened.python.argv, env=opened.python.env,
    )


def _place(image: Prepared, target: str) -> Path:
    """Where the upload at ``target`` lies among the image's layers."""
    for lower in image.lowers:
        if os.path.lexists(place := lower / target.lstrip("/")):
            return place
    raise EnvironmentFault(f"the upload at {target} is in none of the image's layers")
