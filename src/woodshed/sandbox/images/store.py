"""Images: an environment's declaration in, a prepared root file system out; made once, then a lookup."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from woodshed.errors import Cause, ImageFault, Unsupported, UsageError, boundary
from woodshed.model import EnvironmentSpec
from woodshed.sandbox.images import container, directory, host, pip, program, tree, unpack, upload, venv
from woodshed.sandbox.images.account import Account, of_layers
from woodshed.sandbox.images.build import Builder, build_wheel
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.kinds import BUILDING, Containers
from woodshed.sandbox.images.layers import Layers
from woodshed.sandbox.images.python import Interpreter, find
from woodshed.sandbox.images.requirement import BASE, Pin, key, parse
from woodshed.sandbox.images.rootfs import Bind, Rootfs
from woodshed.sandbox.images.view import View
from woodshed.sandbox.native.ids import COUNT

FORMAT = "1"
"""Raised whenever the same input must give another layer."""

_TOOLS = ("pip", "pytest")
_MOST_BUILDS = 50
_ROOTS = ("HOME", "USER")
_Root = tuple[tuple[Path, ...], tuple[Bind, ...], str]
"""Lower layers, binds, and the identity of what is not a layer of ours."""
_Base = tuple[_Root, tree.Plan, Rootfs]
"""A root, what it lacks, and a Rootfs with everything that does not depend on uploads."""


class Images:
    """Prepares root file systems under ``home``; any number of threads and processes may share one home.

    ``build`` makes wheels of source distributions inside a sandbox; without it they are refused. ``crossing`` leads to
    sandboxes in which layers are unpacked and Dockerfiles built; without it only images that are here can be prepared.
    """

    def __init__(self, home: Path, build: Builder | None = None, crossing: Crossing | None = None) -> None:
        self.layers = Layers(home)
        self.containers = Containers(self.layers, crossing)
        self._home, self._build = home.absolute(), build
        self._ready: dict[Hashable, Rootfs] = {}
        self._guard = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}
        self._hosts: dict[tuple[str, ...], _Root] = {}
        self._python: Interpreter | None = None

    def prepare(self, spec: EnvironmentSpec) -> Rootfs:
        """What ``spec`` declares, ready to mount. Blocks while layers are made; then a dictionary lookup.

        An upload's source is read once per process: later changes on disk are seen by later processes only.
        Raises UsageError for a bad declaration, ImageFault and EnvironmentFault for what could not be made,
        Unsupported for requirements with another image than ``host``.
        """
        wanted = (spec.image, spec.requirements, spec.uploads, spec.user, spec.programs)
        if ready := self._ready.get(wanted):
            return ready
        with self._guard:
            making = self._making.setdefault(wanted, threading.Lock())
        with making:
            if ready := self._ready.get(wanted):
                return ready
            with boundary(Cause.ENVIRONMENT, f"preparing the image {spec.image}"):
                ready = self._ready[wanted] = self._prepare(spec)
            with self._guard:
                self._making.pop(wanted, None)
        return ready

    def close(self) -> None:
        """Forget what was prepared and let others collect garbage. Idempotent."""
        self._ready.clear()
        self.containers.stop()
        self.layers.close()

    def _prepare(self, spec: EnvironmentSpec) -> Rootfs:
        if spec.requirements and spec.image != "host":
            raise Unsupported(f"requirements with the image {spec.image}: install them into it, or use 'host'")
        (lowers, binds, identity), missing, like = self._base(spec)
        if spec.image != "host":
            for one in spec.programs:
                program.check(one, spec.image, View(lowers), like.env.get("PATH", ""))
        lowers = (*(program.layer(one, self.layers, self._interpreter, host=spec.image == "host")
                    for one in spec.programs), *lowers)
        plan = missing | upload.plan_uploads(spec.uploads, lowers, binds)
        if plan:
            lowers = (self._layer(_like(plan, View(lowers))), *lowers)
        names = [layer.name for layer in lowers if layer.parent == self.layers.root]
        acting = [repr(like.account)] if like.account else []
        digest = "sha256:" + key(FORMAT, like.digest, identity, *names, *acting)
        return replace(like, digest=digest, lowers=lowers, binds=binds)

    def _base(self, spec: EnvironmentSpec) -> _Base:
        if spec.image == "host":
            host_root = self._host(parse(spec.requirements))
            account = _account(spec.user, host_root[0])
            like = Rootfs("host", (), (), _ours(host.ENV, account), host.shell(), account=account)
            return host_root, {}, like
        if spec.image.startswith("dir:"):
            path = directory.root_of(spec.image, self._home)
            root = ((path,), (), directory.manifest(path))
            account = _account(spec.user, (path,))
            like = Rootfs("dir", (), (), _ours(directory.ENV, account), directory.shell(path), account=account)
            return root, directory.missing(path), like
        if spec.image == unpack.EMPTY:
            like = Rootfs("scratch", (), (), MappingProxyType(directory.ENV), "/bin/sh", own_tmp=True)
            return ((), (), ""), container.mount_points(()), like
        image, building = self.containers.get(spec.image), spec.image.startswith(BUILDING)
        lowers = tuple(self.layers.path(layer) for layer in image.layers)
        account = _account(spec.user or image.config.user, lowers, building)
        env = MappingProxyType({**_ours(directory.ENV, account), **image.config.env})
        like = Rootfs("container", (), (), env, container.shell(lowers), image.config.workdir, account, own_tmp=True,
                      building=building)
        return (lowers, (), key(FORMAT, repr(sorted(env.items())))), container.mount_points(lowers), like

    def _layer(self, plan: tree.Plan) -> Path:
        return self.layers.make(tree.digest(plan), lambda root: tree.digest(plan, root))

    def _host(self, requirements: tuple[str, ...]) -> _Root:
        if known := self._hosts.get(requirements):
            return known
        python = self._interpreter()
        plan, binds = host.skeleton(python)
        lowers = (*self._venv(python, requirements), self._layer(plan))
        return self._hosts.setdefault(requirements, (lowers, binds, host.identity(python)))

    def _interpreter(self) -> Interpreter:
        with self._guard:
            self._python = self._python or find(self._home)
            return self._python

    def _venv(
        self, python: Interpreter, requirements: tuple[str, ...], *, wheels_only: bool = False
    ) -> tuple[Path, ...]:
        """The layers of the virtual environment with pytest, pip and ``requirements``, topmost first.

        Where the requirements agree with the base's versions, what they add lies over the base's layer; else they get
        an environment of their own. What answered a list of requirements once is noted and used again, so that a
        machine's results stay comparable; ``gc`` of the layer alone does not change it.
        """
        asked = key(FORMAT, python.tag, str(python.exe), *map(str, BASE), *requirements)
        links = self.layers.root / ".wheels" / asked
        pins = BASE if not requirements and python.version >= (3, 11) else self._noted(asked)
        if pins is None:
            found = self._resolve(python, requirements, links, wheels_only)
            # Unlocked while it resolved: a source's build may ask for tools whose list waits for this one.
            with self.layers.lock(asked):
                if (pins := self._noted(asked)) is None:
                    self.layers.set_note(asked, [str(pin) for pin in found])
                    pins = found
        if pins == BASE or not set(BASE) <= set(pins):
            return (self._installed(python, pins, links),)
        added = tuple(pin for pin in pins if pin not in BASE)
        return self._installed(python, added, links, over="base"), self._installed(python, BASE, links)

    def _installed(self, python: Interpreter, pins: tuple[Pin, ...], links: Path, over: str = "") -> Path:
        made = key(FORMAT, python.tag, str(python.exe), over, *map(str, pins))

        def fill(layer: Path) -> None:
            with self.layers.scratch() as scratch:
                venv.fill(layer, python, pins, scratch, links if links.is_dir() else None, bare=bool(over))

        return self.layers.make(made, fill)

    def _noted(self, asked: str) -> tuple[Pin, ...] | None:
        note = self.layers.note(asked)
        return tuple(Pin.read(line) for line in note) if isinstance(note, list) else None

    def _resolve(
        self, python: Interpreter, requirements: tuple[str, ...], links: Path, wheels_only: bool
    ) -> tuple[Pin, ...]:
        """With the base's versions where the requirements allow them, else with whatever agrees with them."""
        for _ in range(_MOST_BUILDS):
            try:
                return self._try(python, requirements, links)
            except pip.NoWheel as missing:
                if wheels_only or self._build is None:
                    raise ImageFault(f"requirement {missing.requirement!r}: there is no wheel of it for Python "
                                     f"{python.short}, and no sandbox to build one in ({missing})") from missing
                self._build_missing(python, missing.requirement, links)
        raise ImageFault(f"more than {_MOST_BUILDS} source distributions behind {', '.join(requirements)}")

    def _try(self, python: Interpreter, requirements: tuple[str, ...], links: Path) -> tuple[Pin, ...]:
        found_in = links if links.is_dir() else None
        bound = [f"{pin.name}=={pin.version}" for pin in BASE]
        with self.layers.scratch() as scratch:
            try:
                return pip.resolve(python.exe, (*_TOOLS, *requirements), bound, scratch, found_in)
            except ImageFault as fault:
                if isinstance(fault, pip.NoWheel) and not fault.requirement.startswith(tuple(pin.name for pin in BASE)):
                    raise
                # Perhaps a requirement asks for another pytest, or this Python or index has only another.
                return pip.resolve(python.exe, (*_TOOLS, *requirements), (), scratch, found_in)

    def _build_missing(self, python: Interpreter, requirement: str, links: Path) -> None:
        assert self._build is not None
        with self.layers.scratch() as scratch:
            version = ".".join(map(str, python.version))
            wheel = build_wheel(requirement, version, self._build, self._prepare_tools, scratch)
            links.mkdir(mode=0o700, exist_ok=True)
            # The first one stays: its hash may be noted already.
            with suppress(FileExistsError):
                (links / wheel.name).hardlink_to(wheel)

    def _prepare_tools(self, requirements: tuple[str, ...]) -> None:
        """Have the layer of build tools ready, of wheels only: a build's tools are never built themselves."""
        self._venv(self._interpreter(), parse(requirements, field="build-system.requires"), wheels_only=True)


def _account(user: str, lowers: Sequence[Path], building: bool = False) -> Account | None:
    """Who commands are; None for root, which every sandbox has. Raises ImageFault, or UsageError for a build."""
    try:
        found = of_layers(user, View(lowers)) if user else None
    except UsageError as error:
        if building:
            raise
        raise ImageFault(f"USER {user[:80]}: {error.message}") from error
    return None if found is None or found.is_root else found


def _ours(env: Mapping[str, str], account: Account | None) -> Mapping[str, str]:
    """Variables that no image declared: HOME and USER among them are root's alone."""
    kept = env.items() if account is None else ((name, text) for name, text in env.items() if name not in _ROOTS)
    return MappingProxyType(dict(kept))


def _like(plan: tree.Plan, view: View) -> tree.Plan:
    """``plan`` whose directories have mode and owner of those they cover: in an overlay the topmost decides."""
    liked = dict(plan)
    for path, entry in plan.items():
        info = view.stat(f"/{path}") if entry.kind == "directory" else None
        if info is not None and stat.S_ISDIR(info.st_mode):
            kept = os.geteuid() == 0 and max(info.st_uid, info.st_gid) < COUNT
            owner = (info.st_uid, info.st_gid) if kept else (0, 0)
            liked[path] = replace(entry, mode=stat.S_IMODE(info.st_mode), owner=owner)
    return liked
