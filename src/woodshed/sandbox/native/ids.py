"""Ranges of 65,536 user ids, one for each live box of a root engine, never shared by two engines of one machine."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from woodshed.errors import EnvironmentFault

COUNT = 65536
_FIRST = 0x70000000
"""Above what systemd-nspawn picks from (524288-1878982655) and below its foreign range (0x7FFE0000): systemd's
UIDS-GIDS documentation. No user or subordinate id of a usual system lies here."""
_BLOCKS, _PER_BLOCK = 63, 64
_LOCKS = Path("/run/woodshed-ids")


_CAP_SYS_ADMIN = 21


def privileged() -> bool:
    """Whether boxes can have a range of users each: root, with CAP_SYS_ADMIN, over ids that include ours.

    Root of a container usually has not; its boxes are then made as an ordinary user's are.
    """
    if os.geteuid() != 0:
        return False
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    maps = [[int(field) for field in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    end = _FIRST + _BLOCKS * _PER_BLOCK * COUNT
    covered = any(first <= _FIRST and end <= first + count for first, _, count in maps)
    return covered and bool(int(status["CapEff"], 16) >> _CAP_SYS_ADMIN & 1)


class Ranges:
    """Hands out the first id of a free range. Blocks of ranges are held by file locks, which die with the process."""

    def __init__(self, locks: Path = _LOCKS) -> None:
        self._locks, self._held, self._free = locks, list[int](), list[int]()

    def take(self) -> int:
        """The first id of a range nobody uses. Raises EnvironmentFault when all 4,032 are taken."""
        if not self._free:
            self._take_block()
        return self._free.pop()

    def give_back(self, first: int) -> None:
        """The range is free again: no process of it lives."""
        self._free.append(first)

    def _take_block(self) -> None:
        self._locks.mkdir(mode=0o700, exist_ok=True)
        for block in range(_BLOCKS):
            fd = os.open(self._locks / str(block), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            self._held.append(fd)
            first = _FIRST + block * _PER_BLOCK * COUNT
            self._free.extend(first + index * COUNT for index in reversed(range(_PER_BLOCK)))
            return
        raise EnvironmentFault("no free range of user ids: too many sandboxes of all engines on this machine")

    def close(self) -> None:
        """Let go of all ranges. Idempotent."""
        while self._held:
            os.close(self._held.pop())
        self._free.clear()
