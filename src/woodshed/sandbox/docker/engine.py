"""DockerEngine: sandboxes in containers of Docker or Podman, on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import resource
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from woodshed.errors import EnvironmentFault
from woodshed.interfaces import Capability
from woodshed.sandbox.docker.api import Api, ApiError, Attached
from woodshed.sandbox.native.places import Place
from woodshed.sandbox.native.roots import Prepared, Prepares
from woodshed.sandbox.remote import flat
from woodshed.sandbox.remote.engine import Container, RemoteEngine
from woodshed.settings import setting

_ROOTS = "localhost/woodshed/root"
_KEPT = "localhost/woodshed/setup"
_HOME, _INSTANCE = "woodshed.home", "woodshed.instance"
"""Labels: whose container it is, so that what a killed engine left is found."""
_CAPABILITIES: frozenset[Capability] = frozenset({"users", "memory", "cpus", "disk", "freeze", "watch", "pty"})
_KEPT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "NET_BIND_SERVICE",
                      "SETPCAP")
"""Of native/inside/confine.py, with what PID 1 needs to drop them from others."""
_PATIENCE_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 0.0)
_log = logging.getLogger(__name__)
_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")


def find() -> Path | None:
    """The daemon's socket: DOCKER_HOST, or where Docker and Podman have theirs. None where there is none."""
    if host := os.environ.get("DOCKER_HOST", ""):
        return Path(host.removeprefix("unix://")) if host.startswith(("unix://", "/")) else None
    own = f"{os.environ.get('XDG_RUNTIME_DIR', '/nowhere')}/podman/podman.sock"
    return next((path for path in map(Path, (*_SOCKETS, own)) if path.is_socket()), None)


class DockerEngine(RemoteEngine):
    """Makes sandboxes in containers. See :class:`woodshed.sandbox.remote.engine.RemoteEngine`."""

    def __init__(
        self, home: Path, *, images: Prepares | None = None, socket: Path | None = None, runtime: str | None = None
    ) -> None:
        """``socket`` is the daemon's; by default it is looked for. ``runtime``: see the setting docker_runtime."""
        self.containers = Containers(home, socket, setting("docker_runtime") if runtime is None else runtime)
        super().__init__("docker", self.containers, home, images=images)


class Containers:
    """The Maker. See :class:`woodshed.sandbox.remote.engine.Maker`."""

    def __init__(self, home: Path, socket: Path | None, runtime: str) -> None:
        self.groups = ""
        self._socket, self._runtime = socket, runtime
        self._home = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
        self._api: Api | None = None
        self._kept: list[str] = []
        self._roots: dict[str, asyncio.Lock] = {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes have."""
        return _CAPABILITIES

    @property
    def api(self) -> Api:
        """The daemon, once it is open."""
        assert self._api is not None
        return self._api

    async def open(self, place: Place) -> None:
        """The daemon answers, and what dead engines of this home left is removed."""
        if "runsc" in self._runtime:
            raise EnvironmentFault(
                f"docker_runtime = {self._runtime}: runsc empties files of read-only mounts that a sandbox opens with "
                "O_TRUNC (its release of July 2024 does), the host's own among them. The gvisor engine prevents that")
        path = self._socket or find()
        if path is None:
            raise EnvironmentFault(
                "no Docker or Podman socket is found. Start one ('systemctl start docker', or "
                "'podman system service --time=0 unix:///run/podman/podman.sock &'), or name it: "
                "DOCKER_HOST=unix:///path")
        self._api = Api(path)
        try:
            await self._api.call("GET", "/_ping")
            await self._sweep(place)
        except BaseException:
            await self._api.close()
            raise

    async def _sweep(self, place: Place) -> None:
        """Remove containers of engines of this home that are gone: native's sweep has taken their folders."""
        query = {"all": "true", "filters": f'{{"label":["{_HOME}={self._home}"]}}'}
        for found in await self.api.call("GET", "/containers/json", query=query) or ():
            instance = found.get("Labels", {}).get(_INSTANCE, "")
            if instance and not (place.path.parent / instance).exists():
                await self.remove(found["Id"])

    async def root(self, image: Prepared) -> str:
        """An image of the layers, imported once a daemon. Raises EnvironmentFault."""
        total = hashlib.sha256("\n".join(str(lower) for lower in image.lowers).encode())
        total.update(image.digest.encode())
        tag = total.hexdigest()[:32]
        async with self._roots.setdefault(tag, asyncio.Lock()):
            if not await self._has(f"{_ROOTS}:{tag}"):
                query = {"fromSrc": "-", "repo": f"{_ROOTS}:{tag}"}  # Podman 4.3 does not hear "tag"
                with tempfile.TemporaryFile() as file:
                    await asyncio.to_thread(flat.write, image.lowers, cast(BinaryIO, file))
                    file.seek(0)
                    await self.api.call("POST", "/images/create", query=query, data=_pieces(cast(BinaryIO, file)))
                if not await self._has(f"{_ROOTS}:{tag}"):
                    raise EnvironmentFault("the container daemon did not keep the image that it was given")
        return f"{_ROOTS}:{tag}"

    async def _has(self, image: str) -> bool:
        try:
            await self.api.call("GET", f"/images/{image}/json")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def start(self, container: Container) -> Running:
        """Create, attach, start. Raises EnvironmentFault, with nothing left."""
        made = await self.api.call("POST", "/containers/create", query={"name": f"woodshed-{container.name}"},
                                   body=self._body(container))
        ident = str(made["Id"])
        attached: Attached | None = None
        try:
            attached = await self.api.attach(ident)
            await self.api.call("POST", f"/containers/{ident}/start")
        except BaseException:
            if attached is not None:
                attached.close()
            await asyncio.shield(self.remove(ident))
            raise
        return Running(self, ident, attached)

    def _body(self, container: Container) -> dict[str, Any]:
        limits = container.limits
        files = _hard(resource.RLIMIT_NOFILE, max(limits.open_files, 1024))
        tmpfs = {path: f"rw,nosuid,nodev,mode=1777,size={kb}k" for path, kb in container.tmpfs.items()}
        mounts = [{"Type": "bind", "Source": str(bind.source), "Target": bind.target, "ReadOnly": True}
                  for bind in container.binds]
        host: dict[str, Any] = {
            "NetworkMode": "none", "IpcMode": "private", "CapDrop": ["ALL"], "CapAdd": list(_KEPT_CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"], "PidsLimit": container.pids, "Mounts": mounts, "Tmpfs": tmpfs,
            "ShmSize": container.shm_kb << 10, "LogConfig": {"Type": "none"}, "Init": False,
            "Ulimits": [{"Name": "nofile", "Soft": files, "Hard": files},
                        {"Name": "nproc", "Soft": (most := _hard(resource.RLIMIT_NPROC, 1 << 15)), "Hard": most}],
        }
        if container.memory_bytes is not None:
            host |= {"Memory": container.memory_bytes, "MemorySwap": container.memory_bytes}
        if limits.cpus is not None:
            host |= {"CpuPeriod": 100_000, "CpuQuota": max(1000, int(limits.cpus * 100_000))}
        if self._runtime:
            host["Runtime"] = self._runtime
        return {
            "Image": container.root, "Entrypoint": [container.argv[0]], "Cmd": list(container.argv[1:]),
            "Env": [f"{name}={value}" for name, value in container.env.items()], "User": "0:0", "WorkingDir": "/",
            "Hostname": "sandbox", "Tty": False, "OpenStdin": True, "StdinOnce": True, "AttachStdin": True,
            "AttachStdout": True, "AttachStderr": False, "NetworkDisabled": True,
            "Labels": {_HOME: self._home, _INSTANCE: container.instance}, "HostConfig": host,
        }

    async def keep(self, ident: str, digest: str) -> str:
        """The container's files as an image, of this engine alone."""
        tag = f"{digest.removeprefix('sha256:')[:32]}-{os.getpid()}-{len(self._kept)}"
        await self.api.call("POST", "/commit", query={"container": ident, "repo": _KEPT, "tag": tag, "pause": "false"},
                            body={})
        self._kept.append(f"{_KEPT}:{tag}")
        return self._kept[-1]

    async def remove(self, ident: str) -> None:
        """The container is gone with all of it. Never raises; where the daemon refuses for long, the log says so.

        It refuses, for a moment, what is just ending by itself.
        """
        refused: EnvironmentFault | None = None
        for pause_s in _PATIENCE_S:
            try:
                await self.api.call("DELETE", f"/containers/{ident}", query={"force": "true", "v": "true"})
                return
            except EnvironmentFault as error:
                if isinstance(error, ApiError) and error.status == 404:
                    return
                refused = error
            await asyncio.sleep(pause_s)
        _log.warning("container %s could not be removed: %s", ident[:12], refused)

    async def close(self) -> None:
        """Remove what setup commands left. Idempotent."""
        if self._api is not None:
            while self._kept:
                with suppress(EnvironmentFault):
                    await self._api.call("DELETE", f"/images/{self._kept.pop()}", query={"force": "true"})
            await self._api.close()


class Running:
    """A container that was started. See :class:`woodshed.sandbox.remote.engine.Made`."""

    def __init__(self, containers: Containers, ident: str, stream: Attached) -> None:
        self._containers, self._ident, self.stream = containers, ident, stream

    async def why(self) -> str:
        """What the daemon says of its end."""
        with suppress(EnvironmentFault):
            state = (await self._containers.api.call("GET", f"/containers/{self._ident}/json")).get("State", {})
            return f"(exit {state.get('ExitCode')}{'; ' + state['Error'] if state.get('Error') else ''})"
        return ""

    async def keep(self, digest: str) -> str:
        """Its files as a new image."""
        return await self._containers.keep(self._ident, digest)

    async def remove(self) -> None:
        """Leave nothing of it. Idempotent; never raises."""
        self.stream.close()
        await self._containers.remove(self._ident)


def _hard(kind: int, wanted: int) -> int:
    """``wanted``, as far as this process may have it: a daemon started by us may give no more."""
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(file.read, 1 << 20):
        yield data
