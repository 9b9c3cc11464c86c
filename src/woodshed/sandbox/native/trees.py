"""Directories that hostile programs filled: removed without following a link, whatever their modes and depth."""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from woodshed.sandbox.native.inside import syscalls

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_beneath(top: int, path: str, flags: int) -> int:
    """Open ``path`` below the directory ``top`` without passing a single link. Raises OSError (ELOOP for a link)."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    return syscalls.open_resolved(top, path, flags, 0, resolve)


def open_directory(name: str, parent: int) -> int:
    """A descriptor of the directory ``name`` of ``parent``; one whose mode shuts us out gets mode 0700 first.

    Raises OSError for a link or another kind of file.
    """
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except PermissionError:
        unlock(name, parent, os.O_DIRECTORY)
        return os.open(name, _DIRECTORY, dir_fd=parent)


def unlock(name: str, parent: int, flags: int = 0) -> None:
    """Give the owner all permissions on ``name``, which is not followed where it is a link."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
    try:
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            # fchmod refuses an O_PATH descriptor; through /proc the same inode is reached, and no other.
            Path(f"/proc/self/fd/{fd}").chmod(0o700)
    finally:
        os.close(fd)


def small(path: Path, entries: int = 64, size: int = 1 << 20) -> bool:
    """Whether a file or tree is so small that working on it at once costs less than handing it to a thread.

    Looks at no more than ``entries`` entries, follows nothing, and says False for what it cannot read.
    """
    todo = [os.fspath(path)]
    try:
        if not stat.S_ISDIR((info := os.lstat(todo[0])).st_mode):
            return info.st_size <= size
        while todo:
            with os.scandir(todo.pop()) as found:
                for entry in found:
                    entries -= 1
                    size -= 0 if entry.is_dir(follow_symlinks=False) else entry.stat(follow_symlinks=False).st_size
                    if entries < 0 or size < 0:
                        return False
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
    except OSError:
        return False
    return True


def remove(path: Path, budget: int | None = None) -> bool:
    """Remove ``path`` and all below it. With ``budget``: at most that many entries; False when more are left.

    Works breadth first: a directory found deeper down is first moved up, so depth costs neither stack nor descriptors.
    A path that does not exist is fine. Raises OSError for what cannot be removed.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        done = _empty(top, budget)
    finally:
        os.close(top)
    if done:
        path.rmdir()
    return done


def _empty(top: int, budget: int | None) -> bool:
    left = float("inf") if budget is None else budget
    while names := os.listdir(top):
        for name in names:
            left -= 1
            if left < 0:
                return False
            if not _is_directory(name, top):
                os.unlink(name, dir_fd=top)
                continue
            unlock_if_needed(name, top)
            fd = open_directory(name, top)
            try:
                children = os.listdir(fd)  # noqa: PTH208 (a descriptor)
                left -= len(children)
                if left < 0 and budget is not None:
                    return False
                for child in children:
                    if _is_directory(child, fd):
                        _move_up(child, fd, top)
                    else:
                        os.unlink(child, dir_fd=fd)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=top)
    return True


def unlock_if_needed(name: str, parent: int) -> None:
    """Give the owner of the directory ``name`` all permissions where some are missing."""
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if mode & 0o700 != 0o700:
        unlock(name, parent, os.O_DIRECTORY)


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _move_up(child: str, fd: int, top: int) -> None:
    """Move a directory into ``top`` under a name of ours; moving needs write permission on itself, too."""
    with suppress(OSError):
        os.rmdir(child, dir_fd=fd)
        return
    unlock_if_needed(child, fd)
    os.rename(child, f".moved-{uuid.uuid4().hex}", src_dir_fd=fd, dst_dir_fd=top)
