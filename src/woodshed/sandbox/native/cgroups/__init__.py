"""Memory and CPU limits of boxes by control groups, version 1 or 2, where this process may make them; and freezing.

A group stands at ``woodshed/<instance>/<box>`` below each controller's root (version 1) or below the place that
``v2.find`` chose; where, an engine notes in its folder, so that what a killed one left is found. Commands of a box
join; its PID 1 never does. A machine with both versions (hybrid) has its limits in version 1 and freezes in version 2:
what version 1's freezer holds cannot be killed, and so could hold up the end of a box.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.model import Limits
from woodshed.sandbox.native.cgroups import v1, v2

__all__ = ["Control", "Groups", "control", "sweep"]

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NOTE = "cgroups"
_FREEZE_FOR_S = 2.0
_FILE_BYTES = 4096


@dataclass(slots=True)
class Groups:
    """The groups of one box; none where no limit asked for one."""

    control: Control
    instance: str
    box: str
    by_controller: dict[str, Path] = field(default_factory=dict)
    freezer: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Directories that commands join: one a controller (version 1), one in all (version 2)."""
        return tuple(dict.fromkeys(self.by_controller.values()))

    def holds(self, controller: str) -> bool:
        """Whether the kernel holds this limit of the box."""
        return controller in self.by_controller

    def tell(self, what: str) -> int | None:
        """A figure of ``v1.FILES`` or ``v2.FILES``; None where no group tells it."""
        known = (v2 if self.control.version == 2 else v1).FILES.get(what)
        path = self.by_controller.get(known[0]) if known else None
        if known is None or path is None:
            return None
        try:
            fd = os.open(f"{path}/{known[1]}", os.O_RDONLY | os.O_CLOEXEC)  # no file object: four times an exec
        except OSError:
            return None
        try:
            words = os.read(fd, _FILE_BYTES).split()
        except OSError:
            return None
        finally:
            os.close(fd)
        if not known[2]:
            return int(words[0])
        name = known[2].encode()
        return int(words[words.index(name) + 1]) if name in words else None

    def oom_kills(self) -> int:
        """How many processes of the box the kernel killed for want of memory; 0 where no memory limit holds."""
        return self.tell("oom_kills") or 0

    def pids_refused(self) -> int:
        """How many new processes the kernel refused; 0 where no group counts them."""
        return self.tell("pids_refused") or 0

    def cpu_s(self) -> float | None:
        """User and system seconds of all its processes so far, PID 1's apart; None where no group tells."""
        for what, unit in (("cpu_ns", 1e-9), ("cpu_us", 1e-6)):
            if (value := self.tell(what)) is not None:
                return value * unit
        return None

    # -- freezing ------------------------------------------------------------------------------------------------------

    def freeze(self) -> Path | None:
        """A frozen group, made if need be: whatever joins it stops. None where there can be none. Blocking."""
        if self.freezer is None and self.control.freezer is not None:
            if self.control.version == 2 and self.by_controller:
                self.freezer = self.paths[0]
            else:
                path = self.control.freezer / self.instance / self.box
                with suppress(OSError):
                    self.control.begin(self.instance)
                    _mkdir(path)
                    self.freezer = path
        if self.freezer is not None:
            try:
                (self.freezer / "cgroup.freeze").write_text("1")
            except OSError:
                return None
        return self.freezer

    def frozen(self) -> bool:
        """Whether everything in the frozen group has stopped, waiting for it a while. Blocking."""
        until = time.monotonic() + _FREEZE_FOR_S
        while self.freezer is not None:
            if "frozen 1" in (self.freezer / "cgroup.events").read_text():
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return False

    def thaw(self) -> None:
        """What joined goes on. Idempotent."""
        if self.freezer is not None:
            with suppress(OSError):
                (self.freezer / "cgroup.freeze").write_text("0")

    def remove(self) -> None:
        """Remove the groups; their processes have ended, which the kernel notices a moment later. Blocking."""
        for path in dict.fromkeys((*self.paths, *((self.freezer,) if self.freezer else ()))):
            _rmdir(path)
        self.by_controller, self.freezer = {}, None


@dataclass(frozen=True, slots=True)
class Control:
    """What can be limited here: ``parents`` by controller name. Empty where cgroups are not ours to make.

    ``freezer`` is where groups that only freeze are made; ``reason`` why less can be limited than one might expect.
    """

    parents: dict[str, Path]
    version: int
    freezer: Path | None = None
    reason: str = ""
    folder: Path | None = None
    """Of the engine: where it notes what it makes."""
    noted: list[str] = field(default_factory=list)

    def make(self, instance: str, box: str, limits: Limits) -> Groups:
        """The groups that ``limits`` need and this machine has. Raises OSError, with none left."""
        groups = Groups(self, instance, box)
        wanted = {"memory": limits.memory_mb is not None, "cpu": limits.cpus is not None}
        controllers = [name for name, asked in wanted.items() if asked and name in self.parents]
        if not controllers:
            return groups
        if "pids" in self.parents:
            controllers.append("pids")
        try:
            self.begin(instance)
            for name in controllers:
                path = self.parents[name] / instance / box
                if path not in groups.paths:
                    _mkdir(path)
                    if self.version == 2 and not set(controllers) <= set(v2.active(path.parent)):
                        v2.enable(path.parent, self.parents)
                groups.by_controller[name] = path
            self._limit(groups, limits)
        except OSError:
            groups.remove()
            raise
        return groups

    def _limit(self, groups: Groups, limits: Limits) -> None:
        settings = v2.settings if self.version == 2 else v1.settings
        for name, path in groups.by_controller.items():
            for file, value in settings(name, limits):
                try:
                    (path / file).write_text(value)
                except (FileNotFoundError, PermissionError):  # a group's missing file: sysfs lets nobody make one
                    if "swap" not in file and "memsw" not in file and "oom" not in file:
                        raise

    def begin(self, instance: str) -> None:
        """Note where the groups of ``instance`` will be, before there is one: once an engine."""
        if self.folder is not None and instance not in self.noted:
            self.noted.append(instance)
            (self.folder / _NOTE).write_text("".join(f"{top}\n" for top in self._tops(instance)))

    def _tops(self, instance: str) -> list[Path]:
        parents = [*self.parents.values(), *((self.freezer,) if self.freezer else ())]
        return [parent / instance for parent in dict.fromkeys(parents)]

    def close(self, instance: str) -> None:
        """Remove the instance's groups, and ours altogether where no other engine has one."""
        for top in self._tops(instance):
            _remove_top(top)


def control(folder: Path | None = None, *, root: Path = _ROOT, own: Path = _OWN) -> Control:
    """What this process may limit: controllers whose hierarchy it can make a group in. Never raises OSError.

    ``folder`` is the engine's own; ``root`` and ``own`` are the kernel's. In version 2 this may move us into a leaf.
    """
    try:
        mine = own.read_text()
    except OSError:
        mine = ""
    if (root / "cgroup.controllers").exists():
        found = v2.find(root, mine, os.getpid())
        return Control(found.parents, 2, found.freezer, found.reason, folder)
    parents = v1.parents(root, mine)
    reason = "" if parents else "no hierarchy of version 1 can be written: root has them"
    return Control(parents, 1, v2.freezer(root / "unified"), reason, folder)


def sweep(instance: str, folder: Path | None = None) -> None:
    """Remove the groups of a dead engine: where it noted them in its ``folder``, and where we would make ours."""
    tops = control()._tops(instance)
    if folder is not None:
        with suppress(OSError, ValueError):
            for line in (folder / _NOTE).read_text().splitlines():
                noted = Path(line)
                if noted.parts[-2:] == (v1.NAME, instance) and noted.is_relative_to(_ROOT) and ".." not in noted.parts:
                    tops.append(noted)
    for top in dict.fromkeys(tops):
        _remove_top(top)


def _remove_top(top: Path) -> None:
    for path in sorted(top.iterdir()) if top.is_dir() else []:
        if path.is_dir():
            with suppress(OSError):  # frozen, and so perhaps a while in ending
                (path / "cgroup.freeze").exists() and (path / "cgroup.freeze").write_text("0")
            _end(path)
            _rmdir(path)
    _rmdir(top)
    with suppress(OSError):
        top.parent.rmdir()


def _end(group: Path) -> None:
    """Kill what is left in a group of a dead engine: its first process takes all of a box with it, as a rule."""
    with suppress(OSError):
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    if str(pid) in (group / "cgroup.procs").read_text().split():  # and so no later one of its number
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)


def _mkdir(path: Path) -> None:
    """With parents, though an engine that ends may remove an empty one between two steps."""
    for _ in range(10):
        with suppress(FileNotFoundError):
            path.mkdir(parents=True, exist_ok=True)
            return
    path.mkdir(parents=True, exist_ok=True)


def _rmdir(path: Path) -> None:
    for pause_s in (0.0, 0.002, 0.01, 0.05, 0.2):
        time.sleep(pause_s)
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            continue
        return
