"""Memory and CPU limits of boxes by control groups, version 1 or 2, where this process may make them.

A group stands at ``woodshed/<instance>/<box>`` below each controller's root (below our own group in version 2), so that
what a killed engine left is found by its name. Commands of a box join; its PID 1 never does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from woodshed.model import Limits

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_NAME = "woodshed"


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one box, one directory a controller (version 1) or one in all."""

    paths: tuple[Path, ...]
    version: int

    def oom_kills(self) -> int:
        """How many processes of the box the kernel killed for want of memory; 0 where no memory limit holds."""
        for path in self.paths:
            with suppress(OSError, ValueError, IndexError):
                name = "memory.events" if self.version == 2 else "memory.oom_control"
                for line in (path / name).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Remove the groups; their processes have ended, which the kernel notices a moment later."""
        for path in self.paths:
            _rmdir(path)


@dataclass(frozen=True, slots=True)
class Control:
    """What can be limited here: ``parents`` by controller name. Empty where cgroups are not ours to make."""

    parents: dict[str, Path]
    version: int

    def make(self, instance: str, box: str, limits: Limits) -> Groups | None:
        """The groups that ``limits`` need and this machine has; None where that is none. Raises OSError."""
        wanted = {"memory": limits.memory_mb is not None, "cpu": limits.cpus is not None}
        controllers = [name for name, asked in wanted.items() if asked and name in self.parents]
        if not controllers:
            return None
        if "pids" in self.parents:
            controllers.append("pids")
        made: list[Path] = []
        for name in controllers:
            path = self.parents[name] / instance / box
            if path not in made:
                _mkdir(path)
                made.append(path)
            if self.version == 2:
                _enable(path.parent, self.parents.keys())
            for file, value in _settings(name, limits, self.version):
                with suppress(FileNotFoundError):  # memsw: only where swap is accounted
                    (path / file).write_text(value)
        return Groups(tuple(made), self.version)

    def close(self, instance: str) -> None:
        """Remove the instance's groups, and ours altogether where no other engine has one."""
        for parent in set(self.parents.values()):
            _rmdir(parent / instance)
            with suppress(OSError):
                parent.rmdir()


def control() -> Control:
    """What this process may limit: controllers whose hierarchy it can make a group in."""
    if (_ROOT / "cgroup.controllers").exists():
        return _version_2()
    parents = {}
    for name in ("memory", "cpu", "pids"):
        if (_ROOT / name / "cgroup.procs").exists() and os.access(_ROOT / name, os.W_OK):
            parents[name] = _ROOT / name / _NAME
    return Control(parents, 1)


def _version_2() -> Control:
    """Version 2: our own group's controllers, if it is ours and may hand them down (a delegated or the root group)."""
    own = _ROOT
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = _ROOT / line[3:].lstrip("/")
    try:
        if not os.access(own, os.W_OK):
            return Control({}, 2)
        offered = (own / "cgroup.controllers").read_text().split()
        usable = [name for name in ("memory", "cpu", "pids") if name in offered]
        # Refused (EBUSY) where processes live in our group itself: then nothing can be limited from here.
        _enable(own, usable)
        active = (own / "cgroup.subtree_control").read_text().split()
        parent = own / _NAME
        parent.mkdir(exist_ok=True)
        _enable(parent, [name for name in usable if name in active])
        return Control({name: parent for name in usable if name in active}, 2)
    except OSError:
        return Control({}, 2)


def _enable(path: Path, controllers: Iterable[str]) -> None:
    with suppress(OSError):
        (path / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _settings(controller: str, limits: Limits, version: int) -> list[tuple[str, str]]:
    if controller == "memory":
        size = str((limits.memory_mb or 0) << 20)
        if version == 2:
            return [("memory.max", size), ("memory.swap.max", "0"), ("memory.oom.group", "0")]
        return [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
    if controller == "cpu":
        quota = str(max(1000, int((limits.cpus or 1.0) * _PERIOD_US)))
        if version == 2:
            return [("cpu.max", f"{quota} {_PERIOD_US}")]
        return [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", quota)]
    return [("pids.max", str(limits.pids))]


def sweep(instance: str) -> None:
    """Remove the groups of a dead engine."""
    for parent in set(control().parents.values()):
        top = parent / instance
        for path in sorted(top.iterdir()) if top.is_dir() else []:
            if path.is_dir():
                _rmdir(path)
        _rmdir(top)
        with suppress(OSError):
            parent.rmdir()


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
