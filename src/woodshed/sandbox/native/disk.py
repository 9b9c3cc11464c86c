"""What a box takes of the host's disk, counted while its commands may change it; no link is followed.

The count is of blocks, so a sparse file is as large as what is in it; a file with several names counts once. Files that
have lost their last name but are still open are found through their processes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from woodshed.sandbox.native import trees

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512
"""Bytes of one st_blocks: stat(2)."""
_LONG_PATH = 3000
_DEEPEST = 40
"""Descriptors that one chain of directories may cost; a path is then 120,000 bytes long, and no honest one is."""


@dataclass(frozen=True, slots=True)
class Used:
    """Bytes on disk and directory entries. ``whole`` is False where counting stopped early: there is more."""

    bytes: int = 0
    files: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Room:
    """What the file system still has, for those who are not root."""

    bytes: int
    files: int | None
    """None where it does not count them (btrfs)."""
    total_bytes: int
    total_files: int


def room(path: Path) -> Room:
    """Of the file system that holds ``path``. Raises OSError."""
    found = os.statvfs(path)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None,
                found.f_blocks * found.f_frsize, found.f_files)


def blocks(path: Path) -> int:
    """How large the file system of ``path`` is, in its own unit: what tells it from others. Raises OSError."""
    return os.statvfs(path).f_blocks


def changes(box: Path, *, at_most: int = 1 << 62) -> Used:
    """What the box whose folder this is has changed, as :func:`used` counts, overlayfs' scratch included."""
    own, scratch = used(box / "u", at_most=at_most), used(box / "w", at_most=at_most)
    return Used(own.bytes + scratch.bytes, own.files + scratch.files, own.whole and scratch.whole)


def used(folder: Path, *, at_most: int = 1 << 62) -> Used:
    """What lies below ``folder``, which hostile programs may be changing: at most ``at_most`` entries are looked at.

    Blocking, about 4 µs an entry. What vanishes meanwhile is not counted; a folder that is not there is empty.
    """
    count = _Count(at_most)
    try:
        top = os.open(folder, _DIRECTORY)
    except OSError:
        return Used()
    try:
        count.tree(top, 0)
    finally:
        os.close(top)
    return Used(count.bytes, count.files, count.whole)


class _Count:
    def __init__(self, at_most: int) -> None:
        self.bytes = self.files = 0
        self.whole = True
        self._at_most, self._ordinary = at_most, os.geteuid() != 0
        self._seen: set[int] = set()

    def tree(self, top: int, depth: int) -> None:
        """Count below the directory ``top``; paths that grow too long start again at a descriptor of their own."""
        todo = ["."]
        if depth > _DEEPEST:
            self.whole = False
        while todo and self.whole:
            with suppress(OSError):  # it vanished
                self._directory(top, todo.pop(), depth, todo)

    def _deeper(self, fd: int, depth: int) -> None:
        try:
            self.tree(fd, depth + 1)
        finally:
            os.close(fd)

    def _directory(self, top: int, path: str, depth: int, todo: list[str]) -> None:
        try:
            fd = self._open(top, path)
        except PermissionError:
            fd, mode = _unlocked(top, path)
            try:
                self._deeper(os.dup(fd), depth)  # all below, as long as it is open
            finally:
                os.fchmod(fd, mode)
                os.close(fd)
            return
        if len(path) > _LONG_PATH:
            self._deeper(fd, depth)
            return
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._entry(entry, path, todo)
                    if not self.whole:
                        return
        finally:
            os.close(fd)

    def _open(self, top: int, path: str) -> int:
        fd = trees.open_beneath(top, path, _DIRECTORY)
        if self._ordinary and os.fstat(fd).st_mode & 0o500 != 0o500:  # to be listed, but not to be looked into
            os.close(fd)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return fd

    def _entry(self, entry: os.DirEntry[str], path: str, todo: list[str]) -> None:
        with suppress(OSError):  # it vanished
            info = entry.stat(follow_symlinks=False)
            self.files += 1
            if self.files > self._at_most:
                self.whole = False
            if stat.S_ISDIR(info.st_mode):
                todo.append(entry.name if path == "." else f"{path}/{entry.name}")
            elif info.st_nlink > 1:
                if info.st_ino in self._seen:
                    return
                self._seen.add(info.st_ino)
            self.bytes += info.st_blocks * _BLOCK


def _unlocked(top: int, path: str) -> tuple[int, int]:
    """An ordinary user's engine owns what its box closed: open it for a moment. The descriptor, and the mode it had."""
    held = trees.open_beneath(top, path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(held).st_mode)
        Path(f"/proc/self/fd/{held}").chmod(mode | 0o700)
        return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), mode
    finally:
        os.close(held)


def nameless(processes: Iterable[int], total_blocks: int, *, at_most: int = 20_000) -> int:
    """Bytes of files without a name that ``processes`` hold open on a file system of ``total_blocks``.

    Looks at ``at_most`` descriptors, so that a box with millions of them does not keep others from being counted.
    An overlay tells its upper file system's figures (fs/overlayfs/super.c, ovl_statfs), a tmpfs its own.
    """
    found: dict[tuple[int, int], int] = {}
    for path in islice(_descriptors(processes), at_most):
        with suppress(OSError):
            info = os.stat(path)  # noqa: PTH116 (thousands, perhaps)
            if info.st_nlink or not stat.S_ISREG(info.st_mode) or (info.st_dev, info.st_ino) in found:
                continue
            same = os.statvfs(path).f_blocks == total_blocks
            found[info.st_dev, info.st_ino] = info.st_blocks * _BLOCK if same else 0
    return sum(found.values())


def _descriptors(processes: Iterable[int]) -> Iterator[str]:
    for pid in processes:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 (as above)
                yield f"/proc/{pid}/fd/{name}"
