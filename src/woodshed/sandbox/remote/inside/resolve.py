"""openat2(2) for kernels without it (gVisor's): one component at a time, from descriptor to descriptor.

Between the look at a component and its opening nothing is followed, so a link that is put there meanwhile is an error.
"""
# ruff: noqa: PTH116
# (Loaded in the box's first process, which stays small.)

from __future__ import annotations

import errno
import os
import stat

from woodshed.sandbox.native.inside import syscalls

_LINKS = 40
"""In a row that are followed; the kernel's own bound (include/linux/namei.h)."""
_PLAIN = ("self", "thread-self", "mounts", "net")
"""Links of /proc that are ordinary ones."""
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def install() -> bool:
    """Use this instead of openat2, where the kernel does not have that; whether it is so not Linux itself."""
    try:
        os.close(syscalls.open_resolved(syscalls.AT_FDCWD, "/", os.O_PATH, 0, syscalls.RESOLVE_NO_MAGICLINKS))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        syscalls.open_resolved = open_resolved
        os.open = _guarded  # type: ignore[assignment]  # for what this process opens: paths are strings
        return True
    return False


_open = os.open


def _guarded(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """os.open, which does not follow a link that is named: gVisor (July 2024) does, asked for a directory."""
    both = os.O_DIRECTORY | os.O_NOFOLLOW
    if flags & both != both or flags & os.O_PATH:
        return _open(path, flags, mode, dir_fd=dir_fd)
    step = _open(path, _STEP, dir_fd=dir_fd)
    try:
        if not stat.S_ISDIR(os.fstat(step).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return _open(".", flags & ~os.O_NOFOLLOW, dir_fd=step)
    finally:
        os.close(step)


def open_resolved(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """As :func:`syscalls.open_resolved`. Raises OSError."""
    beneath = bool(resolve & syscalls.RESOLVE_BENEATH)
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    here = _start(directory, path, beneath=beneath)
    links = 0
    todo = _parts(path)
    try:
        while todo:
            part = todo.pop()
            if part == ".." and beneath:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            step = os.open(part, _STEP, dir_fd=here)
            last = not todo
            if not stat.S_ISLNK((info := os.fstat(step)).st_mode) or (last and flags & os.O_NOFOLLOW):
                if last:
                    return _last(here, part, step, flags, mode)
                os.close(here)
                here = step
                continue
            os.close(step)
            links += 1
            if resolve & syscalls.RESOLVE_NO_SYMLINKS or beneath or links > _LINKS or _magic(info, part):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(part, dir_fd=here)
            if target.startswith("/"):
                os.close(here)
                here = os.open("/", _STEP)
            todo += _parts(target)
        return _last(here, ".", -1, flags, mode)
    finally:
        os.close(here)


def _start(directory: int, path: str, *, beneath: bool) -> int:
    if path.startswith("/"):
        if beneath:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return os.open("/", _STEP)
    return os.open(".", _STEP) if directory == syscalls.AT_FDCWD else os.open(".", _STEP, dir_fd=directory)


def _parts(path: str) -> list[str]:
    """To be taken from the end. A slash at the end asks for a directory: the dot does."""
    parts = [part for part in path.split("/") if part and part != "."]
    return list(reversed([*parts, "."] if path.endswith("/") and parts else parts))


def _last(here: int, part: str, step: int, flags: int, mode: int) -> int:
    if step >= 0:
        os.close(step)
    return os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=here)


def _magic(info: os.stat_result, name: str) -> bool:
    return info.st_dev == os.stat("/proc").st_dev and name not in _PLAIN
