"""A layer as one tar archive: the same bytes for the same files.

The form is that of OCI image layers (image-spec, layer.md): POSIX pax headers, a deletion of ``x`` as an empty file
``.wh.x``, a directory that hides lower ones by ``.wh..wh..opq`` in it. Paths are sorted, parents first; owners are as
the box sees them; setuid and setgid bits, pipes and sockets are left out. An ordinary file whose name begins with
``.wh.`` carries the header ``WOODSHED.literal``. Times are kept to the nanosecond. ``unpack.py`` goes the other way.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from woodshed.errors import ImageFault
from woodshed.interfaces import BlobSink
from woodshed.model import Limits
from woodshed.sandbox.native import trees
from woodshed.sandbox.native.below import is_opaque
from woodshed.sandbox.native.copies import attributes, open_file
from woodshed.sandbox.native.layers import Layer

WHITEOUT, OPAQUE_NAME = ".wh.", ".wh..wh..opq"
LITERAL, XATTR = "WOODSHED.literal", "SCHILY.xattr."
MODE = 0o1777
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_LONGEST = 4000
_END = b"\0" * 1024


@dataclass(frozen=True, slots=True)
class Packed:
    """What an archive came to."""

    sha256: str
    size: int


@dataclass(slots=True)
class Room:
    """What may still be unpacked of one snapshot: entries, and bytes of contents."""

    entries: int
    bytes: int

    @classmethod
    def of(cls, limits: Limits) -> Room:
        """All of what ``limits`` allow."""
        return cls(limits.files, limits.disk_mb << 20)

    def take(self, size: int) -> None:
        """One entry of ``size`` bytes. Raises ImageFault where there is no room left for it."""
        self.entries -= 1
        self.bytes -= size
        if self.entries < 0 or self.bytes < 0:
            raise ImageFault("the snapshot holds more than the limits allow (files, disk_mb)")


def pack(layer: Layer, limits: Limits, sink: BlobSink) -> Packed:
    """The archive of ``layer``, in ``sink``. Blocking. Raises OSError (EFBIG beyond ``limits``), StoreFault."""
    stream = _Stream(_chunks(layer.path, Room.of(limits)))
    sha256 = sink.put(cast(BinaryIO, io.BufferedReader(stream, _CHUNK)))
    layer.digest = layer.digest or sha256
    return Packed(sha256, stream.size)


def digest(layer: Layer) -> str:
    """The sha256 of the layer's archive. Blocking, the first time."""
    if layer.digest is None:
        total = hashlib.sha256()
        for chunk in _chunks(layer.path, None):
            total.update(chunk)
        layer.digest = total.hexdigest()
    return layer.digest


class _Stream(io.RawIOBase):
    """Chunks as a file to read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest, self.size = chunks, memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self.size += count
        return count


def _chunks(layer: Path, room: Room | None) -> Iterator[bytes]:
    packer = _Packer(layer, room)
    try:
        yield from packer.directory(".")
        yield _END
    finally:
        packer.close()


class _Packer:
    """Walks a layer in the order of its names and yields the archive."""

    def __init__(self, layer: Path, room: Room | None) -> None:
        self._top, self._room = os.open(layer, _DIRECTORY), room
        self._first: dict[int, str] = {}
        self._relock: list[tuple[str, int]] = []

    def close(self) -> None:
        for path, mode in reversed(self._relock):
            with suppress(OSError):
                self._chmod(path, mode)
        os.close(self._top)

    def directory(self, path: str) -> Iterator[bytes]:
        """The directory at ``path`` with all below it; a stack of our own, for a tree may be thousands deep."""
        todo = [(path, os.stat(path, dir_fd=self._top, follow_symlinks=False))]
        while todo:
            path, info = todo.pop()
            if not stat.S_ISDIR(info.st_mode):
                yield from self._entry(path, info)
                continue
            fd = self._enter(path)
            try:
                yield from self._directory_header(path, info, fd)
                prefix = "" if path == "." else f"{path}/"
                below = [(prefix + name, os.stat(name, dir_fd=fd, follow_symlinks=False))
                         for name in sorted(os.listdir(fd), key=os.fsencode)]  # noqa: PTH208 (a descriptor)
            finally:
                os.close(fd)
            todo.extend(reversed(below))

    def _directory_header(self, path: str, info: os.stat_result, fd: int) -> Iterator[bytes]:
        if len(os.fsencode(path)) > _LONGEST:
            raise OSError(errno.ENAMETOOLONG, "a directory lies too deep to be packed", path[:80])
        yield self._header(path, info, tarfile.DIRTYPE, attributes_of=fd)
        if is_opaque(fd):
            yield self._mark(OPAQUE_NAME if path == "." else f"{path}/{OPAQUE_NAME}")

    def _entry(self, path: str, info: os.stat_result) -> Iterator[bytes]:
        parent, _, name = path.rpartition("/")
        if stat.S_ISREG(info.st_mode):
            yield from self._file(path, parent, name, info)
        elif stat.S_ISLNK(info.st_mode):
            yield self._header(path, info, tarfile.SYMTYPE, target=os.readlink(path, dir_fd=self._top))
        else:
            # A deletion; or a pipe or socket, which is no part of an archive but still hides what lies below it.
            yield self._mark(f"{parent}/{WHITEOUT}{name}" if parent else WHITEOUT + name)

    def _file(self, path: str, parent: str, name: str, info: os.stat_result) -> Iterator[bytes]:
        if info.st_nlink > 1:
            first = self._first.setdefault(info.st_ino, path)
            if first is not path:
                yield self._header(path, info, tarfile.LNKTYPE, target=first)
                return
        directory = self._enter(parent or ".")
        try:
            fd = open_file(name, directory)
        finally:
            os.close(directory)
        try:
            yield self._header(path, info, tarfile.REGTYPE, attributes_of=fd)
            left = info.st_size
            while left:
                data = os.read(fd, min(left, _CHUNK))
                if not data:
                    raise OSError(errno.EIO, "a file of a layer became shorter", path)
                left -= len(data)
                yield data
            yield b"\0" * (-info.st_size % tarfile.BLOCKSIZE)
        finally:
            os.close(fd)

    def _mark(self, path: str) -> bytes:
        if self._room:
            self._take(0)
        return _plain(tarfile.TarInfo(path)).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")

    def _header(
        self, path: str, info: os.stat_result, kind: bytes, *, target: str = "", attributes_of: int | None = None
    ) -> bytes:
        if self._room:
            self._take(info.st_size if kind == tarfile.REGTYPE else 0)
        entry = _plain(tarfile.TarInfo(path))
        entry.type, entry.linkname, entry.mode = kind, target, info.st_mode & MODE
        entry.size = info.st_size if kind == tarfile.REGTYPE else 0
        if os.geteuid() == 0:  # an ordinary user's boxes have one user, 0, who is that user on the disk
            entry.uid, entry.gid = info.st_uid, info.st_gid
        entry.mtime, nanoseconds = divmod(info.st_mtime_ns, 10**9)
        more = {"mtime": f"{entry.mtime}.{nanoseconds:09}"} if nanoseconds else {}
        if path.rpartition("/")[2].startswith(WHITEOUT):
            more[LITERAL] = "1"
        for name in attributes(attributes_of) if attributes_of is not None else ():
            value = os.getxattr(cast(int, attributes_of), name)
            more[XATTR + name] = value.decode("utf-8", "surrogateescape")
        entry.pax_headers = more
        return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")

    def _take(self, size: int) -> None:
        room = cast(Room, self._room)
        try:
            room.take(size)
        except ImageFault as fault:
            raise OSError(errno.EFBIG, str(fault)) from fault

    def _enter(self, path: str) -> int:
        try:
            return trees.open_beneath(self._top, path, _DIRECTORY)
        except PermissionError:
            if os.geteuid() == 0 or path == ".":
                raise
        self._relock.append((path, self._chmod(path)))
        return trees.open_beneath(self._top, path, _DIRECTORY)

    def _chmod(self, path: str, mode: int | None = None) -> int:
        """Set the mode of a directory, by default so that its owner may enter; what it was."""
        fd = trees.open_beneath(self._top, path, os.O_PATH | os.O_NOFOLLOW)
        try:
            before = stat.S_IMODE(os.fstat(fd).st_mode)
            Path(f"/proc/self/fd/{fd}").chmod(before | 0o700 if mode is None else mode)
            return before
        finally:
            os.close(fd)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0
    return entry
