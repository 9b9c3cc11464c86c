"""Layers made into one: what a stack of them shows over an image, as a directory that shows the same there."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from woodshed.sandbox.native import trees
from woodshed.sandbox.native.below import OPAQUE, Below, Parts, is_opaque, is_whiteout
from woodshed.sandbox.native.copies import Copier, Linker, settle

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST = 4000
"""Bytes of a path; the kernel takes 4,095 (PATH_MAX). As in ``capture.py``, which refuses what lies deeper."""


def discard(path: Path) -> None:
    """Remove a tree of ours; what cannot be removed now is swept with the instance's folder."""
    with suppress(OSError):
        trees.remove(path)


def squash(
    sources: Sequence[Path], lowers: Sequence[Path], target: Path, *, copy: bool = False,
    roots: Sequence[Parts] = ((),),
) -> bool:
    """Make ``target`` so that over ``lowers`` it shows what ``sources`` (topmost first) show there, below ``roots``.

    Files are hard links to those of the sources, or with ``copy`` files of their own. False where paths are so long
    that something is missing. Blocking. Raises OSError as the host's disk does.
    """
    target.mkdir(mode=0o700)
    walk = _Squash(sources, lowers, target, roots, copy=copy)
    try:
        return walk.run()
    finally:
        walk.close()


@dataclass(slots=True)
class _Directory:
    """One directory of the result: in which sources it merges, and whether it hides what the lowers have there."""

    parts: Parts
    sources: list[int]
    hides: bool
    closed: bool = False


class _Squash:
    def __init__(
        self, sources: Sequence[Path], lowers: Sequence[Path], target: Path, roots: Sequence[Parts], *, copy: bool
    ) -> None:
        self._tops = [os.open(source, _DIRECTORY) for source in sources]
        self._out = os.open(target, _DIRECTORY)
        self._below = Below(lowers)
        self._roots = () if () in roots else tuple(roots)
        self._putter = Copier(self._out) if copy else Linker(self._out)
        self._relock: list[tuple[int, str, int]] = []
        self._complete = True

    def close(self) -> None:
        for top, path, mode in reversed(self._relock):
            with suppress(OSError):
                fd = trees.open_beneath(top, path, os.O_PATH | os.O_NOFOLLOW)
                try:
                    Path(f"/proc/self/fd/{fd}").chmod(mode)
                finally:
                    os.close(fd)
        for fd in (*self._tops, self._out):
            os.close(fd)

    def run(self) -> bool:
        """Everything, directories' own attributes last: what is made below them changes their times."""
        done: list[_Directory] = []
        todo = [_Directory((), list(range(len(self._tops))), hides=False)]
        while todo:
            directory = todo.pop()
            done.append(directory)
            todo.extend(self._fill(directory))
        for directory in reversed(done):
            self._settle(directory)
        return self._complete

    def _fill(self, directory: _Directory) -> list[_Directory]:
        """Everything of one directory but what lies in its directories, which are returned."""
        found: dict[str, _Directory | None] = {}
        out = trees.open_beneath(self._out, _path(directory.parts), _DIRECTORY)
        try:
            for index in directory.sources:
                fd = self._enter(index, directory.parts)
                try:
                    for name in os.listdir(fd):  # noqa: PTH208 (a descriptor)
                        if self._roots and not self._wanted((*directory.parts, name)):
                            continue
                        self._entry(directory, index, fd, name, out, found)
                finally:
                    os.close(fd)
            below = [entry for entry in found.values() if entry is not None]
            for entry in below:
                self._make(entry, out, hidden=directory.hides)
        finally:
            os.close(out)
        return below

    def _wanted(self, parts: Parts) -> bool:
        """Whether it lies below a root, or a root below it."""
        return any(parts[:len(root)] == root[:len(parts)] for root in self._roots)

    def _entry(
        self, directory: _Directory, index: int, fd: int, name: str, out: int, found: dict[str, _Directory | None]
    ) -> None:
        """One entry of one source. The topmost counts; a directory goes on in lower ones until something ends it."""
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        is_directory = stat.S_ISDIR(info.st_mode)
        parts = (*directory.parts, name)
        if name not in found:
            if is_directory and len(os.fsencode(_path(parts))) > _LONGEST:
                self._complete = False
                found[name] = None
            elif is_directory:
                opaque = self._opaque(index, parts, info)
                found[name] = _Directory(parts, [index], hides=opaque, closed=opaque)
            else:
                found[name] = None
                if not is_whiteout(info) or not (directory.hides or self._below.find(parts) is None):
                    self._putter.put(_path(parts), fd, out, info)
            return
        upper = found[name]
        if upper is None or upper.closed:
            return
        if is_directory:
            upper.sources.append(index)
            upper.closed = self._opaque(index, upper.parts, info)
        else:
            upper.closed = True
        upper.hides = upper.hides or upper.closed

    def _make(self, directory: _Directory, out: int, *, hidden: bool) -> None:
        name = directory.parts[-1]
        os.mkdir(name, 0o700, dir_fd=out)
        lower = None if hidden else self._below.find(directory.parts)
        merges = lower is not None and stat.S_ISDIR(lower.st_mode)
        if directory.hides and lower is not None:
            fd = os.open(name, _DIRECTORY, dir_fd=out)
            try:
                os.setxattr(fd, OPAQUE, b"y")
            finally:
                os.close(fd)
        # A mark of deletion below is dropped where nothing lies under it: it would be seen there as a device.
        directory.hides = directory.hides or not merges

    def _settle(self, directory: _Directory) -> None:
        source = self._enter(directory.sources[0], directory.parts)
        try:
            fd = trees.open_beneath(self._out, _path(directory.parts), _DIRECTORY)
            try:
                settle(source, fd, self._mode(directory, source))
            finally:
                os.close(fd)
        finally:
            os.close(source)

    # -- looking, without following ------------------------------------------------------------------------------------

    def _enter(self, index: int, parts: Parts) -> int:
        """A descriptor of a source's directory; where its mode shuts out an ordinary user that is changed meanwhile."""
        top, path = self._tops[index], _path(parts)
        try:
            return trees.open_beneath(top, path, _DIRECTORY)
        except PermissionError:
            if os.geteuid() == 0 or not parts:
                raise
        fd = trees.open_beneath(top, path, os.O_PATH | os.O_NOFOLLOW)
        try:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            Path(f"/proc/self/fd/{fd}").chmod(mode | 0o700)
            self._relock.append((top, path, mode))
        finally:
            os.close(fd)
        return trees.open_beneath(top, path, _DIRECTORY)

    def _mode(self, directory: _Directory, source: int) -> int:
        """The mode of a directory's topmost source, as it was before we entered."""
        top, path = self._tops[directory.sources[0]], _path(directory.parts)
        changed = [mode for at, where, mode in self._relock if (at, where) == (top, path)]
        return changed[0] if changed else stat.S_IMODE(os.fstat(source).st_mode)

    def _opaque(self, index: int, parts: Parts, info: os.stat_result) -> bool:
        fd = self._enter(index, parts)
        try:
            return is_opaque(fd)
        finally:
            os.close(fd)


def _path(parts: Parts) -> str:
    return "/".join(parts) or "."
