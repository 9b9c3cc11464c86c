"""What a box elsewhere changed: told by its PID 1, checked here; contents are read file by file, within bounds."""

from __future__ import annotations

import errno
import io
import json
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

from woodshed.errors import EnvironmentFault
from woodshed.interfaces import BlobSink
from woodshed.model import Change, ChangeKind, ChangeSet
from woodshed.sandbox import artefacts
from woodshed.sandbox.native.inside import frames
from woodshed.sandbox.native.link import Link, World
from woodshed.sandbox.native.transfer import Transfer

_SMALL = 1 << 20
_LOOKS = 8 << 20
"""Bytes of files that a tool of the host might run that are looked into; then the name is enough to be flagged."""
_LISTING = 512 << 20
_SPECIAL = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
_BITS = ((stat.S_ISUID, "setuid"), (stat.S_ISGID, "setgid"), (stat.S_ISVTX, "sticky"))


class _Over(Exception):
    """A declared limit is reached; its name."""


class Changes:
    """Captures and restores the changes of one box."""

    def __init__(self, world: World, link: Link, transfer: Transfer) -> None:
        self._world, self._link, self._transfer = world, link, transfer

    async def changes(self, sink: BlobSink, *, roots: Sequence[str] = ("/",)) -> ChangeSet:
        """What differs from the start below ``roots``. Call it after kill_all. Bounded by the policy's limits.

        Raises SandboxDied, StoreFault, OSError (EIO) where what the box tells is no listing.
        """
        if self._link.dead:
            raise self._link.death()
        told: list[list[Any]] = []
        await self._transfer.receive({"op": "differ"}, "/", lambda read: _read(read, told), to_the_end=True)
        capture = _Capture(self._world, self._link, self._transfer, sink)
        places = [posixpath.normpath("/" + self._world.path(root)).replace("//", "/") for root in roots] or ["/"]
        try:
            for line in sorted(told, key=lambda line: str(line[1]).split("/")):
                if _below(str(line[1]), places):
                    await capture.take(line)
        except _Over as over:
            capture.over = str(over)
            capture.refused.append(f"over {over}")
        return ChangeSet(changes=tuple(capture.changes), refused=tuple(capture.refused), over_limit=capture.over,
                         flagged=tuple(capture.flagged))

    async def restore(self, changes: ChangeSet, blobs: BlobSink) -> None:
        """Put captured changes in place. Raises EnvironmentFault, StoreFault, SandboxDied."""
        for change in changes.changes:
            _demand_plain(change)

        def feed(write: frames.Write) -> None:
            for change in changes.changes:
                head = [change.kind.value, change.path, change.mode, change.size, change.target or ""]
                write(json.dumps(head).encode() + b"\n")
                if change.kind is ChangeKind.FILE:
                    _send(blobs, change, write)
            write(b'["end","",0,0,""]\n')

        try:
            await self._transfer.send({"op": "restore"}, "/", feed)
        except OSError as error:
            raise EnvironmentFault(f"the captured changes could not be restored: {error}") from error


def _demand_plain(change: Change) -> None:
    parts = change.path.split("/")[1:]
    if not change.path.startswith("/") or not parts or any(
            part in ("", ".", "..") or "\0" in part for part in parts):
        raise EnvironmentFault(
            f"the captured changes hold the path {change.path!r}, which is not absolute and normalised")
    if change.kind is ChangeKind.FILE and change.sha256 is None:
        raise EnvironmentFault(f"the captured changes name no content for {change.path!r}")


def _send(blobs: BlobSink, change: Change, write: frames.Write) -> None:
    left = change.size
    with blobs.open(change.sha256 or "") as source:
        while left and (data := source.read(min(left, frames.CHUNK))):
            write(data)
            left -= len(data)
    if left:
        raise EnvironmentFault(f"the captured content of {change.path!r} is shorter than its change says")


def _read(read: frames.Read, told: list[list[Any]]) -> None:
    """The lines of a listing, hostile. Raises OSError (EIO, EFBIG)."""
    data, left = bytearray(), _LISTING
    while piece := read(frames.CHUNK):
        data += piece
        if (left := left - len(piece)) < 0:
            raise OSError(errno.EFBIG, "the listing of changes is too large")
    lines = bytes(data).split(b"\n")
    try:
        if json.loads(lines[-2]) != ["end"] or lines[-1]:
            raise ValueError("cut off")
        for line in lines[:-2]:
            told.append(_checked(json.loads(line)))
    except (ValueError, IndexError, TypeError) as error:
        raise OSError(errno.EIO, "what the sandbox sent is no listing of changes") from error


def _checked(line: Any) -> list[Any]:
    kinds: dict[str, tuple[type, ...]] = {
        "deleted": (str, str), "opaque": (str, str, int), "entry": (str, str, int, int, str)}
    if not isinstance(line, list) or line[0] not in kinds or tuple(map(type, line)) != kinds[line[0]]:
        raise ValueError("no entry")
    path = line[1]
    if posixpath.normpath(path) != path or path[:1] != "/" or path[:2] in ("/", "//") or "\0" in path:
        raise ValueError("no path")
    return line


def _below(path: str, places: Sequence[str]) -> bool:
    return any(place == "/" or path == place or path.startswith(place + "/") for place in places)


class _Capture:
    """Makes changes of a listing, in order."""

    def __init__(self, world: World, link: Link, transfer: Transfer, sink: BlobSink) -> None:
        self._link, self._transfer, self._sink = link, transfer, sink
        self._files_left, self._bytes_left = world.limits.files, world.limits.disk_mb << 20
        self._looks_left = _LOOKS
        self.changes: list[Change] = []
        self.refused: list[str] = []
        self.flagged: list[str] = []
        self.over: str | None = None

    async def take(self, line: list[Any]) -> None:
        """One line. Raises _Over, SandboxDied, StoreFault."""
        kind, path = line[0], line[1]
        self._files_left -= 1
        if self._files_left < 0:
            raise _Over("files")
        if kind == "deleted":
            self._emit(path, ChangeKind.DELETED)
            return
        mode = line[2]
        if kind == "opaque":
            self._note_bits(path, mode)
            self._emit(path, ChangeKind.OPAQUE, mode=mode & 0o777)
        elif stat.S_ISDIR(mode):
            self._note_bits(path, mode)
            self._emit(path, ChangeKind.DIRECTORY, mode=mode & 0o777)
        elif stat.S_ISLNK(mode):
            self._emit(path, ChangeKind.SYMLINK, mode=0o777, target=line[4])
            if (why := artefacts.link_reason(path)) is not None:
                self.flagged.append(f"{path}: {why}")
        elif stat.S_ISREG(mode):
            await self._file(path, mode, line[3])
        else:
            self.refused.append(f"{path}: {_SPECIAL.get(stat.S_IFMT(mode), 'unknown')}")

    async def _file(self, path: str, mode: int, size: int) -> None:
        self._note_bits(path, mode)
        if size > self._bytes_left:
            raise _Over("disk_mb")
        data: bytes | None = None
        try:
            if size <= _SMALL:
                data = await self._small(path, size)
                digest, size = self._sink.put(data), len(data)
            else:
                digest, size = await self._large(path, size)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self.refused.append(f"{path}: changed while it was read")
            return
        self._bytes_left -= size
        self._emit(path, ChangeKind.FILE, mode=mode & 0o777, size=size, sha256=digest)
        if rules := artefacts.rules_of(path):
            self._looks_left -= len(data or b"")
            why = artefacts.judged(rules, data if self._looks_left >= 0 else None)
            if why is not None:
                self.flagged.append(f"{path}: {why}")

    async def _small(self, path: str, size: int) -> bytes:
        _, fds = await self._link.ask({"op": "read", "path": path, "most": size}, path)
        try:
            return os.pread(fds[0], size, 0)
        finally:
            os.close(fds[0])

    async def _large(self, path: str, size: int) -> tuple[str, int]:
        """Stored as it comes: a file as large as the disk limit allows needs no memory."""
        kept: list[tuple[str, int]] = []

        def take(read: frames.Read) -> None:
            stream = frames.Frames(frames.Reader(read))
            try:
                frame = stream.next()
                if frame is None or frame[0] != "f" or frame[2]:
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                whole = min(size, frame[3])
                content = _Filled(stream.pieces(frame[3]), whole)
                kept.append((self._sink.put(cast(BinaryIO, io.BufferedReader(content, _SMALL))), whole))
            except frames.Malformed as error:
                raise OSError(errno.EIO, f"what the sandbox sent {error}", path) from None

        await self._transfer.receive({"op": "pack", "path": path}, path, take)
        return kept[0]

    def _emit(self, path: str, kind: ChangeKind, *, mode: int = 0o644, size: int = 0, sha256: str | None = None,
              target: str | None = None) -> None:
        self.changes.append(Change(path=path, kind=kind, mode=mode, size=size, sha256=sha256, target=target))

    def _note_bits(self, path: str, mode: int) -> None:
        self.refused += [f"{path}: {name}" for bit, name in _BITS if mode & bit]


class _Filled(io.RawIOBase):
    """``size`` bytes of a file that came in pieces, its holes filled."""

    def __init__(self, pieces: Iterator[tuple[int, bytes]], size: int) -> None:
        self._pieces, self._size, self._at = pieces, size, 0
        self._next: tuple[int, bytes] | None = next(pieces, None)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """The next bytes."""
        view = memoryview(buffer).cast("B")
        room = min(len(view), self._size - self._at)
        if room == 0:
            return 0
        if self._next is None or self._next[0] > self._at:
            count = room if self._next is None else min(room, self._next[0] - self._at)
            view[:count] = bytes(count)
        else:
            skip = self._at - self._next[0]
            data = self._next[1][skip:skip + room]
            count = len(data)
            view[:count] = data
            if skip + count >= len(self._next[1]):
                self._next = next(self._pieces, None)
        self._at += count
        return count
