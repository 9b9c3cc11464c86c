"""Faithful copies of what a box made: contents with their holes, owners, modes, times, links and attributes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
"""include/uapi/linux/fs.h: share the blocks, where the file system can (xfs, btrfs …)."""
_CHUNK = 1 << 24
_OVERLAY = "user.overlay."
"""overlayfs' own notes in its upper directory, and no attributes of a box."""


class Puts(Protocol):
    """Brings entries of one directory into another."""

    def put(self, path: str, source: int, target: int, info: os.stat_result) -> None:
        """The entry at the end of ``path``, no directory itself, from the directory ``source`` into ``target``.

        ``path`` is relative to the top of all that is put. Raises OSError.
        """


class Linker:
    """Puts entries by hard link; by copy where that is refused or a file has all the links it can have."""

    def __init__(self, top: int) -> None:
        self._copier = Copier(top)

    def put(self, path: str, source: int, target: int, info: os.stat_result) -> None:
        """See :class:`Puts`."""
        name = path.rpartition("/")[2]
        try:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EMLINK, errno.EPERM):
                raise
            self._copier.put(path, source, target, info)


class Copier:
    """Puts entries by copy. The names of one file stay names of one file."""

    def __init__(self, top: int) -> None:
        """``top`` is the directory that all paths are relative to; it stays the caller's."""
        self._top = top
        self._first: dict[tuple[int, int], str] = {}

    def put(self, path: str, source: int, target: int, info: os.stat_result) -> None:
        """See :class:`Puts`."""
        name = path.rpartition("/")[2]
        if info.st_nlink > 1:
            first = self._first.setdefault((info.st_dev, info.st_ino), path)
            if first is not path:
                with suppress(OSError):  # too deep, or too many links: then a file of its own
                    os.link(first, name, src_dir_fd=self._top, dst_dir_fd=target, follow_symlinks=False)
                    return
        if stat.S_ISREG(info.st_mode):
            _file(name, source, target, info)
            return
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        else:  # a pipe, a socket, or overlayfs' mark of a deletion
            os.mknod(name, info.st_mode, info.st_rdev, dir_fd=target)
        if os.geteuid() == 0:
            os.chown(name, info.st_uid, info.st_gid, dir_fd=target, follow_symlinks=False)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=target, follow_symlinks=False)


def _file(name: str, source: int, target: int, info: os.stat_result) -> None:
    reading = open_file(name, source)
    try:
        writing = os.open(name, _NEW, 0o600, dir_fd=target)
        try:
            _contents(reading, writing, info.st_size)
            settle(reading, writing, stat.S_IMODE(info.st_mode), info)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def open_file(name: str, directory: int) -> int:
    """A regular file open for reading; where its mode shuts out an ordinary user, its owner, that is undone at once."""
    try:
        return os.open(name, _FILE, dir_fd=directory)
    except PermissionError:
        if os.geteuid() == 0:
            raise
    named = os.open(name, _NAMED, dir_fd=directory)
    try:
        path, mode = Path(f"/proc/self/fd/{named}"), stat.S_IMODE(os.fstat(named).st_mode)
        path.chmod(mode | 0o400)
        try:
            return os.open(name, _FILE, dir_fd=directory)
        finally:
            path.chmod(mode)
    finally:
        os.close(named)


def _contents(reading: int, writing: int, size: int) -> None:
    """``size`` bytes; holes stay holes."""
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
        return
    except OSError:
        pass  # no shared blocks here
    os.ftruncate(writing, size)
    for start, end in _extents(reading, size):
        while start < end:
            done = _copy(reading, writing, start, end - start)
            if not done:
                return
            start += done


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where data lies: lseek(2), SEEK_DATA and SEEK_HOLE."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole is left
            return
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        yield start, end


def _copy(reading: int, writing: int, offset: int, count: int) -> int:
    try:
        return os.copy_file_range(reading, writing, min(count, _CHUNK), offset, offset)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return os.pwrite(writing, os.pread(reading, min(count, 1 << 20), offset), offset)


def settle(source: int, target: int, mode: int, info: os.stat_result | None = None) -> None:
    """Owner, attributes, mode and times of the open ``source`` for the open ``target``."""
    info = info or os.fstat(source)
    if os.geteuid() == 0:
        os.fchown(target, info.st_uid, info.st_gid)
    for name in attributes(source):
        os.setxattr(target, name, os.getxattr(source, name))
    os.fchmod(target, mode)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def attributes(fd: int) -> list[str]:
    """The extended attributes that a box gave a file or directory, by name."""
    try:
        return sorted(name for name in os.listxattr(fd) if name.startswith("user.") and not name.startswith(_OVERLAY))
    except OSError:
        return []
