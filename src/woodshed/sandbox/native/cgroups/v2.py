"""Control groups version 2: one hierarchy, controllers handed down level by level.

Formats and the rule that a group with processes hands no controller down: Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from woodshed.model import Limits
from woodshed.sandbox.native.cgroups.v1 import NAME, PERIOD_US, quota_us

_CONTROLLERS = ("memory", "cpu", "pids")
_LEAF = "woodshed-engine"
"""Where we move ourselves, so that our own group has no process and may hand its controllers down."""


@dataclass(frozen=True, slots=True)
class Found:
    """What version 2 offers: limits by ``parents``, groups to freeze below ``freezer``; why not more, in ``reason``."""

    parents: dict[str, Path]
    freezer: Path | None
    reason: str = ""


def find(root: Path, own: str, pid: int) -> Found:
    """The place for groups of process ``pid`` (ours): the whole hierarchy's root where it is ours, else our own group.

    ``own`` is the content of /proc/self/cgroup. Our own group is used only where it is ours alone: we and our
    descendants then move into a leaf of it. Makes groups; never raises OSError.
    """
    place = root / _path(own)
    if place.name == _LEAF:
        place = place.parent
    reason = "no group of this process can be written (Delegate=yes)"
    for top in dict.fromkeys((root, place)):
        # Of the second: whoever moves processes below must be allowed to here, too.
        if not (os.access(top, os.W_OK) and os.access(top / "cgroup.procs", os.W_OK)):
            continue
        try:
            offered = (top / "cgroup.controllers").read_text().split()
            usable = [name for name in _CONTROLLERS if name in offered]
            handed = _hand_down(top, usable, pid)
            if not handed and usable:
                reason = f"other processes share the group {top}, which can so hand down no limits"
                continue
            parent = top / NAME
            parent.mkdir(exist_ok=True)
            enable(parent, handed)
        except OSError as error:
            reason = f"{top}: {error.strerror}"
            continue
        missing = [name for name in _CONTROLLERS if name not in handed]
        reason = f"{top} hands down no {', '.join(missing)}" if missing else ""
        return Found(dict.fromkeys(handed, parent), parent, reason)
    return Found({}, None, reason)


def freezer(root: Path) -> Path | None:
    """Where groups without controllers can be made (the ``unified`` mount of a hybrid machine); None where nowhere."""
    if (root / "cgroup.procs").exists() and os.access(root, os.W_OK):
        return root / NAME
    return None


def _path(own: str) -> str:
    for line in own.splitlines():
        if line.startswith("0::"):
            return line[3:].lstrip("/")
    return ""


def _hand_down(top: Path, controllers: list[str], pid: int) -> list[str]:
    """Those of ``controllers`` that groups below ``top`` have, once we did what we may for it."""
    if not set(controllers) <= set(active(top)):
        enable(top, controllers)
        if not set(controllers) <= set(active(top)) and _ours_alone(top, pid):
            leaf = top / _LEAF
            leaf.mkdir(exist_ok=True)
            for process in _processes(top):
                with suppress(OSError):  # it ended
                    (leaf / "cgroup.procs").write_text(str(process))
            enable(top, controllers)
    return [name for name in controllers if name in active(top)]


def _processes(group: Path) -> list[int]:
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def _ours_alone(group: Path, pid: int) -> bool:
    """Whether every process of ``group`` is ``pid`` or descends from it; 0 stands for one we cannot see."""
    return all(process and pid in _ancestry(process) for process in _processes(group))


def _ancestry(process: int) -> list[int]:
    """A process and its ancestors; proc(5): field 4 of stat, after a name that may hold anything."""
    chain = []
    while process > 0 and process not in chain:
        chain.append(process)
        try:
            process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return chain


def active(group: Path) -> list[str]:
    """Controllers that the groups below ``group`` have."""
    with suppress(OSError):
        return (group / "cgroup.subtree_control").read_text().replace("+", "").split()
    return []


def enable(group: Path, controllers: Iterable[str]) -> None:
    """Hand ``controllers`` down to the groups below; where the kernel refuses, nothing changes."""
    if names := [f"+{name}" for name in controllers]:
        with suppress(OSError):
            (group / "cgroup.subtree_control").write_text(" ".join(names))


def settings(controller: str, limits: Limits) -> list[tuple[str, str]]:
    """Files and values that hold ``limits``."""
    if controller == "memory":
        size = str((limits.memory_mb or 0) << 20)
        return [("memory.max", size), ("memory.swap.max", "0"), ("memory.oom.group", "0")]
    if controller == "cpu":
        return [("cpu.max", f"{quota_us(limits)} {PERIOD_US}")]
    return [("pids.max", str(limits.pids))]


FILES = {
    "oom_kills": ("memory", "memory.events", "oom_kill"),
    "pids_refused": ("pids", "pids.events", "max"),
    "memory_bytes": ("memory", "memory.current", ""),
    "memory_peak_bytes": ("memory", "memory.peak", ""),  # Linux 5.19
    "cpu_us": ("cpu", "cpu.stat", "usage_usec"),
}
"""What a group tells: its controller, the file, and the word before the number where the file has several."""
