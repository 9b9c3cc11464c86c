"""Files of a box, opened by its own PID 1: every path is resolved inside, and only regular files are handed out."""
# ruff: noqa: PTH101, PTH102, PTH108, PTH112, PTH116, PTH120, PTH211
# (This process stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import termios

from woodshed.sandbox.native.inside import syscalls, wire

_SPARE = os.O_NONBLOCK | os.O_NOCTTY  # a FIFO or a terminal must neither hang nor adopt us
_CHUNK = 1 << 20
_LISTING = wire.LARGEST // 2
"""Bytes of a listing, as JSON at its longest (12 a character, and 80 for the rest): more would be no message."""
_PATH_MAX = 4096  # include/uapi/linux/limits.h


class Files:
    """The operations on files."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.operations: dict[str, wire.Operation] = {"read": self._read, "write": self._write, "list": self._list}

    def _read(self, message: wire.Message, fds: list[int]) -> None:
        wire.reply(self.channel, message, {"ok": 1}, _regular(_path(message), os.O_RDONLY))

    def _write(self, message: wire.Message, fds: list[int]) -> None:
        wire.reply(self.channel, message, {"ok": 1}, _writable(_path(message), message["mode"]))

    def _list(self, message: wire.Message, fds: list[int]) -> None:
        wire.reply(self.channel, message, {"entries": _entries(_path(message))})


def _path(message: wire.Message) -> str:
    """The path a message names. Raises OSError where no file can have it."""
    path: str = message["path"]
    if "\0" in path:
        raise OSError(errno.EINVAL, "a path holds no NUL")
    if len(os.fsencode(path)) >= _PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return path


def _open(path: str, flags: int, mode: int = 0) -> int:
    """Passes no magic link (/proc/PID/fd, exe, root): those lead out of the path's own file system."""
    return syscalls.open_resolved(
        syscalls.AT_FDCWD, path, flags | _SPARE, mode, syscalls.RESOLVE_NO_MAGICLINKS)


def _regular(path: str, flags: int, mode: int = 0) -> int:
    """A descriptor of a regular file that is no file of /proc: there, "self" would be PID 1, not the asker."""
    fd = _open(path, flags, mode)
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if info.st_dev == os.stat("/proc").st_dev:
            raise OSError(errno.EACCES, "files of /proc can be read by commands only")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _writable(path: str, mode: int) -> int:
    make_parents(path)
    fd = _regular(path, os.O_WRONLY | os.O_CREAT, mode)
    try:
        os.ftruncate(fd, 0)
        os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


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


def _entries(path: str) -> list[list[str | int]]:
    fd = _open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        entries: list[list[str | int]] = []
        room = _LISTING
        with os.scandir(fd) as found:
            for entry in found:
                if (room := room - 12 * len(entry.name) - 80) < 0:
                    raise OSError(errno.EFBIG, "the directory holds too much to be listed")
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # it went while we looked
                entries.append([entry.name, _kind(info.st_mode), info.st_size, stat.S_IMODE(info.st_mode)])
        return entries
    finally:
        os.close(fd)


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def extract(message: wire.Message, fds: list[int]) -> int:
    """Unpack an upload: ``fds`` are a memfd of the contents, one after the other, and a pipe for the reason of failure.

    The index (path, kind, mode, size, link target) lies before the contents. Links in the way are replaced, never
    followed, but for those in the path to the target itself.
    """
    contents, reason = fds
    try:
        index = json.loads(os.pread(contents, message["index_bytes"], 0))
        offset = message["index_bytes"]
        make_parents(message["target"].rstrip("/"))
        modes: list[tuple[str, int]] = []
        for path, kind, mode, size, target in index:
            where = message["target"] + (f"/{path}" if path else "")
            _place(where, kind, mode, size, target, contents, offset, top=not path)
            offset += size
            if kind == "directory":
                modes.append((where, mode))
        for where, mode in reversed(modes):
            os.chmod(where, mode)
    except Exception as error:
        number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
        os.write(reason, json.dumps([number, getattr(error, "strerror", None) or str(error)]).encode())
        return 1
    return 0


def _place(
    where: str, kind: str, mode: int, size: int, target: str, contents: int, offset: int, *, top: bool
) -> None:
    if kind == "directory":
        if top and os.path.isdir(where):
            return
        _clear(where, but_directory=True)
        if not os.path.lexists(where):
            os.mkdir(where, 0o700)
        return
    _clear(where)
    if kind == "symlink":
        os.symlink(target, where)
        return
    fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while size:
            part = os.pread(contents, min(size, _CHUNK), offset)
            if not part:
                raise OSError(errno.EIO, "the upload is cut short")
            offset, size = offset + len(part), size - len(part)
            while part:
                part = part[os.write(fd, part):]
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _clear(where: str, *, but_directory: bool = False) -> None:
    try:
        mode = os.lstat(where).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        if not but_directory:
            raise IsADirectoryError(errno.EISDIR, f"{where}: {os.strerror(errno.EISDIR)}")
        return
    os.unlink(where)


def take_terminal(fd: int) -> None:
    """Make ``fd`` the controlling terminal of the caller's new session."""
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
