"""GvisorEngine: sandboxes of runsc, over the native engine's layers, as root.

Each has an overlay of its layers, mounted in a mount namespace that runsc alone is in: it goes when runsc does, however
that comes about. What the sandbox writes lies in its folder; what a setup command wrote becomes a layer of the next.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from woodshed.errors import EnvironmentFault
from woodshed.interfaces import Capability
from woodshed.sandbox.gvisor import bundle
from woodshed.sandbox.images.rootfs import Bind
from woodshed.sandbox.native import trees
from woodshed.sandbox.native.cgroups import Control, Groups, control
from woodshed.sandbox.native.places import Place
from woodshed.sandbox.native.roots import Prepared, Prepares
from woodshed.sandbox.remote.engine import Container, RemoteEngine
from woodshed.sandbox.remote.road import Pipes
from woodshed.settings import setting

_CAPABILITIES: frozenset[Capability] = frozenset({"users", "disk", "freeze", "pty"})
_LAUNCH = """set -e
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift
mount -t overlay woodshed -o "$1" "$2"; shift 2
while [ "$1" != -- ]; do mount --bind "$1" "$2"; mount -o remount,bind,ro,nosuid,nodev "$2"; shift 2; done
shift; exec "$@"
"""
"""What is bound is read-only on the host's side already. runsc's own read-only is not: in that of July 2024 opening a
file of such a mount with O_TRUNC fails, and leaves the host's file empty."""
_END_S = 10.0
_PIDS = 1 << 20
"""Of threads of runsc's own; what runs in the sandbox is bounded inside."""
_OLDEST = "20240101"
"""Debian 12's, of December 2022, refuses AT_NO_AUTOMOUNT, which coreutils 9 ask for. Tested: 20240729, Debian 13's."""
_SAID_BYTES = 4000


class GvisorEngine(RemoteEngine):
    """Makes sandboxes of runsc. See :class:`woodshed.sandbox.remote.engine.RemoteEngine`."""

    def __init__(self, home: Path, *, images: Prepares | None = None, platform: str | None = None) -> None:
        """``platform`` is runsc's own, ptrace, systrap or kvm: see the setting gvisor_platform."""
        made = Sandboxes(setting("gvisor_platform") if platform is None else platform)
        super().__init__("gvisor", made, home, images=images)


class Sandboxes:
    """The Maker. See :class:`woodshed.sandbox.remote.engine.Maker`."""

    def __init__(self, platform: str) -> None:
        self.groups = bundle.GROUPS
        self._platform = platform
        self._place: Place | None = None
        self._roots: dict[str, tuple[Path, ...]] = {}
        self._kept = 0

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes have. A limit of memory would be the whole sandbox's end, and is not promised."""
        return _CAPABILITIES | ({"cpus"} if "cpu" in self._control.parents else set())

    @cached_property
    def _control(self) -> Control:
        """What groups can be made here; once open, with a note of them in the engine's folder."""
        return control()

    async def open(self, place: Place) -> None:
        """What it needs is here."""
        if os.geteuid() != 0:
            raise EnvironmentFault("the gvisor engine needs root: it mounts layers for runsc. Use the native engine")
        for program, package in (("runsc", "runsc"), ("unshare", "util-linux"), ("mount", "mount")):
            if shutil.which(program) is None:
                raise EnvironmentFault(f"{program} is not installed: apt install {package}")
        await asyncio.to_thread(demand_recent)
        self._place, self._control = place, control(place.path)
        (place.path / "runsc").mkdir(mode=0o700)

    @property
    def place(self) -> Path:
        """The engine's folder, once it is open."""
        assert self._place is not None
        return self._place.path

    async def root(self, image: Prepared) -> str:
        """Its layers, by its digest."""
        self._roots[image.digest] = tuple(image.lowers)
        return image.digest

    def kept(self, container: Container, upper: Path, digest: str) -> str:
        """A root of ``container``'s with what was written to ``upper`` on top; that is moved away. Blocking."""
        self._kept += 1
        layer = self.place / f"setup-{self._kept}"
        upper.rename(layer)
        self._roots[digest] = (layer, *self._roots[container.root])
        return digest

    def flags(self) -> list[str]:
        """Of every runsc command of this engine."""
        platform = ["--platform", self._platform] if self._platform else []
        return ["--root", str(self.place / "runsc"), *platform, "--network", "none", "--ignore-cgroups=true",
                "--overlay2", "none"]

    async def start(self, container: Container) -> Running:
        """Start it. Raises EnvironmentFault, with nothing left."""
        folder = self.place / container.name
        try:
            return await asyncio.to_thread(self._start, container, folder)
        except OSError as error:
            await asyncio.to_thread(trees.remove, folder)
            raise EnvironmentFault(f"runsc cannot be started: {error}") from error

    def _start(self, container: Container, folder: Path) -> Running:
        for name in ("", "upper", "work", "rootfs"):
            (folder / name).mkdir(mode=0o755)
        sealed = [_stand_in(bind, folder / f"bound-{index}") for index, bind in enumerate(container.binds)]
        bundle.write(folder, folder / "rootfs", replace(container, binds=tuple(sealed)))
        pairs = [str(path) for bind, ours in zip(container.binds, sealed, strict=True)
                 for path in (bind.source, ours.source)]
        lowers = ":".join(_escaped(path) for path in self._roots[container.root])
        options = (f"lowerdir={lowers},upperdir={_escaped(folder / 'upper')},workdir={_escaped(folder / 'work')},"
                   "userxattr")
        groups = self._groups(container)
        argv = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _LAUNCH, "sh",
                *map(str, groups.paths), "--", options, str(folder / "rootfs"), *pairs, "--",
                "runsc", *self.flags(), "run", "--bundle", str(folder), container.name]
        try:
            with (folder / "said").open("wb") as said:
                process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
                                           start_new_session=True, env={"PATH": os.environ.get("PATH", os.defpath)})
        except OSError:
            groups.remove()
            raise
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            stream = Pipes(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        return Running(self, container, folder, process, stream, groups)

    def _groups(self, container: Container) -> Groups:
        """The group of all of a sandbox's runsc, where its time is bounded. Raises OSError."""
        assert self._place is not None
        alone = container.limits.model_copy(update={"memory_mb": None, "pids": _PIDS})
        return self._control.make(self._place.instance, container.name, alone)

    async def close(self) -> None:
        """Nothing but the folder is left, which is the engine's."""
        if self._place is not None:
            self._control.close(self._place.instance)


class Running:
    """A sandbox that was started. See :class:`woodshed.sandbox.remote.engine.Made`."""

    def __init__(
        self, sandboxes: Sandboxes, container: Container, folder: Path, process: subprocess.Popen[bytes], stream: Pipes,
        groups: Groups,
    ) -> None:
        self._groups = groups
        self._sandboxes, self._container, self._folder = sandboxes, container, folder
        self._process, self.stream = process, stream
        self._kept: str | None = None

    async def why(self) -> str:
        """What runsc said last."""
        def last() -> str:
            with suppress(OSError):
                return (self._folder / "said").read_bytes()[-_SAID_BYTES:].decode(errors="replace").strip()
            return ""

        return await asyncio.to_thread(last)

    async def keep(self, digest: str) -> str:
        """Its files as a new root: it has ended then."""
        await asyncio.to_thread(self._end)
        return await asyncio.to_thread(self._sandboxes.kept, self._container, self._folder / "upper", digest)

    def _end(self) -> None:
        """PID 1 ends when its stream does, and with it everything; runsc then cleans up and ends."""
        self.stream.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            subprocess.run(["runsc", *self._sandboxes.flags(), "delete", "--force", self._container.name],
                           check=False, capture_output=True, timeout=_END_S)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()

    async def remove(self) -> None:
        """Leave nothing of it. Idempotent; never raises."""
        def clear() -> None:
            self._end()
            self._groups.remove()
            with suppress(OSError):
                trees.remove(self._folder)

        await asyncio.to_thread(clear)


def _stand_in(bind: Bind, place: Path) -> Bind:
    """The same, at ``place``, where it is to be mounted."""
    if bind.source.is_dir():
        place.mkdir(mode=0o755)
    else:
        place.touch(mode=0o644)
    return Bind(place, bind.target)


def demand_recent() -> None:
    """Raises EnvironmentFault for a runsc in which ``ls`` and ``stat`` fail, or whose release is not told."""
    said = subprocess.run(["runsc", "--version"], check=False, capture_output=True, timeout=_END_S).stdout.decode()
    dated = re.search(r"(20\d{6})", said)
    if dated is None or dated[1] < _OLDEST:
        told = said.partition("\n")[0] or "of no version"
        raise EnvironmentFault(f"this runsc ({told}) is older than {_OLDEST}, and programs like ls fail in it. Install "
                               "that of Debian 13 or later, or gvisor.dev's")


def _escaped(path: Path) -> str:
    """As a value among an overlay's options (fs/overlayfs/params.c)."""
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
