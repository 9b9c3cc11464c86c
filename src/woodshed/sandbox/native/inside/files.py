"""Files of a box, opened by its own PID 1: every path is resolved inside, and only regular files are handed out."""
# ruff: noqa: PTH102, PTH112, PTH116, PTH120
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import termios

from woodshed.sandbox.native.inside import syscalls, wire

_SPARE = os.O_NONBLOCK | os.O_NOCTTY  # a FIFO or a terminal must neither hang nor adopt us
_CHUNK = 1 << 24
_LISTING = wire.LARGEST // 2
"""Bytes of a listing, as JSON at its longest (12 a character, and 120 for the rest): more would be no message."""
_LINKS = 40  # in a row that are followed; the kernel's own bound (include/linux/namei.h)
_PATH_MAX = 4096  # include/uapi/linux/limits.h


class Files:
    """The operations on files."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.operations: dict[str, wire.Operation] = {
            "read": self._read, "write": self._write, "list": self._list, "stat": self._stat,
        }

    def _read(self, message: wire.Message, fds: list[int]) -> None:
        wire.reply(self.channel, message, {"ok": 1}, _regular(checked(message), os.O_RDONLY))

    def _write(self, message: wire.Message, fds: list[int]) -> None:
        replace(checked(message), message["mode"], fds[0])
        wire.reply(self.channel, message, {"ok": 1})

    def _list(self, message: wire.Message, fds: list[int]) -> None:
        wire.reply(self.channel, message, {"entries": _entries(checked(message))})

    def _stat(self, message: wire.Message, fds: list[int]) -> None:
        fd = syscalls.open_resolved(syscalls.AT_FDCWD, checked(message), os.O_PATH | os.O_NOFOLLOW, 0,
                                    syscalls.RESOLVE_NO_MAGICLINKS)
        try:
            info = os.fstat(fd)
        finally:
            os.close(fd)
        wire.reply(self.channel, message, {"entry": _entry("", info)})


def checked(message: wire.Message) -> str:
    """The path a message names. Raises OSError where no file can have it."""
    path: str = message["path"]
    if "\0" in path:
        raise OSError(errno.EINVAL, "a path holds no NUL")
    if len(os.fsencode(path)) >= _PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return path


def _demand_regular(info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if info.st_dev == os.stat("/proc").st_dev:
        raise OSError(errno.EACCES, "files of /proc can be read by commands only")


def _open(path: str, flags: int) -> int:
    """Passes no magic link (/proc/PID/fd, exe, root): those lead out of the path's own file system."""
    return syscalls.open_resolved(
        syscalls.AT_FDCWD, path, flags | _SPARE, 0, syscalls.RESOLVE_NO_MAGICLINKS)


def _regular(path: str, flags: int) -> int:
    """A descriptor of a regular file that is no file of /proc: there, "self" would be PID 1, not the asker."""
    fd = _open(path, flags)
    try:
        info = os.fstat(fd)
        _demand_regular(info)
    except BaseException:
        os.close(fd)
        raise
    return fd


def replace(path: str, mode: int, source: int) -> None:
    """Put the content of the memory file ``source`` at ``path``, in one step for whoever looks; parents are made.

    It is written beside and renamed, so a full disk leaves what was there. A link at ``path`` is followed and stays.
    Owner of the file that was there is kept; a file of several names leaves the others as they are.
    """
    make_parents(path)
    directory, name, before = _landing(path)
    try:
        beside = f".woodshed-{os.urandom(6).hex()}"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600,
                     dir_fd=directory)
        try:
            try:
                _copy(source, fd)
                if before is not None and (before.st_uid or before.st_gid):
                    os.fchown(fd, before.st_uid, before.st_gid)
                os.fchmod(fd, mode)
            finally:
                os.close(fd)
            os.rename(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(beside, dir_fd=directory)
            raise
    finally:
        os.close(directory)


def _landing(path: str) -> tuple[int, str, os.stat_result | None]:
    """The directory where ``path`` leads, the name there, and the regular file of that name if there is one.

    Raises OSError for what is neither a regular file nor missing.
    """
    directory = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        for _ in range(_LINKS):
            above, _, name = path.rpartition("/")
            if name in ("", ".", ".."):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            above = above or ("/" if path.startswith("/") else ".")
            deeper = syscalls.open_resolved(directory, above, os.O_PATH | os.O_DIRECTORY, 0,
                                            syscalls.RESOLVE_NO_MAGICLINKS)
            os.close(directory)
            directory = deeper
            if os.fstat(directory).st_dev == os.stat("/proc").st_dev:
                raise OSError(errno.EACCES, "nothing is written to /proc")
            try:
                info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return directory, name, None
            if not stat.S_ISLNK(info.st_mode):
                _demand_regular(info)
                return directory, name, info
            path = os.readlink(name, dir_fd=directory)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except BaseException:
        os.close(directory)
        raise


def _copy(source: int, fd: int) -> None:
    offset = 0
    while done := os.sendfile(fd, source, offset, _CHUNK):
        offset += done


def make_parents(path: str) -> None:
    """os.makedirs without its recursion: a path may have two thousand components."""
    missing = []
    parent = os.path.dirname(path)
    while parent not in ("", "/") and not os.path.isdir(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    for directory in reversed(missing):
        try:
            os.mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None


def _entries(path: str) -> list[list[str | int | float]]:
    fd = _open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        entries: list[list[str | int | float]] = []
        room = _LISTING
        with os.scandir(fd) as found:
            for entry in found:
                if (room := room - 12 * len(entry.name) - 120) < 0:
                    raise OSError(errno.EFBIG, "the directory holds too much to be listed")
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # it went while we looked
                entries.append(_entry(entry.name, info))
        return entries
    finally:
        os.close(fd)


def _entry(name: str, info: os.stat_result) -> list[str | int | float]:
    mode = info.st_mode
    kind = "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else (
        "symlink" if stat.S_ISLNK(mode) else "other")
    return [name, kind, info.st_size, stat.S_IMODE(mode), info.st_uid, info.st_mtime]


def take_terminal(fd: int) -> None:
    """Make ``fd`` the controlling terminal of the caller's new session."""
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
