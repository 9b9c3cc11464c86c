"""NativeEngine: sandboxes in about ten milliseconds, as root or as an ordinary user, without a daemon."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from woodshed.errors import EnvironmentFault, SandboxDied, Unsupported
from woodshed.interfaces import BlobSink, Capability, Snapshot
from woodshed.model import ChangeSet, EnvironmentSpec, SandboxPolicy, SnapshotManifest
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.build import run_build
from woodshed.sandbox.native import cgroups, trees
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.forkserver import ForkServer
from woodshed.sandbox.native.ids import Ranges, privileged
from woodshed.sandbox.native.link import World
from woodshed.sandbox.native.places import Place, remove_box, sweep
from woodshed.sandbox.native.restore import apply

_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "USER": "root",
    "LANG": "C.UTF-8",
}
"""A box with no more entries than this is removed at once, a larger one in a thread."""
_FEW, _SMALL_BYTES = 64, 1 << 20
_TAIL_CHARS = 2000
_TMP_MB, _SHM_MB = 1024, 256
"""Of /tmp and /dev/shm, which are memory: at most this, and the disk limit where that is less."""


class Bound(Protocol):
    """A host directory that stands read-only at ``target``."""

    @property
    def source(self) -> Path:
        """On the host."""

    @property
    def target(self) -> str:
        """In the box."""


class Prepared(Protocol):
    """A root file system ready to mount; :class:`woodshed.sandbox.images.rootfs.Rootfs` is one."""

    @property
    def digest(self) -> str:
        """Names the content."""

    @property
    def lowers(self) -> tuple[Path, ...]:
        """Overlay lower directories, topmost first."""

    @property
    def binds(self) -> Sequence[Bound]:
        """What is bound over them."""

    @property
    def env(self) -> Mapping[str, str]:
        """The image's environment."""

    @property
    def shell(self) -> str:
        """/bin/bash or /bin/sh."""


class Prepares(Protocol):
    """Makes root file systems of specs: blocking, cached, safe in threads."""

    def prepare(self, spec: EnvironmentSpec) -> Prepared:
        """The root file system of ``spec``. Raises ImageFault."""


@dataclass(frozen=True, slots=True)
class _Root:
    """A prepared root with the layer its setup command left on top, if there is one."""

    digest: str
    lowers: tuple[Path, ...]
    image: Prepared


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an engine holds once it has begun."""

    place: Place
    server: ForkServer
    control: cgroups.Control
    ids: Ranges


@dataclass(slots=True)
class _Hold:
    """What a box takes of the host, besides its processes."""

    opened: _Opened
    folder: Path
    first_id: int = 0
    groups: cgroups.Groups | None = None

    def _clear(self) -> None:
        """Blocking: a dozen directories wait for the file system's journal each."""
        with suppress(OSError):
            if not remove_box(self.folder):
                trees.remove(self.folder)

    async def release(self) -> None:
        """Give it all back. What cannot be removed now is swept with the instance's folder."""
        await asyncio.to_thread(self._clear)
        if self.groups is not None:
            await asyncio.to_thread(self.groups.remove)
        if self.first_id:
            self.opened.ids.give_back(self.first_id)


class NativeEngine:
    """Makes native sandboxes below ``home``. ``instance`` names its folder there; one live engine each."""

    name = "native"

    def __init__(self, home: Path, *, instance: str | None = None, images: Prepares | None = None) -> None:
        """Nothing starts before the first ``create``. ``images`` prepares root file systems; by default our own."""
        self._home, self._instance, self._images = home.absolute(), instance, images
        self._privileged = privileged()
        self._opening: asyncio.Task[_Opened] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._boxes: dict[str, NativeSandbox] = {}
        self._roots: dict[object, asyncio.Task[_Root]] = {}
        self._made = 0

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
        if policy.network:
            raise Unsupported("network: native sandboxes have none yet")
        if self._closing is not None:
            raise EnvironmentFault("the native engine is closed")
        opened = await self._open()
        return await self._create(opened, await self._root(opened, spec), spec, policy, restore)

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
        place = Place(self._home, self._instance)
        return _Opened(place, ForkServer(place.dev, self._privileged), cgroups.control(), Ranges())

    # -- root file systems ---------------------------------------------------------------------------------------------

    async def _root(self, opened: _Opened, spec: EnvironmentSpec) -> _Root:
        key = (spec.image, spec.requirements, spec.uploads, spec.setup and (spec.workdir, spec.setup,
                                                                         tuple(sorted(spec.env.items()))))
        task = self._roots.get(key)
        if task is None:
            task = self._roots[key] = asyncio.get_running_loop().create_task(self._prepare(opened, spec))
        if not task.done():
            await asyncio.wait([task])
        if task.cancelled() or task.exception():
            self._roots.pop(key, None)  # the next one may have more luck
        return task.result()

    async def _prepare(self, opened: _Opened, spec: EnvironmentSpec) -> _Root:
        loop = asyncio.get_running_loop()
        if self._images is None:
            self._images = Images(  # source distributions are built in boxes of ours
                self._home, lambda job: asyncio.run_coroutine_threadsafe(run_build(self, job), loop).result())
        image = await _in_own_thread(self._images.prepare, spec)
        root = _Root(image.digest, image.lowers, image)
        return root if spec.setup is None else await self._set_up(opened, root, spec, spec.setup)

    async def _set_up(self, opened: _Opened, root: _Root, spec: EnvironmentSpec, command: str) -> _Root:
        """Run the setup command in a box of its own and keep what it changed as a layer."""
        box = await self._create(opened, root, spec, SandboxPolicy(limits=spec.limits), None)
        try:
            try:
                result = await box.exec(command, timeout_s=spec.setup_timeout_s)
            except SandboxDied as error:
                raise EnvironmentFault(f"the setup command ended its sandbox: {error}") from error
            if result.exit_code:
                how = "timed out" if result.timed_out else f"exited {result.exit_code}"
                tail = (result.stdout + result.stderr).decode(errors="replace")[-_TAIL_CHARS:]
                raise EnvironmentFault(f"the setup command {how}: {tail}")
            await box.kill_all()
            kept = opened.place.path / f"setup-{self._made}"
            (box.world.folder / "u").rename(kept)
        finally:
            await box.close()
        digest = hashlib.sha256(f"{root.digest}\n{spec.workdir}\n{sorted(spec.env.items())}\n{command}".encode())
        return _Root(f"sha256:{digest.hexdigest()}", (kept, *root.lowers), root.image)

    # -- boxes ---------------------------------------------------------------------------------------------------------

    async def _create(
        self, opened: _Opened, root: _Root, spec: EnvironmentSpec, policy: SandboxPolicy,
        restore: tuple[ChangeSet, BlobSink] | None,
    ) -> NativeSandbox:
        self._made += 1
        name = str(self._made)
        hold = _Hold(opened, opened.place.path / name)
        try:
            hold.first_id = opened.ids.take() if self._privileged else 0
            opened.place.box(name)
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
            shell=root.image.shell, env={**_ENV, **root.image.env, **spec.env}, workdir=spec.workdir,
            policy=policy, groups=hold.groups, privileged=self._privileged,
        )
        box = self._boxes[world.id] = NativeSandbox(world, ours, self._gone(world.id, hold))
        try:
            with theirs:
                opened.server.send(_plan(world, root.image.binds, hold.first_id), [theirs.fileno()])
            await box.opened()
        except BaseException as error:
            await box.close()
            if isinstance(error, SandboxDied | OSError):
                raise EnvironmentFault(f"the sandbox could not be made: {error}") from error
            raise
        return box

    def _gone(self, ident: str, hold: _Hold) -> Callable[[], Awaitable[None]]:
        async def gone() -> None:
            self._boxes.pop(ident, None)
            await hold.release()

        return gone

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it has on this machine."""
        return frozenset({"watch", "users"} if self._privileged else {"watch"})

    async def fork(
        self, snapshot: Snapshot, n: int = 1, *, policy: SandboxPolicy | None = None
    ) -> list[NativeSandbox]:
        """``n`` sandboxes that start from ``snapshot``."""
        raise Unsupported("fork: not built yet")

    async def adopt(self, manifest: SnapshotManifest, blobs: BlobSink, spec: EnvironmentSpec) -> Snapshot:
        """A snapshot exported elsewhere."""
        raise Unsupported("export: not built yet")

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
            await opened.server.stop()
            opened.control.close(opened.place.instance)
            await asyncio.to_thread(opened.place.close)
            opened.ids.close()


async def _restore(changes: ChangeSet, blobs: BlobSink, upper: Path, lowers: Sequence[Path]) -> None:
    """Few and small changes at once, others in a thread: handing them over costs more than writing them."""
    if len(changes.changes) <= _FEW and sum(change.size for change in changes.changes) <= _SMALL_BYTES:
        apply(changes, blobs, upper, lowers)
    else:
        await asyncio.to_thread(apply, changes, blobs, upper, lowers)


async def _in_own_thread(work: Callable[[EnvironmentSpec], Prepared], spec: EnvironmentSpec) -> Prepared:
    """Not in the loop's pool: building a requirement makes a sandbox, whose own preparation must not wait for room."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Prepared] = loop.create_future()

    def settle(result: Prepared | None, error: BaseException | None) -> None:
        if done.done():
            return
        if result is not None:
            done.set_result(result)
        else:
            done.set_exception(error or EnvironmentFault("nothing was prepared"))

    def run() -> None:
        result: Prepared | None = None
        failure: BaseException | None = None
        try:
            result = work(spec)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="woodshed-prepare", daemon=True).start()
    return await done


def _pid_max(pids: int, exempt: bool) -> int:
    """The highest process number of a box: four times the limit, so that numbers are not reused in a hurry.

    The kernel reserves 300. Root of a container is exempt from RLIMIT_NPROC: there this bound alone holds, a close one.
    """
    return 301 + (pids if exempt else 4 * pids)


def _plan(world: World, binds: Sequence[Bound], first_id: int) -> dict[str, Any]:
    limits = world.limits
    return {
        "lowers": [str(path) for path in world.lowers], "upper": str(world.folder), "first_id": first_id,
        "binds": [[str(bind.source), bind.target] for bind in binds], "pids": limits.pids,
        "pid_max": _pid_max(limits.pids, os.geteuid() == 0 and not world.privileged),
        "cgroups": [str(path) for path in world.groups.paths] if world.groups else [],
        "tmp_kb": min(limits.disk_mb, _TMP_MB) << 10, "shm_kb": min(limits.disk_mb, _SHM_MB) << 10,
        "files": limits.files, "file_bytes": limits.disk_mb << 20, "workdir": world.workdir,
    }
