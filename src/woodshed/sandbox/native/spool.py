"""What a command writes beyond what is kept of it: its beginning goes to a file of the host, beside the box's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from woodshed.sandbox.native.output import Kept

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Spools:
    """The spool files of one box, in a directory of their own that is no part of what the box sees.

    They go with the box's folder, and do not count as its disk: nothing inside could delete them. Together they take at
    most ``room`` bytes.
    """

    def __init__(self, folder: Path, each: int, room: int) -> None:
        """``each`` is the most of one stream, in bytes; 0 spools nothing."""
        self.each, self.left = each, room
        self._folder, self._made = folder, 0

    def create(self) -> tuple[int, Path]:
        """A new file, open for writing. Raises OSError."""
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        self._made += 1
        path = self._folder / str(self._made)
        return os.open(path, _NEW, 0o600), path


class Spooling:
    """One stream on its way: nothing is written before more came than ``kept`` holds."""

    def __init__(self, spools: Spools, kept: Kept) -> None:
        self._spools, self._kept, self._left = spools, kept, spools.each
        self._fd = -1
        self.path: Path | None = None
        self.complete = True
        """False where the disk, or the box's share of it, had no room for all of it."""

    def add(self, data: bytes) -> None:
        """Take the next bytes, before ``kept`` does. Never raises: a full disk ends the spool, not the command."""
        if self.path is None and self.complete and self._kept.overflows(len(data)):
            with self._mending():
                self._fd, self.path = self._spools.create()
            self._write(self._kept.bytes())
        if self._fd >= 0:
            self._write(data)

    def _write(self, data: bytes) -> None:
        wanted = min(len(data), self._left)
        view = memoryview(data)[: min(wanted, self._spools.left)]
        short = len(view) < wanted
        with self._mending():
            while view and self._fd >= 0:
                written = os.write(self._fd, view)
                self._left -= written
                self._spools.left -= written
                view = view[written:]
        if short:
            self.complete = False
        if short or not self._left:
            self.close()

    @contextmanager
    def _mending(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.complete = False
            self.close()

    def close(self) -> None:
        """Write no more. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
