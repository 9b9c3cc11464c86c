"""NativeEngine: sandboxes in about ten milliseconds, as root or as an ordinary user, without a daemon."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from woodshed.errors import EnvironmentFault, SandboxDied, Unsupported
from woodshed.interfaces import BlobSink
from woodshed.model import ChangeSet, EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native import cgroups, trees
from woodshed.sandbox.native.box import NativeSandbox, World
from woodshed.sandbox.native.channel import Channel
from woodshed.sandbox.native.ids import Ranges
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.places import Place, sweep
from woodshed.sandbox.native.restore import apply

_BOOT = "import sys; sys.path.append(sys.argv[1]); from inside.server import main; main(int(sys.argv[2]), sys.argv[3])"
_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "USER": "root",
    "LANG": "C.UTF-8",
}
_INLINE_ENTRIES = 200
"""A box with no more entries than this is removed at once, a larger one in a thread."""
_TAIL_CHARS = 2000


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


class NativeEngine:
    """Makes native sandboxes below ``home``. ``instance`` names its folder there; one live engine each."""

    name = "native"

    def __init__(self, home: Path, *, instance: str | None = None, images: Prepares | None = None) -> None:
        """Nothing starts before the first ``create``. ``images`` prepares root file systems; by default our own."""
        self._home, self._instance, self._images = home.absolute(), instance, images
        self._privileged = os.geteuid() == 0
        self._place: Place
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
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
        await self._open()
        return await self._create(await self._root(spec), spec, policy, restore)

    # -- the fork server -----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._closed:
            raise EnvironmentFault("the native engine is closed")
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._start())
        if not self._opening.done() or self._opening.exception():
            await asyncio.shield(self._opening)

    async def _start(self) -> None:
        await asyncio.to_thread(sweep, self._home)
        self._place = Place(self._home, self._instance)
        self._ids, self._control = Ranges(), cgroups.control()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        inside = Path(__file__).parent
        # -I -S: no site, no user paths; -X utf8: paths are bytes whatever the locale. The environment is empty.
        argv = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, str(inside), str(theirs.fileno()),
                str(self._place.dev)]
        self._server = subprocess.Popen(  # noqa: ASYNC220 (fork and exec take 2 ms, once an engine)
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}, cwd="/",
            pass_fds=(theirs.fileno(),), start_new_session=True,
        )
        theirs.close()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_message(message: wire.Message, fds: list[int]) -> None:
            if not ready.done():
                if "error" in message:
                    ready.set_exception(EnvironmentFault(
                        f"native sandboxes do not work here: {message['error']}. Run 'woodshed doctor'."))
                else:
                    ready.set_result(None)

        def on_end() -> None:
            if not ready.done():
                ready.set_exception(EnvironmentFault("the fork server ended at its start. Run 'woodshed doctor'."))
            self._channel = None

        self._channel = Channel(ours, on_message, on_end)
        await ready

    # -- root file systems ---------------------------------------------------------------------------------------------

    async def _root(self, spec: EnvironmentSpec) -> _Root:
        key = (spec.image, spec.requirements, spec.uploads, spec.setup and (spec.workdir, spec.setup,
                                                                         tuple(sorted(spec.env.items()))))
        task = self._roots.get(key)
        if task is None:
            task = self._roots[key] = asyncio.get_running_loop().create_task(self._prepare(spec))
        if not task.done():
            await asyncio.wait([task])
        if task.cancelled() or task.exception():
            self._roots.pop(key, None)  # the next one may have more luck
        return task.result()

    async def _prepare(self, spec: EnvironmentSpec) -> _Root:
        if self._images is None:
            from woodshed.sandbox.images import Images

            self._images = Images(self._home)
        image = await asyncio.to_thread(self._images.prepare, spec)
        root = _Root(image.digest, image.lowers, image)
        return root if spec.setup is None else await self._set_up(root, spec, spec.setup)

    async def _set_up(self, root: _Root, spec: EnvironmentSpec, command: str) -> _Root:
        """Run the setup command in a box of its own and keep what it changed as a layer."""
        box = await self._create(root, spec, SandboxPolicy(limits=spec.limits), None)
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
            kept = self._place.path / f"setup-{self._made}"
            (box.world.folder / "u").rename(kept)
        finally:
            await box.close()
        digest = hashlib.sha256(f"{root.digest}\n{spec.workdir}\n{sorted(spec.env.items())}\n{command}".encode())
        return _Root(f"sha256:{digest.hexdigest()}", (kept, *root.lowers), root.image)

    # -- boxes ---------------------------------------------------------------------------------------------------------

    async def _create(
        self, root: _Root, spec: EnvironmentSpec, policy: SandboxPolicy, changes: tuple[ChangeSet, BlobSink] | None
    ) -> NativeSandbox:
        self._made += 1
        name = str(self._made)
        folder = self._place.box(name)
        groups, first_id = None, self._ids.take() if self._privileged else 0
        try:
            if changes is not None:
                await asyncio.to_thread(apply, *changes, folder / "u", root.lowers)
            groups = self._control.make(self._place.instance, name, policy.limits)
        except BaseException:
            await self._remove(folder, groups, first_id)
            raise
        world = World(
            id=f"{self._place.instance}-{name}", image_digest=root.digest, folder=folder, lowers=root.lowers,
            shell=root.image.shell, env={**_ENV, **root.image.env, **spec.env}, workdir=spec.workdir,
            limits=policy.limits, groups=groups, privileged=self._privileged,
        )

        async def destroy(box: NativeSandbox) -> None:
            self._boxes.pop(box.id, None)
            await self._remove(folder, groups, first_id)

        box = NativeSandbox(world, destroy)
        self._boxes[box.id] = box
        try:
            await box.opened(self._fork(box, _plan(world, root.image.binds, first_id)))
        except SandboxDied as error:
            await box.close()
            raise EnvironmentFault(f"the sandbox could not be made: {error}") from error
        except BaseException:
            await box.close()
            raise
        return box

    def _fork(self, box: NativeSandbox, plan: dict[str, Any]) -> Channel:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(ours, box.on_message, box.on_end)
        if self._channel is not None:
            self._channel.send(plan, [theirs.fileno()])
        # Where the fork server is gone, closing the last other end is what tells the box.
        theirs.close()
        return channel

    async def _remove(self, folder: Path, groups: cgroups.Groups | None, first_id: int) -> None:
        try:
            if not trees.remove(folder, _INLINE_ENTRIES):
                await asyncio.to_thread(trees.remove, folder)
        except OSError:
            pass  # what stays is swept with the instance's folder
        if groups is not None:
            await asyncio.to_thread(groups.remove)
        if first_id:
            self._ids.give_back(first_id)

    async def close(self) -> None:
        """End all sandboxes and the fork server; remove the instance's folder. Idempotent."""
        self._closed = True
        if self._opening is None:
            return
        with suppress(EnvironmentFault):
            await asyncio.shield(self._opening)
        for task in self._roots.values():
            task.cancel()
        await asyncio.gather(*self._roots.values(), return_exceptions=True)
        self._roots.clear()
        await asyncio.gather(*(box.close() for box in list(self._boxes.values())))
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._server is not None:
            await asyncio.to_thread(self._server.wait)
            self._server = None
            self._control.close(self._place.instance)
            await asyncio.to_thread(self._place.close)
            self._ids.close()


def _plan(world: World, binds: Sequence[Bound], first_id: int) -> dict[str, Any]:
    limits = world.limits
    return {
        "lowers": [str(path) for path in world.lowers], "upper": str(world.folder), "first_id": first_id,
        "binds": [[str(bind.source), bind.target] for bind in binds], "pids": limits.pids,
        "cgroups": [str(path) for path in world.groups.paths] if world.groups else [],
        "tmp_kb": limits.disk_mb << 10, "file_bytes": limits.disk_mb << 20, "directories": [world.workdir],
    }
