"""How many attempts a machine can carry: by what is free now, not by a number somebody chose.

A worker begins small, adds a slot at a time while all are in use and the machine has room, and gives back a part of
them at once when it is under pressure (additive increase, multiplicative decrease: Chiu and Jain 1989). Room is
measured: memory that can be had without swapping (MemAvailable, and the control group's own bound), processors by
their pressure, disk where sandboxes write. Pressure is the share of the last ten seconds in which something waited for
memory, processors or disk (PSI, Linux 4.20; where there is none, the load average stands in for processors).
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MEMORY_PRESSURE = 10.0
CPU_PRESSURE = 60.0
IO_PRESSURE = 60.0
"""Percent of ten seconds in which some task waited. Processors and disk may well be busy; memory must not be short."""
RESERVE_MB = 512
DISK_RESERVE_MB = 2048
_SHRINK = 0.75
_UNSET = 1 << 60  # what control groups of version 1 say for "no limit" is a little below 2^63


@dataclass(frozen=True, slots=True)
class Host:
    """What is free on the machine: MB, cores, and pressure in percent (None where the kernel does not tell)."""

    memory_mb: int
    disk_mb: int
    cores: int
    cpu: float | None = None
    memory: float | None = None
    io: float | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """What one attempt takes at its peak: MB of memory and of disk."""

    memory_mb: float = 256.0
    disk_mb: float = 64.0

    def seen(self, memory_mb: float, disk_mb: float) -> Need:
        """The need after another attempt: quick to rise, slow to fall, so that a heavy task is not forgotten."""
        return Need(_towards(self.memory_mb, memory_mb), _towards(self.disk_mb, disk_mb))


def _towards(old: float, new: float) -> float:
    return old + (new - old) * (0.5 if new > old else 0.05)


class Slots:
    """The number of attempts that may be at work here; :meth:`adjust` is called every few seconds."""

    def __init__(self, *, least: int = 1, most: int | None = None, first: int | None = None) -> None:
        self.least, self.most = max(1, least), most
        self.count = self._within(first if first is not None else (os.cpu_count() or 1))
        self.reason = "as many as there are processors"

    def adjust(self, host: Host, need: Need, busy: int) -> int:
        """The number from now on, and ``reason`` why. What is at work is never stopped: it only ends."""
        fits = busy + self._room(host, need)
        if pressure := _pressure(host):
            self._set(min(math.floor(min(self.count, max(busy, 1)) * _SHRINK), fits), pressure)
        elif fits < self.count:
            self._set(fits, f"there is memory and disk for {max(fits, self.least)}")
        elif busy >= self.count:
            self._set(self.count + 1, "all are at work and there is room for more")
        return self.count

    def _room(self, host: Host, need: Need) -> int:
        memory = (host.memory_mb - RESERVE_MB) / max(1.0, need.memory_mb)
        disk = (host.disk_mb - DISK_RESERVE_MB) / max(1.0, need.disk_mb)
        return max(0, math.floor(min(memory, disk)))

    def _set(self, count: int, reason: str) -> None:
        bounded = self._within(count)
        if bounded != self.count:
            self.count, self.reason = bounded, reason

    def _within(self, count: int) -> int:
        count = max(self.least, count)
        return count if self.most is None else min(count, max(self.most, self.least))


def _pressure(host: Host) -> str | None:
    for name, value, bound in (("memory", host.memory, MEMORY_PRESSURE), ("processors", host.cpu, CPU_PRESSURE),
                               ("disk", host.io, IO_PRESSURE)):
        if value is not None and value > bound:
            return f"{name} were waited for in {value:.0f} % of the last ten seconds"
    return None


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def measure(folder: Path, *, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Host:
    """What is free now; ``folder`` is where sandboxes write. What the kernel does not tell is None, or unbounded."""
    count = cores()
    cpu = _some(proc / "pressure/cpu")
    if cpu is None:
        with suppress(OSError):
            cpu = max(0.0, min(100.0, 100.0 * (os.getloadavg()[0] / count - 1.0)))
    return Host(
        memory_mb=min(_available(proc / "meminfo"), *_group_free(proc, groups), _UNSET) >> 20,
        disk_mb=shutil.disk_usage(folder).free >> 20, cores=count,
        cpu=cpu, memory=_some(proc / "pressure/memory"), io=_some(proc / "pressure/io"),
    )


def _some(path: Path) -> float | None:
    """``avg10`` of the line ``some`` (Documentation/accounting/psi.rst)."""
    with suppress(OSError, ValueError, IndexError):
        line = next(line for line in path.read_text().splitlines() if line.startswith("some "))
        return float(line.split()[1].removeprefix("avg10="))
    return None


def _available(path: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return _UNSET


def _group_free(proc: Path, groups: Path) -> Iterator[int]:
    """Bytes left below the bound of each control group this process is in, of either version."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                names, base = ("memory.max", "memory.current"), groups / path.lstrip("/")
            elif "memory" in controllers.split(","):
                names, base = ("memory.limit_in_bytes", "memory.usage_in_bytes"), groups / "memory" / path.lstrip("/")
            else:
                continue
            for folder in (base, *base.parents):
                if folder == groups.parent:
                    break
                with suppress(OSError, ValueError):
                    bound, used = (int((folder / name).read_text()) for name in names)
                    yield max(0, bound - used)
