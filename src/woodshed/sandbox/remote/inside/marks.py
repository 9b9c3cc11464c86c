"""Marks of commands where the kernel (gVisor's) neither takes nor tells the rlimit that marks them elsewhere: a group.

A supplementary group of no name and a high number is inherited as well, stands in /proc/PID/status, and owns nothing.
As with the rlimit, user 0 inside can give it up, and hides from a timeout then, not from kill_all.
"""
# ruff: noqa: PTH123
# (Loaded in the box's first process, which stays small.)

from __future__ import annotations

import os
import resource

from woodshed.sandbox.native.inside.commands import UNMARKED, Marks

_FIRST = 1 << 30
_MARK = 10  # RLIMIT_LOCKS: see native/inside/commands.py


class Groups(Marks):
    """Marks by group."""

    def set(self, mark: int) -> None:
        """What this process starts next has this mark."""
        os.setgroups([] if mark == UNMARKED else [_FIRST + mark % _FIRST])

    def of(self, pid: int) -> int:
        """The mark of a process. Raises OSError where it has ended."""
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Groups:"):
                    found = [int(group) - _FIRST for group in line.split()[1:] if int(group) >= _FIRST]
                    return found[0] if found else UNMARKED
        return UNMARKED

    def join(self, groups: list[int]) -> None:
        """The mark stays beside them."""
        os.setgroups([*(group for group in os.getgroups() if group >= _FIRST), *groups])


def marks() -> Marks:
    """Those of this kernel."""
    try:
        soft, hard = resource.getrlimit(_MARK)
        resource.setrlimit(_MARK, (soft, hard))
    except (ValueError, OSError):
        return Groups()
    return Marks()
