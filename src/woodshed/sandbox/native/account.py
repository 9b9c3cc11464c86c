"""What a box has used, kept while it lives and afterwards: nobody is asked, so that an account costs nothing.

PID 1 tells with each command's end what that took (wait4(2)), and when it ended everything, what all took that it ever
reaped (getrusage(2), RUSAGE_CHILDREN). A box that has cgroups of its own has its figures from them when it closes; so
peaks of memory are the whole box's there, and the largest single process's elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.model import Used
from woodshed.sandbox.native import disk
from woodshed.sandbox.native.cgroups import Groups
from woodshed.sandbox.native.inside import wire

_COUNTED = 20_000
"""Entries looked at when a box closes, at 4 µs each; what is larger than that the guard has counted before."""


@dataclass(slots=True)
class Account:
    """Of one box, from its making on."""

    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    by_commands_s: float = 0.0
    cpu_s: float | None = None
    """Of everything in it, once that was told."""
    peak_bytes: int | None = None
    disk_bytes: int | None = None

    def heard(self, message: wire.Message) -> None:
        """PID 1 said what a command took, or (with no exit code) what everything took that it reaped."""
        peak = int(message.get("peak_kb", 0)) << 10
        if peak > (self.peak_bytes or 0):
            self.peak_bytes = peak
        if "exit" in message:
            self.by_commands_s += message["cpu_s"]
        elif "peak_kb" in message:
            self.cpu_s = max(message["cpu_s"], self.by_commands_s)

    def counted(self, found: disk.Used | None, polled_bytes: int = 0) -> None:
        """The guard counted its changes and, where it had to, its memory."""
        if found is not None:
            self.disk_bytes = max(self.disk_bytes or 0, found.bytes)
        if polled_bytes:
            self.peak_bytes = max(self.peak_bytes or 0, polled_bytes)

    def closing(self, groups: Groups | None) -> None:
        """It runs no more, and its groups are still there. Blocking, microseconds."""
        if groups is None or not groups.by_controller:
            return
        cpu_s, peak = groups.cpu_s(), groups.tell("memory_peak_bytes")
        self.cpu_s = self.cpu_s if cpu_s is None else cpu_s
        self.peak_bytes = self.peak_bytes if peak is None else peak

    def left(self, folder: Path) -> None:
        """What it left on disk, before that goes. Blocking."""
        found = disk.used(folder / "u", at_most=_COUNTED)  # overlayfs' scratch is empty by then
        self.counted(found if found.whole else None)

    def nothing_left(self) -> None:
        """It left nothing on disk, as its removal has shown."""
        self.counted(disk.Used())

    def close(self) -> None:
        """It is gone. Idempotent."""
        if self.ended is None:
            self.ended = time.monotonic()

    def used(self) -> Used:
        """So far; all of it once it is closed."""
        until = time.monotonic() if self.ended is None else self.ended
        return Used.model_construct(  # trusted: our own sums
            sandboxes=1, sandbox_s=until - self.began, memory_peak_bytes=self.peak_bytes, disk_bytes=self.disk_bytes,
            cpu_s=self.by_commands_s if self.cpu_s is None else max(self.cpu_s, self.by_commands_s),
        )
