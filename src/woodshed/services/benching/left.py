"""What a measurement leaves behind: nothing, or here is its list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


@dataclass(slots=True)
class Traces:
    """By what the things of the engines on ``home`` are known once those are closed: ``note`` them while they live.

    What this process had started before (``others``) is none of theirs. A box shows neither arguments nor environment
    nor host paths, so its processes are known by number and start.
    """

    home: Path
    instances: set[str] = field(default_factory=set)
    processes: set[tuple[int, int]] = field(default_factory=set)
    others: set[int] = field(default_factory=lambda: descendants(os.getpid()))

    def note(self) -> None:
        """Remember what there is now: the engines' folders, and all that this process has started since."""
        self.instances |= {path.name for path in self._folders()}
        started = {pid: start for pid, _, start in _processes()}
        self.processes |= {(pid, started[pid]) for pid in descendants(os.getpid()) - self.others if pid in started}

    def left(self) -> list[str]:
        """The noted processes and cgroups that are still there, and every mount and folder below ``home``."""
        found = [f"directory {path}" for path in self._folders()]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [f"mount {line.split()[4]}" for line in mounts if str(self.home) in line]
        found += [f"process {pid}" for pid, _, start in _processes() if (pid, start) in self.processes]
        return found + [f"cgroup {path}" for path in self._groups()]

    def _folders(self) -> list[Path]:
        return sorted((self.home / "sandboxes").glob("*"))

    def _groups(self) -> list[str]:
        return [folder for folder, _, _ in os.walk(_GROUPS) if Path(folder).name in self.instances]


def descendants(of: int) -> set[int]:
    """The processes that ``of`` has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _processes():
        children.setdefault(parent, []).append(pid)
    found, unseen = set[int](), [of]
    while unseen:
        new = children.get(unseen.pop(), [])
        unseen += new
        found |= set(new)
    return found


def _processes() -> Iterator[tuple[int, int, int]]:
    """Number, parent and start (clock ticks since boot) of every process: proc_pid_stat(5). Ended ones are none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue  # it ended while we looked
            if fields[0] not in b"ZX":
                yield int(entry.name), int(fields[1]), int(fields[19])
