"""Control groups version 1: one hierarchy a controller, each mounted below /sys/fs/cgroup by its name.

Formats: Documentation/admin-guide/cgroup-v1/{memory,pids,cpuacct}.rst, Documentation/scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import os
from pathlib import Path

from woodshed.model import Limits

NAME = "woodshed"
PERIOD_US = 100_000
_CONTROLLERS = ("memory", "cpu", "pids")


def parents(root: Path, own: str) -> dict[str, Path]:
    """Where groups can be made, by controller: below the hierarchy's root, or below our own group where only that is
    ours. ``own`` is the content of /proc/self/cgroup.
    """
    found = {}
    for name in _CONTROLLERS:
        for place in (root / name, root / name / _path(own, name)):
            if (place / "cgroup.procs").exists() and os.access(place, os.W_OK):
                found[name] = place / NAME
                break
    return found


def _path(own: str, controller: str) -> str:
    """Of our group in the hierarchy of ``controller``: lines are ``number:controller,controller:/path``."""
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    return ""


def settings(controller: str, limits: Limits) -> list[tuple[str, str]]:
    """Files and values that hold ``limits``, in the order they must be written."""
    if controller == "memory":
        size = str((limits.memory_mb or 0) << 20)
        # The sum with swap may not be below the limit without: this one first. It is missing where swap is not counted.
        return [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
    if controller == "cpu":
        return [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota_us(limits)))]
    return [("pids.max", str(limits.pids))]


def quota_us(limits: Limits) -> int:
    """CPU time of one period; the kernel takes no less than a millisecond."""
    return max(1000, int((limits.cpus or 1.0) * PERIOD_US))


FILES = {
    "oom_kills": ("memory", "memory.oom_control", "oom_kill"),
    "pids_refused": ("pids", "pids.events", "max"),
    "memory_bytes": ("memory", "memory.usage_in_bytes", ""),
    "memory_peak_bytes": ("memory", "memory.max_usage_in_bytes", ""),
    "cpu_ns": ("cpu", "cpuacct.usage", ""),  # where cpu and cpuacct are mounted together
}
"""What a group tells: its controller, the file, and the word before the number where the file has several."""
