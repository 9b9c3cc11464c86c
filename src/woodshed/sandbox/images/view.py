"""Layers as a sandbox sees them together, looked at from the host: no link of theirs is followed out here."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from woodshed.errors import UsageError
from woodshed.sandbox.native.below import Below

_LINKS = 40
"""In a row that are followed; the kernel's own bound (include/linux/namei.h)."""


class View:
    """The merged files of ``lowers``, topmost first."""

    def __init__(self, lowers: Sequence[Path]) -> None:
        self._below, self._lowers = Below(lowers), tuple(lowers)

    def land(self, path: str) -> str:
        """Where absolute ``path`` leads, its links followed inside; the last parts need not exist.

        Raises UsageError for a circle of links.
        """
        todo, done, links = list(reversed(PurePosixPath(path).parts[1:])), PurePosixPath("/"), 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = done.parent
                continue
            step = done / part
            if (to := self._link(step)) is None:
                done = step
                continue
            links += 1
            if links > _LINKS:
                raise UsageError(f"{path} runs in a circle of links")
            done = PurePosixPath("/") if to.startswith("/") else done
            todo.extend(part for part in reversed(PurePosixPath(to).parts) if part != "/")
        return str(done)

    def stat(self, path: str) -> os.stat_result | None:
        """What absolute ``path`` leads to, links followed inside; None where nothing stands."""
        return self._below.find(PurePosixPath(self.land(path)).parts[1:]) if path != "/" else None

    def is_directory(self, path: str) -> bool:
        """Whether ``path`` leads to a directory."""
        info = self.stat(path)
        return self.land(path) == "/" or (info is not None and stat.S_ISDIR(info.st_mode))

    def is_file(self, path: str) -> bool:
        """Whether ``path`` leads to a regular file."""
        info = self.stat(path)
        return info is not None and stat.S_ISREG(info.st_mode)

    def read(self, path: str, most: int) -> bytes | None:
        """The first ``most`` bytes of the regular file that ``path`` leads to; None where there is none."""
        parts = PurePosixPath(self.land(path)).parts[1:]
        info = self._below.find(parts)
        if info is None or not stat.S_ISREG(info.st_mode):
            return None
        for lower in self._lowers:
            place = lower.joinpath(*parts)
            with suppress(OSError):
                seen = os.lstat(place)  # before it is opened: a layer's links may lead to devices of this machine
                if (seen.st_dev, seen.st_ino) == (info.st_dev, info.st_ino):
                    with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
                        return file.read(most)
        return None

    def _link(self, path: PurePosixPath) -> str | None:
        """The target of the link at ``path``, of which the parents are no links."""
        parts = path.parts[1:]
        info = self._below.find(parts)
        if info is None or not stat.S_ISLNK(info.st_mode):
            return None
        for lower in self._lowers:
            # The same inode as the merged view found: none that only another layer's links would lead to.
            place = str(lower.joinpath(*parts))
            try:
                seen = os.lstat(place)
                if (seen.st_dev, seen.st_ino) == (info.st_dev, info.st_ino):
                    return os.readlink(place)  # noqa: PTH115 (strings, as Below has them)
            except OSError:
                continue
        return None
