"""Where boxes lie on the host, and how what dead engines left is found and removed.

::

    HOME/sandboxes/             0700: a setuid file made in a box of a root engine is one on disk; nobody may reach it
      <instance>/lock           locked as long as the engine lives
      <instance>/dev            the fork server's /dev template, mounted in its own namespace alone
      <instance>/setup-<n>/     what a setup command left, a layer of later boxes
      <instance>/layers/<n>/    what snapshots and forks share
      <instance>/<n>/u, w       a box's changes, and overlayfs' scratch
"""

from __future__ import annotations

import fcntl
import os
import struct
import uuid
from contextlib import suppress
from pathlib import Path

from woodshed.errors import EnvironmentFault
from woodshed.sandbox.native import cgroups, trees


class Place:
    """An engine's own folder, locked as long as the engine lives."""

    def __init__(self, home: Path, instance: str | None = None) -> None:
        """Raises EnvironmentFault where ``home`` cannot be used or ``instance`` is taken by a live engine."""
        self.instance = instance or f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        root = home.absolute() / "sandboxes"
        self.path, self.dev = root / self.instance, root / self.instance / "dev"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            root.chmod(0o700)
            self._lock = self._claim()
            _spread(self.path)
            self.dev.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(f"the sandbox folder {root} cannot be used: {error}") from error

    def _claim(self) -> int:
        """The held lock. A sweeper may take a folder away between its making and its locking: then once more."""
        while True:
            self.path.mkdir(mode=0o700, exist_ok=True)
            try:
                lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held = os.fstat(lock).st_nlink > 0
                os.close(lock)
                if held:
                    raise EnvironmentFault(f"the sandbox instance {self.instance} is in use by a live engine") from None
                continue
            if os.fstat(lock).st_nlink:
                return lock
            os.close(lock)

    def box(self, name: str) -> None:
        """Make the box directory ``name`` with its ``u`` and ``w``. Raises OSError, as where the disk is full."""
        box = f"{self.path}/{name}"
        for part in (box, f"{box}/u", f"{box}/w"):
            os.mkdir(part, 0o755)  # noqa: PTH102 (the hot path)

    def close(self) -> None:
        """Remove the folder and let go of the lock. Idempotent."""
        if self._lock >= 0:
            with suppress(OSError):
                trees.remove(self.path)
            os.close(self._lock)
            self._lock = -1


def _spread(folder: Path) -> None:
    """Have ext4 put each box into another block group, where it has the choice.

    Before it gives an inode out, ext4 passes over all that were freed in that group in the last seconds
    (recently_deleted() in fs/ext4/ialloc.c), and boxes come and go in hundreds: a tenth of what an attempt costs.
    """
    flags, get, set_, topdir = bytearray(8), 0x80086601, 0x40086602, 0x20000  # include/uapi/linux/fs.h
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, get, flags)
        fcntl.ioctl(fd, set_, struct.pack("l", struct.unpack("l", flags)[0] | topdir))
    except OSError:
        pass  # another file system, which knows no such flag
    finally:
        os.close(fd)


def remove_box(folder: Path) -> bool:
    """Remove a box that wrote next to nothing; False where more is left, for :func:`trees.remove`.

    What overlayfs leaves in ``w`` has known names, and no command ever saw it: no walk is needed, and no descriptor,
    which may be what the host has no more of.
    """
    box = str(folder)
    work = [f"{box}/w/work{below}" for below in ("", "/incompat", "/incompat/volatile")]
    with suppress(OSError):  # a box that never came to be has no work
        if os.geteuid():
            for path in work:
                os.chmod(path, 0o700)  # noqa: PTH101 (ten calls a box: strings are a third of the cost)
        os.unlink(f"{work[-1]}/dirty")  # noqa: PTH108 (as above)
        for path in reversed(work):
            os.rmdir(path)  # noqa: PTH106 (as above)
    try:
        for path in (f"{box}/w", f"{box}/u", box):
            os.rmdir(path)  # noqa: PTH106 (as above)
    except OSError:
        return not folder.exists()
    return True


def sweep(home: Path) -> list[str]:
    """Remove what dead engines left below ``home`` and in cgroups; their instance names. Live ones are not touched."""
    swept = []
    root = home.absolute() / "sandboxes"
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        with suppress(OSError):
            fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                cgroups.sweep(path.name, path)
                trees.remove(path)
                swept.append(path.name)
            finally:
                os.close(fd)
    return swept
