"""Many sandboxes: what idle ones weigh, and how many a second can be made, used and ended."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from woodshed.errors import UsageError
from woodshed.interfaces import Sandbox
from woodshed.services.benching.left import descendants
from woodshed.services.benching.rounds import cpu_s
from woodshed.services.benching.shed import Shed

WORKERS = 2
_AT_A_TIME, _SETTLE_S = 4, 1.0
_FDS_EACH, _FDS_SPARE = 3, 256
_KERNEL = ("Slab", "KernelStack", "PageTables", "SecPageTables", "Percpu")
"""What the kernel keeps for a sandbox and no process is charged with: namespaces, mounts, tasks (proc_meminfo(5))."""


async def idle(shed: Shed, count: int) -> dict[str, Any]:
    """``count`` sandboxes that do nothing, weighed. Sizes are MiB a sandbox. Raises UsageError for too few files.

    ``idle_mb`` is the processes' proportional set size plus the growth of the kernel's own memory. ``available_mb``, by
    how much the machine's MemAvailable fell, checks it; where no set size may be read (first processes of boxes are not
    dumpable, so an ordinary user cannot) it is the figure, and ``method`` says so. None where others freed more
    than was taken.
    """
    _files_for(count)
    await (await shed.engine.create(shed.spec, shed.policy)).close()  # the engine's own processes are none of theirs
    await asyncio.sleep(_SETTLE_S)
    others, before, began = descendants(os.getpid()), _memory(), time.perf_counter()
    boxes: list[Sandbox] = []
    try:
        await _fill(shed, boxes, count)
        made_s = time.perf_counter() - began
        await asyncio.sleep(_SETTLE_S)
        after, sizes = _memory(), _set_sizes(descendants(os.getpid()) - others)
    finally:
        began = time.perf_counter()
        while boxes:
            await asyncio.gather(*(boxes.pop().close() for _ in range(min(_AT_A_TIME, len(boxes)))))
    ended_s = time.perf_counter() - began
    kernel = sum(after.get(name, 0) - before.get(name, 0) for name in _KERNEL) / count
    available = (before["MemAvailable"] - after["MemAvailable"]) / count
    pss = None if None in sizes or not sizes else sum(filter(None, sizes)) / count
    size = available if pss is None else pss + kernel
    return {
        "n": count,
        "idle_mb": _mb(size) if size > 0 else None,
        "pss_mb": None if pss is None else _mb(pss),
        "kernel_mb": _mb(kernel),
        "available_mb": _mb(available),
        "method": "MemAvailable" if pss is None else "Pss of the processes + kernel memory",
        "processes": len(sizes),
        "create_per_s": round(count / made_s, 1),
        "close_per_s": round(count / ended_s, 1),
    }


async def churn(shed: Shed, count: int) -> dict[str, Any]:
    """``count`` cycles of create, true, close on two workers.

    CPU is milliseconds a cycle: ``own`` of this process, ``machine`` of all that was busy meanwhile.
    """
    await shed.create(1)
    numbers = iter(range(count))
    own, busy, began = time.process_time(), cpu_s()[1], time.perf_counter()
    await asyncio.gather(*(_cycles(shed, numbers) for _ in range(WORKERS)))
    seconds = time.perf_counter() - began
    spent = {"own": time.process_time() - own, "machine": cpu_s()[1] - busy}
    return {
        "n": count, "workers": WORKERS, "churn_per_s": round(count / seconds, 1),
        "cpu_ms": {name: round(1000 * value / count, 2) for name, value in spent.items()},
    }  # fmt: skip


async def _cycles(shed: Shed, numbers: Iterable[int]) -> None:
    for _ in numbers:
        await shed.create(1)


async def _fill(shed: Shed, boxes: list[Sandbox], count: int) -> None:
    async def make() -> None:
        boxes.append(await shed.engine.create(shed.spec, shed.policy))

    while len(boxes) < count:
        await asyncio.gather(*(make() for _ in range(min(_AT_A_TIME, count - len(boxes)))))


def _files_for(count: int) -> None:
    wanted, (soft, hard) = _FDS_EACH * count + _FDS_SPARE, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise UsageError(f"{count} idle sandboxes need {wanted} open files, and no more than {hard} are allowed",
                         field="--idle", remedy="Raise the limit (ulimit -Hn), or ask for fewer.")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _memory() -> dict[str, int]:
    """/proc/meminfo in KiB."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines}


def _set_sizes(pids: Iterable[int]) -> list[int | None]:
    return [_set_size(pid) for pid in pids]


def _set_size(pid: int) -> int | None:
    """KiB of the process alone plus its part of what it shares; None where we may not know."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def _mb(kib: float) -> float:
    return round(kib / 1024, 3)
