"""A process that ends with the benchmark that started it, however that ends.

A guard of its own waits for the end of either: of the process, and then it ends, too; of the benchmark, and then it
ends the process and what that has started. PR_SET_PDEATHSIG would not do: it fires when the *thread* that made the
child ends, and is lost where the child changes its user (prctl(2)). The guard is this file, started by its name; it
imports nothing of Woodshed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_PATIENCE_S = 5.0


def bound(process: subprocess.Popen[Any], how: signal.Signals = signal.SIGKILL) -> None:
    """``process`` gets the signal ``how`` when this one has ended, and where that does not end it is killed a while

    later, with all below it.

    On Linux before 5.3 there is no guard. Raises CalledProcessError.
    """
    subprocess.run([sys.executable, "-IS", __file__, str(int(how)), str(process.pid)], stdin=subprocess.DEVNULL,
                   check=True)


def _stand_by(parent: int, own: int, pid: int, how: int) -> None:
    """Wait for whichever ends first: ``parent`` and ``own`` are descriptors of them. Nothing else is held open."""
    keep = sorted({parent, own})
    for low, high in zip([0, *(one + 1 for one in keep)], [*keep, 4096], strict=True):
        os.closerange(low, high)
    ready, _, _ = select.select(keep, [], [])
    if own in ready:
        return
    known = _family(pid)
    with suppress(OSError):
        signal.pidfd_send_signal(own, how)
    if how != signal.SIGKILL and select.select([own], [], [], _PATIENCE_S)[0]:
        return  # it has seen to its own children
    for one in known:
        with suppress(OSError):
            os.kill(one, signal.SIGKILL)


def _family(root: int) -> list[int]:
    """A process and all it has started, as far as they stand below it."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(place.name))
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return [pid for pid in found if pid not in (0, os.getpid())]


def main() -> None:
    """The guard: it is in place when this returns."""
    how, own, parent = int(sys.argv[1]), int(sys.argv[2]), os.getppid()
    try:
        watched = os.pidfd_open(parent), os.pidfd_open(own)
    except OSError:
        return  # it is over; or there are no such descriptors here
    if os.getppid() == parent and not os.fork():  # whoever started the guard need not wait for it
        os.setsid()
        with suppress(BaseException):
            _stand_by(*watched, own, how)
        os._exit(0)


if __name__ == "__main__":
    main()
