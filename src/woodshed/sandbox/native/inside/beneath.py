"""Writing a tree below one directory: every step from a descriptor, through no link, whatever stands there already.

The engine uses it for what arrives from a box (nothing may stand there), and the helpers of a box for what arrives from
the engine (links in the way are replaced).
"""
# ruff: noqa: SIM105
# (Loaded in the box's first process, which stays small: neither pathlib nor contextlib is loaded in it.)

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from woodshed.sandbox.native.inside import frames

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1 << 16
_ZEROS = bytes(_BLOCK)


class Beneath:
    """The tree whose top is ``name`` in the directory ``base``; paths are relative to it, and "" is the top itself.

    Without ``replace`` whatever stands in the way is FileExistsError. With it, files and links are replaced, never
    followed (but for a top that leads to a directory), and directories are kept.
    """

    def __init__(self, base: int, name: str, *, replace: bool) -> None:
        self._base, self._name, self._replace = base, name, replace
        self._top = -1
        self._last: tuple[str, int] = ("", -1)
        self._modes: list[tuple[str, int]] = []

    def directory(self, path: str, mode: int) -> None:
        """A directory; one whose mode would shut out its owner gets it in :meth:`finish`."""
        if not path and self._replace and self.enter():
            self._modes.append(("", mode))
            return
        parent, name = self._parent(path)
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not self._replace:
                raise
            if self._clear(parent, name, path, but_directory=True):
                os.mkdir(name, 0o700, dir_fd=parent)
        if not path:
            self._top = os.open(name, _DIRECTORY, dir_fd=parent)
        self._modes.append((path, mode))

    def enter(self) -> bool:
        """Whether the top is a directory already: then its link is followed, for the caller named it."""
        if self._top < 0:
            try:
                self._top = os.open(self._name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._base)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def link(self, path: str, target: str) -> None:
        """A symbolic link, uninterpreted."""
        parent, name = self._parent(path)
        if self._replace:
            self._clear(parent, name, path)
        os.symlink(target, name, dir_fd=parent)

    def hard(self, path: str, source: str) -> None:
        """A further name of the file at ``source``, of this tree."""
        start, old = self._parent(source)
        start = os.dup(start)
        try:
            if not stat.S_ISREG(os.stat(old, dir_fd=start, follow_symlinks=False).st_mode):
                raise OSError(errno.EINVAL, "a hard link to what is no file")
            parent, name = self._parent(path)
            if path != source:
                if self._replace:
                    self._clear(parent, name, path)
                os.link(old, name, src_dir_fd=start, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(start)

    def file(
        self, path: str, mode: int, size: int, pieces: Iterator[tuple[int, bytes]], mtime: float | None = None
    ) -> None:
        """A new file of ``size`` bytes; what ``pieces`` does not cover, and what is nothing but zeros, are holes."""
        parent, name = self._parent(path)
        if self._replace:
            self._clear(parent, name, path)
        fd = os.open(name, _NEW, 0o600, dir_fd=parent)
        try:
            end = 0
            for offset, data in pieces:
                end = max(end, _put(fd, offset, data))
            if end < size:
                os.ftruncate(fd, size)
            os.fchmod(fd, mode)
            if mtime is not None:
                os.utime(fd, (mtime, mtime))
        finally:
            os.close(fd)

    def parents(self, path: str) -> None:
        """Make the directories above ``path`` that are missing."""
        above = path.rpartition("/")[0]
        if not above or above == self._last[0]:
            return
        made = ""
        for part in above.split("/"):
            parent, _ = self._parent(f"{made}/{part}" if made else part)
            try:
                os.mkdir(part, 0o755, dir_fd=parent)
            except FileExistsError:
                pass  # a link or file in the way is found when it is entered
            made = f"{made}/{part}" if made else part

    def finish(self) -> None:
        """Modes of directories last and deepest first: one may shut out its owner."""
        for path, mode in reversed(self._modes):
            fd = os.dup(self._top) if not path else frames.open_beneath(self._top, path, _DIRECTORY)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Let go of all descriptors, that of ``base`` included. Idempotent."""
        for fd in (self._base, self._top, self._last[1]):
            if fd >= 0:
                os.close(fd)
        self._base, self._top, self._last = -1, -1, ("", -1)

    def _parent(self, path: str) -> tuple[int, str]:
        """The directory that holds ``path``, and its name there. The directory stays ours."""
        if not path:
            return self._base, self._name
        if self._top < 0:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        above, _, name = path.rpartition("/")
        if not above:
            return self._top, name
        if self._last[0] != above:
            known, held = self._last
            if held >= 0 and above.rpartition("/")[0] == known:  # one step down, as in a tree's own order
                fd = os.open(above[len(known) + 1:], _DIRECTORY, dir_fd=held)
            else:
                fd = frames.open_beneath(self._top, above, _DIRECTORY)
            if held >= 0:
                os.close(held)
            self._last = above, fd
        return self._last[1], name

    @staticmethod
    def _clear(parent: int, name: str, path: str, *, but_directory: bool = False) -> bool:
        """Make room; False where a directory stands there and may stay."""
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return True
        if stat.S_ISDIR(mode):
            if but_directory:
                return False
            raise IsADirectoryError(errno.EISDIR, f"{path or name}: {os.strerror(errno.EISDIR)}")
        os.unlink(name, dir_fd=parent)
        return True


def _put(fd: int, offset: int, data: bytes) -> int:
    """Write ``data`` at ``offset`` but for its blocks of zeros; where it ended."""
    end, at = 0, 0
    while at < len(data):
        # Blocks as they lie in the file, so that a hole is one on the disk, too.
        part = data[at:at + _BLOCK - (offset + at) % _BLOCK]
        if part[0] or part[-1] or len(part) < _BLOCK or part != _ZEROS:
            view, where = memoryview(part), offset + at
            while view:
                done = os.pwrite(fd, view, where)
                view, where = view[done:], where + done
            end = where
        at += len(part)
    return end
