"""An archive from anywhere as a layer.

It may come from an enemy: only directories, regular files, links and deletions are made, each without following a link,
below one new directory, within what the limits allow; whatever else it holds is an ImageFault. ``archive.py`` tells the
form.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, cast

from woodshed.errors import ImageFault
from woodshed.interfaces import BlobSink
from woodshed.model import SnapshotManifest
from woodshed.sandbox.native import trees
from woodshed.sandbox.native.archive import LITERAL, MODE, OPAQUE_NAME, WHITEOUT, XATTR, Room
from woodshed.sandbox.native.below import OPAQUE
from woodshed.sandbox.native.squash import discard

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_HEADER = 1 << 20
"""Bytes of one header that are read; a path has 4,096, and an attribute 65,536 (XATTR_SIZE_MAX)."""
_LONGEST = 4256
_IDS = 65536
_MALFORMED = (
    tarfile.TarError, ValueError, KeyError, IndexError, TypeError, RecursionError, OverflowError, EOFError,
)  # fmt: skip
_OURS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The host's trouble. Any other refusal of the system is of what the archive asks for."""


def check(manifest: SnapshotManifest, image_digest: str, digest: str, most: int) -> None:
    """Whether ``manifest`` is true to itself and to the image. Raises ImageFault."""
    if manifest.version != 1:
        raise ImageFault(f"the snapshot has version {manifest.version}, which this release does not know")
    if manifest.image_digest != image_digest:
        raise ImageFault(f"the snapshot lies upon the image {manifest.image_digest}, which is not {image_digest}")
    if manifest.digest != digest:
        raise ImageFault("the snapshot's digest is not that of its layers")
    if len(manifest.layers) > most:
        raise ImageFault(f"the snapshot has {len(manifest.layers)} layers; at most {most} are taken")
    if len(set(manifest.layers)) < len(manifest.layers):
        raise ImageFault("the snapshot names a layer twice")
    for sha256 in manifest.layers:
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise ImageFault(f"{sha256[:80]!r} is no sha256")


def unpack(sha256: str, blobs: BlobSink, target: Path, room: Room) -> bool:
    """The archive ``sha256`` as the new layer ``target``; nothing is left there on failure. Blocking.

    False where owners could not be kept: an ordinary user's boxes have one user. Raises ImageFault for contents that
    are not those, or not an archive of ours; OSError, StoreFault.
    """
    _verify(sha256, blobs, room)
    target.mkdir(mode=0o755)
    try:
        with blobs.open(sha256) as file:
            unpacker = _Unpacker(target, room)
            try:
                unpacker.all(_Guarded(file))
            finally:
                unpacker.close()
            return unpacker.exact
    except BaseException as error:
        discard(target)
        if isinstance(error, _MALFORMED) or (isinstance(error, OSError) and error.errno not in _OURS):
            raise ImageFault(f"the layer {sha256[:12]} is no archive of a snapshot: {error}") from error
        raise


def _verify(sha256: str, blobs: BlobSink, room: Room) -> None:
    """The contents are those named. First of all, and no more of them than could be unpacked."""
    total, left = hashlib.sha256(), room.bytes + (room.entries + 1) * (_HEADER // 64)
    with blobs.open(sha256) as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
            left -= len(chunk)
            if left < 0:
                raise ImageFault("the snapshot's archive is larger than the limits allow (files, disk_mb)")
    if total.hexdigest() != sha256:
        raise ImageFault(f"the layer {sha256[:12]} is damaged: its contents have another sha256")


class _Guarded(io.RawIOBase):
    """A file that hands out no more at once than a header may have: tarfile believes what a header says of its size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == 0 and offset >= self._at:  # tarfile goes forward only
            left = offset - self._at
            while left:
                data = self._file.read(min(left, _CHUNK))
                if not data:
                    break
                left -= len(data)
            self._at = offset - left
        elif whence != 0 or offset != self._at:
            raise ValueError("a header leads backwards")
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _HEADER:
            raise ValueError("a header is too large")
        data = b""
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        self._at += len(data)
        return data


class _Unpacker:
    def __init__(self, target: Path, room: Room) -> None:
        self._top, self._room = os.open(target, _DIRECTORY), room
        self._directories: dict[str, tarfile.TarInfo] = {}
        self._owns = os.geteuid() == 0
        self.exact = True

    def close(self) -> None:
        os.close(self._top)

    def all(self, file: _Guarded) -> None:
        """Every entry, then what directories are to be like."""
        with tarfile.TarFile(fileobj=cast(Any, file), mode="r", encoding="utf-8", errors="surrogateescape",
                             format=tarfile.PAX_FORMAT) as archive:
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # typeshed leaves it out
                self._place(entry, archive)
        for path, entry in reversed(self._directories.items()):
            fd = trees.open_beneath(self._top, path, _DIRECTORY)
            try:
                self._settle(entry, fd)
            finally:
                os.close(fd)

    def _place(self, entry: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        path = entry.name
        if entry.size < 0:
            raise ValueError(f"{_shown(path)} has a negative size")
        self._room.take(entry.size if entry.type == tarfile.REGTYPE else 0)
        if entry.mode & ~MODE or not (0 <= entry.uid < _IDS and 0 <= entry.gid < _IDS):
            raise ValueError(f"{_shown(path)} has a mode or an owner that no snapshot has")
        self.exact = self.exact and (self._owns or entry.uid == entry.gid == 0)
        if path == ".":
            if entry.type != tarfile.DIRTYPE or self._directories:
                raise ValueError("the top is not the first directory")
            self._directories[path] = entry
            return
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts) or len(os.fsencode(path)) > _LONGEST:
            raise ValueError(f"{_shown(path)} is no path below the top")
        parent_path = "/".join(parts[:-1]) or "."
        if parent_path not in self._directories:
            raise ValueError(f"{_shown(path)} has no directory of its own")
        parent = trees.open_beneath(self._top, parent_path, _DIRECTORY)
        try:
            self._make(entry, archive, parts[-1], parent)
        finally:
            os.close(parent)

    def _make(self, entry: tarfile.TarInfo, archive: tarfile.TarFile, name: str, parent: int) -> None:
        literal = LITERAL in entry.pax_headers
        if entry.type == tarfile.REGTYPE and name.startswith(WHITEOUT) and not literal:
            _mark(name, parent, entry)
        elif entry.type == tarfile.DIRTYPE:
            os.mkdir(name, 0o700, dir_fd=parent)
            self._directories[entry.name] = entry
        elif entry.type == tarfile.SYMTYPE:
            os.symlink(entry.linkname, name, dir_fd=parent)
            if self._owns:
                os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
            os.utime(name, ns=_times(entry), dir_fd=parent, follow_symlinks=False)
        elif entry.type == tarfile.LNKTYPE:
            self._link(entry, name, parent)
        elif entry.type == tarfile.REGTYPE:
            fd = os.open(name, _NEW, 0o600, dir_fd=parent)
            try:
                _fill(fd, entry, archive)
                self._settle(entry, fd)
            finally:
                os.close(fd)
        else:
            raise ValueError(f"{_shown(entry.name)} is of the kind {entry.type!r}, which no snapshot has")

    def _link(self, entry: tarfile.TarInfo, name: str, parent: int) -> None:
        """A second name of a regular file of this layer, itself and not what a link leads to."""
        directory, _, first = entry.linkname.rpartition("/")
        if (directory or ".") not in self._directories or first in ("", ".", ".."):
            raise ValueError(f"{_shown(entry.name)} is a link to what is not there")
        source = trees.open_beneath(self._top, directory or ".", _DIRECTORY)
        try:
            if not stat.S_ISREG(os.stat(first, dir_fd=source, follow_symlinks=False).st_mode):
                raise ValueError(f"{_shown(entry.name)} is a link to what is no file")
            os.link(first, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise ValueError(f"{_shown(entry.name)} is a link to what is not there") from None
        finally:
            os.close(source)

    def _settle(self, entry: tarfile.TarInfo, fd: int) -> None:
        if self._owns:
            os.fchown(fd, entry.uid, entry.gid)
        for key, value in entry.pax_headers.items():
            name = key.removeprefix(XATTR)
            if name != key:
                if not name.startswith("user.") or name.startswith("user.overlay."):
                    raise ValueError(f"{_shown(entry.name)} has the attribute {_shown(name)}, which no box can set")
                os.setxattr(fd, name, value.encode("utf-8", "surrogateescape"))
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=_times(entry))


def _mark(name: str, parent: int, entry: tarfile.TarInfo) -> None:
    if entry.size:
        raise ValueError(f"{_shown(entry.name)} marks a deletion, yet has contents")
    if name == OPAQUE_NAME:
        os.setxattr(parent, OPAQUE, b"y")
        return
    hidden = name.removeprefix(WHITEOUT)
    if hidden in ("", ".", ".."):
        raise ValueError(f"{_shown(entry.name)} marks the deletion of nothing")
    os.mknod(hidden, stat.S_IFCHR, 0, dir_fd=parent)


def _fill(fd: int, entry: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    source, left = archive.fileobj, entry.size
    if source is None or entry.sparse is not None:
        raise ValueError(f"{_shown(entry.name)} is packed in a way that no snapshot is")
    source.seek(entry.offset_data)
    while left:
        data = source.read(min(left, _HEADER))
        if not data:
            raise ValueError("it is cut short")
        left -= len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view):]


def _times(entry: tarfile.TarInfo) -> tuple[int, int]:
    seconds, _, fraction = str(entry.pax_headers.get("mtime", int(entry.mtime))).partition(".")
    if not (seconds.lstrip("-").isdecimal() and len(seconds) < 18) or (fraction and not fraction.isdecimal()):
        raise ValueError(f"{_shown(entry.name)} has no time that can be")
    time_ns = int(seconds) * 10**9 + int(f"{fraction:0<9}"[:9])
    return time_ns, time_ns


def _shown(text: str) -> str:
    return repr(text[:80])
