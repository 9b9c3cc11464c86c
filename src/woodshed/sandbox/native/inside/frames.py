"""Trees on their way through a pipe: a private framing, so that neither side ever parses an archive of the other.

::

    frame  kind (1: d f l e), mode (2), bytes of the path (2), size (8), then the path
    d      a directory; the path is empty for the tree's top
    l      a link; its target follows, ``size`` bytes
    f      a file of ``size`` bytes: pieces follow, each an offset (8), a length (4) and as many bytes; a length of 0
           ends them. What no piece covers is a hole.
    e      the tree is whole. A stream without it was cut off.

Both sides use this module: the engine, and the helpers of a box.
"""
# ruff: noqa: PTH208
# (Loaded in the box's first process, which stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Generator, Iterator

from woodshed.sandbox.native.inside import syscalls

LONGEST = 4000
"""Bytes of a path below the top; the kernel takes 4,095 (PATH_MAX)."""
ENTRIES = 1_000_000
"""Of one tree; more is refused, so that no flood of empty files fills a disk or a list."""
CHUNK = 1 << 18
REFUSED = 0
"""Instead of the errno of a failed helper: what was sent in may not be unpacked."""

_HEAD, _PIECE = struct.Struct("<cHHQ"), struct.Struct("<QI")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_SMALL = 1 << 16
_NAME_MAX = 255  # include/uapi/linux/limits.h

Write = Callable[[bytes], None]
Read = Callable[[int], bytes]
Refuse = Callable[[str, str], None]
"""Told of an entry that cannot travel, and why; raises, or leaves it out."""
Entry = tuple[str, os.stat_result, int, str]
"""Path below the top, what stands there, a descriptor of a file (else -1), the target of a link."""


class Malformed(Exception):
    """The stream is not one of ours, or was cut off."""


# -- looking -----------------------------------------------------------------------------------------------------------


def open_beneath(top: int, path: str, flags: int) -> int:
    """Open ``path`` below the directory ``top`` without passing a single link. Raises OSError (ELOOP for a link)."""
    return syscalls.open_resolved(top, path, flags, 0, _BENEATH)


def walk(path: str, refuse: Refuse, *, without: int = -1) -> Generator[Entry, None, None]:
    """The tree at ``path``, parents first, names in order; the file's descriptor is closed when the next is asked for.

    No link is followed, that of ``path`` itself included. What is no file, directory or link is ``refuse``'s. File
    systems of the device number ``without`` are left out. Raises OSError.
    """
    top = syscalls.open_resolved(syscalls.AT_FDCWD, path, os.O_PATH | os.O_NOFOLLOW, 0, syscalls.RESOLVE_NO_MAGICLINKS)
    try:
        info = os.fstat(top)
        if info.st_dev == without:
            raise OSError(errno.EACCES, "files of /proc can be read by commands only")
        if stat.S_ISDIR(info.st_mode):
            yield "", info, -1, ""
            yield from _below(top, refuse, without)
        elif stat.S_ISLNK(info.st_mode):
            yield "", info, -1, os.readlink("", dir_fd=top)
        elif stat.S_ISREG(info.st_mode):
            yield from _file(syscalls.AT_FDCWD, path, "", refuse, syscalls.RESOLVE_NO_MAGICLINKS)
        else:
            refuse("", "a device, socket or pipe")
    finally:
        os.close(top)


def _below(top: int, refuse: Refuse, without: int) -> Iterator[Entry]:
    todo, left = [""], ENTRIES
    while todo:
        above = todo.pop()
        try:
            directory = open_beneath(top, above or ".", _DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it went, or became something else, while we looked
        except OSError as error:
            if error.errno == errno.ELOOP:
                continue
            raise
        try:
            found = []
            for name in sorted(os.listdir(directory)):
                if (left := left - 1) < 0:
                    raise OSError(errno.EFBIG, f"more than {ENTRIES} entries")
                path = f"{above}/{name}" if above else name
                if len(os.fsencode(path)) > LONGEST:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
                try:
                    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if info.st_dev == without:
                        continue
                    if stat.S_ISDIR(info.st_mode):
                        found.append(path)
                        yield path, info, -1, ""
                    elif stat.S_ISLNK(info.st_mode):
                        yield path, info, -1, os.readlink(name, dir_fd=directory)
                    elif stat.S_ISREG(info.st_mode):
                        yield from _file(directory, name, path, refuse, _BENEATH)
                    else:
                        refuse(path, "a device, socket or pipe")
                except FileNotFoundError:
                    continue  # it went while we looked
            todo.extend(reversed(found))
        finally:
            os.close(directory)


def _file(directory: int, name: str, path: str, refuse: Refuse, resolve: int) -> Iterator[Entry]:
    try:
        fd = syscalls.open_resolved(directory, name, _FILE, 0, resolve)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        return  # it became a link or a socket while we looked
    try:
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode):
            yield path, info, fd, ""
        else:
            refuse(path, "a device, socket or pipe")
    finally:
        os.close(fd)


# -- sending -----------------------------------------------------------------------------------------------------------


def send(entries: Iterator[Entry], write: Write, *, whole: bool = False) -> None:
    """Write the frames of ``entries``. With ``whole``: raises OSError (EIO) for a file that shrinks meanwhile."""
    for path, info, fd, target in entries:
        name, mode = os.fsencode(path), stat.S_IMODE(info.st_mode) & 0o777
        if fd >= 0:
            size = info.st_size
            head = _HEAD.pack(b"f", mode, len(name), size) + name
            if size <= _SMALL:
                data = _exactly(fd, size, whole)
                piece = _PIECE.pack(0, len(data)) + data if data else b""
                write(head + piece + _PIECE.pack(0, 0))
                continue
            write(head)
            for offset, data in pieces(fd, size, whole=whole):
                write(_PIECE.pack(offset, len(data)))
                write(data)
            write(_PIECE.pack(0, 0))
        elif stat.S_ISLNK(info.st_mode):
            link = os.fsencode(target)
            write(_HEAD.pack(b"l", mode, len(name), len(link)) + name + link)
        else:
            write(_HEAD.pack(b"d", mode, len(name), 0) + name)
    write(_HEAD.pack(b"e", 0, 0, 0))


def _exactly(fd: int, size: int, whole: bool) -> bytes:
    data = os.read(fd, size) if size else b""
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    if whole and len(data) < size:
        raise OSError(errno.EIO, "changed while it was read")
    return data


def pieces(fd: int, size: int, *, whole: bool = False) -> Iterator[tuple[int, bytes]]:
    """The data of a file's first ``size`` bytes with their offsets; holes are skipped where the file system tells."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
            end = min(size, os.lseek(fd, start, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                if whole and os.fstat(fd).st_size < size:
                    raise OSError(errno.EIO, "changed while it was read") from None
                return
            start, end = offset, size
        while start < end:
            data = os.pread(fd, min(CHUNK, end - start), start)
            if not data:
                if whole:
                    raise OSError(errno.EIO, "changed while it was read")
                return
            yield start, data
            start += len(data)
        offset = end


# -- receiving ---------------------------------------------------------------------------------------------------------


class Reader:
    """Bytes of a stream, buffered. ``read(n)`` gives at most n, and none at its end."""

    def __init__(self, read: Read) -> None:
        self._read, self._held, self._at = read, b"", 0

    def exactly(self, size: int) -> bytes:
        """The next ``size`` bytes, a few. Raises Malformed where the stream ends before."""
        end = self._at + size
        while end > len(self._held):
            more = self._read(CHUNK)
            if not more:
                raise Malformed("ends early")
            self._held = self._held[self._at:] + more
            self._at, end = 0, size
        data = self._held[self._at:end]
        self._at = end
        return data

    def some(self, limit: int) -> bytes:
        """Up to ``limit`` bytes of the next. Raises Malformed at the end of the stream."""
        if self._at == len(self._held):
            self._held, self._at = self._read(CHUNK), 0
            if not self._held:
                raise Malformed("ends early")
        data = self._held[self._at:self._at + limit]
        self._at += len(data)
        return data


class Frames:
    """The frames of a stream, which is hostile: everything is checked before it is handed out."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def next(self) -> tuple[str, int, str, int, str] | None:
        """Kind (d, f, l), mode, path, size of a file, target of a link; None at the end of a whole tree.

        After a file its :meth:`pieces` must be read. Raises Malformed.
        """
        kind, mode, length, size = _HEAD.unpack(self._reader.exactly(_HEAD.size))
        if kind == b"e":
            return None
        if kind not in (b"d", b"f", b"l") or mode > 0o777 or size >= 1 << 63:
            raise Malformed("is no frame")
        path = self._reader.exactly(length)
        if path:
            check(path)
        target = b""
        if kind == b"l":
            if size > LONGEST + 95:  # what the kernel takes as a link's target
                raise Malformed("holds a link that is too long")
            target = self._reader.exactly(size)
            if not target or b"\0" in target:
                raise Malformed("holds a link to nothing")
        return kind.decode(), mode, os.fsdecode(path), size, os.fsdecode(target)

    def pieces(self, size: int) -> Iterator[tuple[int, bytes]]:
        """The data of a file of ``size`` bytes. Raises Malformed for data beyond it."""
        while True:
            offset, length = _PIECE.unpack(self._reader.exactly(_PIECE.size))
            if length == 0:
                return
            if offset + length > size:
                raise Malformed("holds data beyond a file's end")
            while length:
                data = self._reader.some(length)
                yield offset, data
                offset, length = offset + len(data), length - len(data)


def check(path: bytes) -> None:
    """Raises Malformed for what is no relative, normalised path within bounds."""
    if len(path) > LONGEST or b"\0" in path:
        raise Malformed("holds a path that is none")
    for part in path.split(b"/"):
        if part in (b"", b".", b"..") or len(part) > _NAME_MAX:
            raise Malformed("holds a path that is none")
