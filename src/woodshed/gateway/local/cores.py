"""How many threads a small model is worth here."""

from __future__ import annotations

import math
import os
from pathlib import Path

_MOST = 8  # models of this size wait for memory beyond that, and the sandboxes want cores too


def usable_cores(cgroup: Path = Path("/proc/self/cgroup"), top: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores this process may really use, at most eight: its affinity, cut by the CPU quotas above it.

    A container on a large machine sees every core but is stopped when it has used its quota; with a thread for each
    core it sees, some would always be stopped while the others wait for them. Only cgroup v2 is read (kernel.org,
    "Control Group v2", cpu.max).
    """
    cores = min(_MOST, len(os.sched_getaffinity(0)))
    try:
        own = next(line[3:].strip() for line in cgroup.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return cores
    folder = top / own.lstrip("/")
    for place in (folder, *folder.parents):
        if not place.is_relative_to(top):
            break
        cores = min(cores, _quota(place / "cpu.max"))
    return max(1, cores)


def _quota(file: Path) -> int:
    """Whole cores a cpu.max allows; no limit where there is none."""
    try:
        quota, period = file.read_text().split()
        return math.ceil(int(quota) / int(period)) if quota != "max" else _MOST
    except (OSError, ValueError, ZeroDivisionError):
        return _MOST
