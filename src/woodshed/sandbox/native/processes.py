"""The processes of a box as the host sees them: who they are and what they use, by proc(5)."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TOLD = Path("/proc/thread-self/children").exists()
"""CONFIG_PROC_CHILDREN: most kernels."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Of several processes: seconds of CPU, theirs and their reaped children's, and resident bytes."""

    cpu_s: float = 0.0
    resident_bytes: int = 0


def descendants(first: int) -> list[int]:
    """Every process below ``first``, which is a box's PID 1: orphans are its children, so these are all."""
    if not _TOLD:
        return _by_parent(first)
    found, todo = [], [first]
    while todo:
        below = _children(todo.pop())
        found += below
        todo += below
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 (many, often)
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123 (as above)
                found += map(int, file.read().split())
    return found


def _by_parent(first: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (as above)
        if name.isdigit() and (fields := _stat(int(name))):
            parents.setdefault(int(fields[1]), []).append(int(name))
    found = list(parents.get(first, ()))
    for pid in found:  # it grows
        found += parents.get(pid, ())
    return found


def _stat(pid: int) -> list[bytes]:
    """The fields of stat from the third on: a name before them may hold anything. Empty where it ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (as above)
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def total(first: int, below: list[int]) -> Sum:
    """What ``below``, the descendants of ``first``, use, with what those used that it has reaped."""
    cpu = resident = 0
    for pid in below:
        if fields := _stat(pid):
            cpu += sum(map(int, fields[11:15]))
            resident += int(fields[21])
    if fields := _stat(first):
        cpu += sum(map(int, fields[13:15]))
    return Sum(cpu * _TICK_S, resident * _PAGE)


def shares(pid: int) -> tuple[int, int]:
    """Resident bytes, shared pages by share (Pss): of programs and their data, and of memory files and shared memory.

    The kernel walks all pages for it. Where we may not see it: all that is resident, and nothing.
    """
    told: dict[bytes, int] = {}
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123 (many, often)
        for line in file:
            name, _, value = line.partition(b":")
            if name.startswith(b"Pss"):
                told[name] = int(value.split()[0]) << 10
    if b"Pss" in told:
        return told[b"Pss"] - told.get(b"Pss_Shmem", 0), told.get(b"Pss_Shmem", 0)
    fields = _stat(pid)
    return (int(fields[21]) * _PAGE if fields else 0), 0


def peak_bytes(pid: int) -> int:
    """The most it had resident (VmHWM)."""
    with suppress(OSError), Path(f"/proc/{pid}/status").open("rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def disk_bytes(pid: int) -> tuple[int, int]:
    """Read from and written to disks by it and its reaped children; zeros where we may not see that."""
    told: dict[bytes, int] = {}
    with suppress(OSError), Path(f"/proc/{pid}/io").open("rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            told[name] = int(value)
    return told.get(b"read_bytes", 0), told.get(b"write_bytes", 0)


def mark(pid: int) -> int:
    """The command it descends from, by the soft RLIMIT_LOCKS (``inside/commands.py``); 0 where it does not say."""
    with suppress(OSError, ValueError, IndexError), Path(f"/proc/{pid}/limits").open("rb") as file:
        for line in file:
            if line.startswith(b"Max file locks"):
                return int(line.split()[3])
    return 0


def kill(pid: int, first: int) -> None:
    """End ``pid`` if it is still a descendant of ``first``: held by a descriptor, it is no later one of its number."""
    with suppress(OSError):
        held = os.pidfd_open(pid)
        try:
            if pid in descendants(first):
                signal.pidfd_send_signal(held, signal.SIGKILL)
        finally:
            os.close(held)


def memory_files_bytes(below: list[int]) -> int:
    """What the box's /tmp and /dev/shm hold, which is memory: seen through any process of it; 0 where none shows it."""
    for pid in below:
        with suppress(OSError):
            sizes = 0
            for target in ("tmp", "dev/shm"):
                found = os.statvfs(f"/proc/{pid}/root/{target}")
                sizes += (found.f_blocks - found.f_bfree) * found.f_frsize
            return sizes
    return 0
