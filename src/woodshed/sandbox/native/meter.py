"""What a box uses, and stopping it for a while."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from woodshed.errors import EnvironmentFault
from woodshed.interfaces import Pressure, SandboxStats
from woodshed.sandbox.native import disk, processes
from woodshed.sandbox.native.inside import wire
from woodshed.sandbox.native.link import Link, World

_PRESSURE = Path("/proc/pressure")


def pressure(folder: Path = _PRESSURE) -> Pressure | None:
    """How much of the last ten seconds work on this host waited for something; None where the kernel does not tell.

    Of ``some avg10`` in Documentation/accounting/psi.rst: microseconds to read, so fit for admission.
    """
    try:
        cpu, memory, io = (_waited((folder / name).read_text()) for name in ("cpu", "memory", "io"))
    except (OSError, ValueError, KeyError):
        return None
    return Pressure(cpu, memory, io)


def _waited(text: str) -> float:
    for line in text.splitlines():
        if line.startswith("some "):
            told = dict(pair.split("=", 1) for pair in line.split()[1:])
            return float(told["avg10"]) / 100
    raise ValueError("no line 'some'")


class Meter:
    """Measures and freezes one box."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link = world, link
        self.frozen = False
        """Whether it stands still."""
        self._turn = asyncio.Lock()

    async def stats(self) -> SandboxStats:
        """What the box has used so far, all its processes together but its first. Raises SandboxDied.

        CPU and memory are a cgroup's where there is one. Elsewhere they are sums over live and reaped processes, which
        leave out what a parent that ignores SIGCHLD did not wait for, and the peak is the sum of single peaks.
        Bytes read and written are those that reached a disk.
        """
        answer, _ = await self._link.request({"op": "usage"})
        return await asyncio.to_thread(self._stats, answer)

    def _stats(self, ended: wire.Message) -> SandboxStats:
        groups = self._world.groups
        below = processes.descendants(self._link.pid)
        live = processes.total(self._link.pid, below)
        files = processes.memory_files_bytes(below)
        peak, now = groups.tell("memory_peak_bytes"), groups.tell("memory_bytes")
        moved = [processes.disk_bytes(pid) for pid in below]
        on_disk = disk.changes(self._world.folder)
        cpu_s = groups.cpu_s()
        return SandboxStats(
            cpu_s=live.cpu_s if cpu_s is None else cpu_s,
            memory_bytes=live.resident_bytes + files if now is None else now,
            memory_peak_bytes=peak if peak is not None else max(
                ended["peak_kb"] << 10, files + sum(processes.peak_bytes(pid) for pid in below)),
            read_bytes=ended["read"] + sum(read for read, _ in moved),
            written_bytes=ended["written"] + sum(written for _, written in moved),
            disk_bytes=on_disk.bytes, files=on_disk.files, processes=len(below), pressure=pressure(),
        )

    async def freeze(self) -> None:
        """Nothing inside runs until :meth:`thaw`; what is started waits. Idempotent. Raises SandboxDied.

        Where there is no cgroup to freeze in, processes get SIGSTOP: they, and who waits for them, can see that.
        """
        async with self._turn:
            if self.frozen:
                return
            group = await asyncio.to_thread(self._world.groups.freeze)
            joins = [os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)] if group else []
            try:
                answer, _ = await self._link.request({"op": "freeze"}, joins)
            finally:
                for fd in joins:
                    os.close(fd)
            self.frozen = True
            failed = answer.get("reason", "")
            if not failed and group and not await asyncio.to_thread(self._world.groups.frozen):
                failed = "something in it does not stop"
        if failed:
            await self.thaw()
            raise EnvironmentFault(f"sandbox {self._world.id} cannot be frozen: {failed}")

    async def thaw(self) -> None:
        """Everything goes on. Idempotent. Raises SandboxDied."""
        async with self._turn:
            if self.frozen:
                await asyncio.to_thread(self._world.groups.thaw)
                await self._link.request({"op": "thaw"})
                self.frozen = False
