"""Captured changes written into a fresh upper directory, before anything is mounted on it.

Every path is walked component by component without following links, so the worst a forged change set can do is to
leave a file out: a change whose parent is no directory (there, or in the image) has no place and is skipped.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from woodshed.errors import EnvironmentFault
from woodshed.interfaces import BlobSink
from woodshed.model import Change, ChangeKind, ChangeSet
from woodshed.sandbox.native.below import OPAQUE, Below, Parts

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORIES = (ChangeKind.DIRECTORY, ChangeKind.OPAQUE)


def apply(changes: ChangeSet, blobs: BlobSink, upper: Path, lowers: Sequence[Path]) -> None:
    """Write ``changes`` into the empty directory ``upper`` of an overlay over ``lowers``. Blocking.

    Everything belongs to the box's root. Raises EnvironmentFault for paths no capture yields or a full disk,
    StoreFault from ``blobs``.
    """
    writer = _Writer(blobs, upper, Below(lowers))
    try:
        for change in changes.changes:
            writer.place(change)
        writer.set_modes()
    except OSError as error:
        raise EnvironmentFault(f"the captured changes could not be restored: {error}") from error
    finally:
        writer.close()


def _parts(path: str) -> Parts:
    parts = tuple(path.split("/")[1:])
    if not path.startswith("/") or not parts or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise EnvironmentFault(f"the captured changes hold the path {path!r}, which is not absolute and normalised")
    return parts


class _Writer:
    def __init__(self, blobs: BlobSink, upper: Path, below: Below) -> None:
        self._blobs, self._below = blobs, below
        self._top = os.open(upper, _DIRECTORY)
        self._last: tuple[Parts, int] = ((), os.dup(self._top))
        self._modes: list[tuple[Parts, int]] = []

    def close(self) -> None:
        os.close(self._last[1])
        os.close(self._top)

    def place(self, change: Change) -> None:
        """Put one change at its place, instead of what an earlier one put there."""
        parts = _parts(change.path)
        parent = self._parent(parts[:-1])
        if parent is None or not self._clear(parts[-1], parent, change.kind in _DIRECTORIES):
            return
        name = parts[-1]
        if change.kind is ChangeKind.FILE:
            self._file(name, parent, change)
        elif change.kind is ChangeKind.SYMLINK:
            os.symlink(change.target or "", name, dir_fd=parent)
        elif change.kind is ChangeKind.DELETED:
            if self._below.find(parts) is not None:
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent)
        else:
            self._directory(parts, parent, change)

    def _parent(self, parts: Parts) -> int | None:
        """The directory at ``parts``, made like the image's where only that has it; None where it is none."""
        if self._last[0] == parts:
            return self._last[1]
        fd = os.dup(self._top)
        for depth in range(1, len(parts) + 1):
            try:
                deeper = self._enter(parts[:depth], fd)
            finally:
                os.close(fd)
            if deeper is None:
                return None
            fd = deeper
        os.close(self._last[1])
        self._last = parts, fd
        return fd

    def _enter(self, parts: Parts, fd: int) -> int | None:
        name = parts[-1]
        try:
            return os.open(name, _DIRECTORY, dir_fd=fd)
        except NotADirectoryError:
            return None
        except FileNotFoundError:
            pass
        except OSError as error:
            raise EnvironmentFault(f"the captured changes could not be restored: {error}") from error
        lower = self._below.find(parts)
        if lower is not None and not stat.S_ISDIR(lower.st_mode):
            return None
        os.mkdir(name, 0o700, dir_fd=fd)
        self._modes.append((parts, stat.S_IMODE(lower.st_mode) if lower else 0o755))
        made = os.open(name, _DIRECTORY, dir_fd=fd)
        if lower is not None and os.geteuid() == 0:
            os.fchown(made, lower.st_uid, lower.st_gid)
        return made

    def _clear(self, name: str, parent: int, is_directory: bool) -> bool:
        """Make room; False where an earlier directory is in the way of something else."""
        try:
            info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return True
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(name, dir_fd=parent)
            return True
        return is_directory

    def _file(self, name: str, parent: int, change: Change) -> None:
        if change.sha256 is None:
            raise EnvironmentFault(f"the captured changes name no content for {change.path!r}")
        with self._blobs.open(change.sha256) as source:
            fd = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
            with os.fdopen(fd, "wb", buffering=0) as target:
                shutil.copyfileobj(source, target, 1 << 20)
                os.fchmod(target.fileno(), change.mode)

    def _directory(self, parts: Parts, parent: int, change: Change) -> None:
        with suppress(FileExistsError):
            os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._modes.append((parts, change.mode))
        if change.kind is ChangeKind.OPAQUE:
            fd = os.open(parts[-1], _DIRECTORY, dir_fd=parent)
            try:
                os.setxattr(fd, OPAQUE, b"y")
            finally:
                os.close(fd)

    def set_modes(self) -> None:
        """Modes of directories last and deepest first: one may shut out its owner."""
        for parts, mode in reversed(self._modes):
            fd = self._parent(parts)
            if fd is not None:
                os.fchmod(fd, mode)
