"""What a box changed, read from its upper directory on the host: nothing in it is followed, run or trusted.

The walk opens each directory below the upper one in a single ``openat2`` that passes no link, and what is in it by its
bare name; only regular files are opened, without blocking. Sizes are counted before contents are read, so a sparse file
costs nothing.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from woodshed.interfaces import BlobSink
from woodshed.model import Change, ChangeKind, ChangeSet, Limits
from woodshed.sandbox import artefacts
from woodshed.sandbox.native import trees
from woodshed.sandbox.native.below import Below, Parts, is_opaque, is_whiteout

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST = 4000
"""Bytes of a path; the kernel takes 4,095 (PATH_MAX). What is deeper is refused."""
_WHOLE = 1 << 20
_LOOKS = 8 << 20
"""Bytes of files that a tool of the host might run that are looked into; then the name is enough to be flagged."""
_SPECIAL = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
_BITS = ((stat.S_ISUID, "setuid"), (stat.S_ISGID, "setgid"), (stat.S_ISVTX, "sticky"))


def capture(
    upper: Path, lowers: Sequence[Path], roots: Sequence[str], limits: Limits, sink: BlobSink
) -> ChangeSet:
    """The changes below ``roots`` (absolute paths in the box), contents in ``sink``. Blocking.

    Raises StoreFault from the sink, OSError where the host's disk fails.
    """
    walk = _Walk(upper, Below(lowers), limits, sink)
    try:
        for root in _outermost(roots):
            walk.root(root)
    except _Over as over:
        walk.over = str(over)
        walk.refused.append(f"over {over}")
    finally:
        walk.close()
    return ChangeSet(changes=tuple(walk.changes), refused=tuple(walk.refused), over_limit=walk.over,
                     flagged=tuple(walk.flagged))


def _outermost(roots: Sequence[str]) -> list[Parts]:
    """Roots in order, without those that lie in another."""
    kept: list[Parts] = []
    for parts in sorted({split(root) for root in roots}):
        if not any(parts[:len(other)] == other for other in kept):
            kept.append(parts)
    return kept


def split(path: str) -> Parts:
    """The components of an absolute path, normalised without looking at any file."""
    return tuple(part for part in posixpath.normpath("/" + path).split("/") if part)


class _Over(Exception):
    """A declared limit is reached; its name."""


class _Walk:
    def __init__(self, upper: Path, below: Below, limits: Limits, sink: BlobSink) -> None:
        self._top = os.open(upper, _DIRECTORY)
        self._below, self._sink = below, sink
        self._files_left, self._bytes_left = limits.files, limits.disk_mb << 20
        self._relock: list[tuple[str, int]] = []
        self._owner = os.geteuid() != 0  # whom modes bind
        self.changes: list[Change] = []
        self.refused: list[str] = []
        self.flagged: list[str] = []
        self._looks_left = _LOOKS
        self.over: str | None = None

    def close(self) -> None:
        """Give directories and files their modes back where we had to change them to look inside."""
        for path, mode in reversed(self._relock):
            with suppress(OSError):
                fd = trees.open_beneath(self._top, path, os.O_PATH | os.O_NOFOLLOW)
                try:
                    Path(f"/proc/self/fd/{fd}").chmod(mode)
                finally:
                    os.close(fd)
        os.close(self._top)

    def root(self, root: Parts) -> None:
        """Emit what changed at and below ``root``, which may lie below directories the box replaced."""
        if not root:
            self._tree(root, hidden=False)
            return
        hidden = False
        for depth in range(1, len(root)):
            info = self._stat("/".join(root[:depth]), self._top)
            if info is None or not stat.S_ISDIR(info.st_mode):
                if info is not None and not is_whiteout(info):
                    self.refused.append(f"{_name(root)}: {_name(root[:depth])} is no directory")
                if (hidden or info is not None) and self._below.find(root):
                    self._emit(root, ChangeKind.DELETED)
                return
            hidden = hidden or self._hides(root[:depth], info)
        parent = trees.open_beneath(self._top, "/".join(root[:-1]) or ".", _DIRECTORY)
        try:
            info = self._stat(root[-1], parent)
            if info is None:
                if hidden and self._below.find(root):
                    self._emit(root, ChangeKind.DELETED)
                return
            hides = self._entry(root, info, parent, hidden=hidden, is_root=True)
        finally:
            os.close(parent)
        if hides is not None:
            self._tree(root, hidden=hidden or hides)

    def _tree(self, root: Parts, *, hidden: bool) -> None:
        todo = [(root, hidden)]
        while todo:
            directory, hidden = todo.pop()
            # The one look that could pass a link; whatever is in the directory is then reached by its bare name.
            fd = self._open_directory(directory)
            try:
                found = []
                for name in sorted(os.listdir(fd)):  # noqa: PTH208 (a descriptor)
                    parts = (*directory, name)
                    if self._too_deep(parts):
                        self.refused.append(f"{_name(directory)}: too deep")
                        break
                    info = self._stat(name, fd)
                    if info is None:
                        continue
                    hides = self._entry(parts, info, fd, hidden=hidden)
                    if hides is not None:
                        found.append((parts, hidden or hides))
            finally:
                os.close(fd)
            todo.extend(reversed(found))

    @staticmethod
    def _too_deep(parts: Parts) -> bool:
        length = sum(map(len, parts)) + len(parts) - 1
        return length > _LONGEST // 4 and len(os.fsencode("/".join(parts))) > _LONGEST  # a character has four bytes

    def _entry(
        self, parts: Parts, info: os.stat_result, parent: int, *, hidden: bool, is_root: bool = False
    ) -> bool | None:
        """Emit one entry; for a directory, to be walked: whether it hides what lies below it."""
        self._files_left -= 1
        if self._files_left < 0:
            raise _Over("files")
        mode = info.st_mode
        if stat.S_ISREG(mode):
            self._file(parts, info, parent)
            return None
        if stat.S_ISLNK(mode):
            self._emit(parts, ChangeKind.SYMLINK, mode=0o777, target=os.readlink(parts[-1], dir_fd=parent))
            if (why := artefacts.link_reason(_name(parts))) is not None:
                self.flagged.append(f"{_name(parts)}: {why}")
            return None
        lower = None if hidden and not is_root else self._below.find(parts)
        if stat.S_ISDIR(mode):
            return self._directory(parts, info, lower, parent, hidden=hidden)
        if not is_whiteout(info):
            self.refused.append(f"{_name(parts)}: {_SPECIAL.get(stat.S_IFMT(mode), 'unknown')}")
        if lower is not None:
            self._emit(parts, ChangeKind.DELETED)
        return None

    def _directory(
        self, parts: Parts, info: os.stat_result, lower: os.stat_result | None, parent: int, *, hidden: bool
    ) -> bool:
        """Emit a directory where it differs; whether it hides what lies below it."""
        mode = info.st_mode
        if lower is None or not stat.S_ISDIR(lower.st_mode):
            self._note_bits(parts, mode)
            self._emit(parts, ChangeKind.DIRECTORY, mode=mode & 0o777)
            return True
        opaque = self._opaque(parts, info, parent)
        if hidden or opaque:
            self._note_bits(parts, mode)
            self._emit(parts, ChangeKind.OPAQUE, mode=mode & 0o777)
        elif (mode ^ lower.st_mode) & 0o777:
            # Otherwise it is here only because something below it changed.
            self._emit(parts, ChangeKind.DIRECTORY, mode=mode & 0o777)
        return opaque

    def _file(self, parts: Parts, info: os.stat_result, parent: int) -> None:
        self._note_bits(parts, info.st_mode)
        if info.st_size > self._bytes_left:
            raise _Over("disk_mb")
        fd = self._unlocked(parts, info, parent, _FILE)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                self.refused.append(f"{_name(parts)}: changed while it was read")
                return
            data = _read(fd, info.st_size) if info.st_size <= _WHOLE else None
            size, sha256 = self._large(fd, info.st_size) if data is None else (len(data), self._sink.put(data))
        finally:
            os.close(fd)
        self._bytes_left -= size
        self._emit(parts, ChangeKind.FILE, mode=info.st_mode & 0o777, size=size, sha256=sha256)
        self._flag(self.changes[-1].path, data)

    def _flag(self, path: str, data: bytes | None) -> None:
        rules = artefacts.rules_of(path)
        if not rules:
            return
        if data is not None:
            self._looks_left -= len(data)
        why = artefacts.judged(rules, data if self._looks_left >= 0 else None)
        if why is not None:
            self.flagged.append(f"{path}: {why}")

    def _large(self, fd: int, size: int) -> tuple[int, str]:
        """At most ``size`` bytes, should the file grow meanwhile."""
        bounded = _Bounded(fd, size)
        digest = self._sink.put(cast(BinaryIO, io.BufferedReader(bounded, _WHOLE)))
        return bounded.read_bytes, digest

    def _emit(self, parts: Parts, kind: ChangeKind, *, mode: int = 0o644, size: int = 0, sha256: str | None = None,
              target: str | None = None) -> None:
        self.changes.append(Change(path=_name(parts), kind=kind, mode=mode, size=size, sha256=sha256, target=target))

    def _note_bits(self, parts: Parts, mode: int) -> None:
        if not mode & 0o7000:
            return
        for bit, name in _BITS:
            if mode & bit:
                self.refused.append(f"{_name(parts)}: {name}")

    # -- looking, without following ------------------------------------------------------------------------------------

    @staticmethod
    def _stat(name: str, directory: int) -> os.stat_result | None:
        """Of an entry of a directory of ours; None where it is missing."""
        try:
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return None

    def _open_directory(self, parts: Parts) -> int:
        if not parts or not self._owner:
            return trees.open_beneath(self._top, "/".join(parts) or ".", _DIRECTORY)
        parent = trees.open_beneath(self._top, "/".join(parts[:-1]) or ".", _DIRECTORY)
        try:
            info = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            return self._unlocked(parts, info, parent, _DIRECTORY)
        finally:
            os.close(parent)

    def _unlocked(self, parts: Parts, info: os.stat_result, parent: int, flags: int) -> int:
        """Open; where the box's mode shuts out an ordinary user, the owner, the mode is changed until the end."""
        name, mode = parts[-1], info.st_mode
        needed = 0o500 if stat.S_ISDIR(mode) else 0o400
        if self._owner and mode & needed != needed:
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                Path(f"/proc/self/fd/{fd}").chmod(mode & 0o7777 | 0o700)
            finally:
                os.close(fd)
            self._relock.append(("/".join(parts), mode & 0o7777))
        return os.open(name, flags, dir_fd=parent)

    def _opaque(self, parts: Parts, info: os.stat_result, parent: int) -> bool:
        fd = self._unlocked(parts, info, parent, _DIRECTORY)
        try:
            return is_opaque(fd)
        finally:
            os.close(fd)

    def _hides(self, parts: Parts, info: os.stat_result) -> bool:
        """Whether the directory at ``parts`` of the upper, on the way to a root, shows nothing of the layers below."""
        lower = self._below.find(parts)
        if lower is None or not stat.S_ISDIR(lower.st_mode):
            return True
        parent = trees.open_beneath(self._top, "/".join(parts[:-1]) or ".", _DIRECTORY)
        try:
            return self._opaque(parts, info, parent)
        finally:
            os.close(parent)


class _Bounded(io.RawIOBase):
    """The first ``size`` bytes of a descriptor."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._left, self.read_bytes = fd, size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        data = os.read(self._fd, min(len(view), self._left))
        view[:len(data)] = data
        self._left -= len(data)
        self.read_bytes += len(data)
        return len(data)


def _read(fd: int, size: int) -> bytes:
    parts = []
    while size > 0 and (data := os.read(fd, size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _name(parts: Parts) -> str:
    return "/" + "/".join(parts)
