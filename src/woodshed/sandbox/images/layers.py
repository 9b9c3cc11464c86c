"""The layer store: finished directories by digest, shared by threads and processes, swept after a crash.

::

    HOME/layers/            0700: nobody else on the host reaches what a layer holds
      <digest>/             a finished layer, world-readable inside, never changed
      .tmp/<name>, .lock    being written; its lock is held as long as its writer lives
      .locks/<digest>       held while one writer makes this digest
      .used/<digest>        its mtime is the last use
      .notes/<key>.json     small facts found once, as which files answered a list of requirements
      .wheels/<key>/        wheels that we built of source distributions for that list
      .blobs/<sha256>.part  what has arrived of a registry's layers
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from woodshed.errors import EnvironmentFault
from woodshed.sandbox.native import trees

_DOTTED = (".tmp", ".locks", ".used", ".notes", ".wheels", ".blobs")


class Layers:
    """The layers under one home. Opening it sweeps what dead writers left."""

    def __init__(self, home: Path) -> None:
        """Makes ``home`` and its folders where they are missing. Raises EnvironmentFault where that fails."""
        self.root = home.absolute() / "layers"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
            if stat.S_IMODE(self.root.stat().st_mode) != 0o700:
                self.root.chmod(0o700)
            for name in _DOTTED:
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            self._alive = os.open(self.root / ".alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EnvironmentFault(f"the layer store {self.root} cannot be used: {error}") from error
        fcntl.flock(self._alive, fcntl.LOCK_SH)
        self.sweep()

    def path(self, digest: str) -> Path:
        """Where the layer ``digest`` lies or would lie."""
        return self.root / digest

    def find(self, digest: str) -> Path | None:
        """The finished layer, marked as used now; None where there is none."""
        if not (path := self.path(digest)).is_dir():
            return None
        (self.root / ".used" / digest).touch()
        return path

    def make(self, digest: str, fill: Callable[[Path], str | None]) -> Path:
        """The layer ``digest``, filled once by ``fill(directory)`` whoever asks first; the others wait for it.

        ``fill`` may return another digest than asked for (its sources changed under it); the layer then gets that
        name. What it raises passes, and nothing is left.
        """
        if found := self.find(digest):
            return found
        with self.lock(digest):
            if found := self.find(digest):
                return found
            with self.scratch() as temp:
                directory = temp / "layer"
                directory.mkdir(mode=0o755)
                directory.chmod(0o755)
                digest = fill(directory) or digest
                # A finished layer of that name is the same content: ours is dropped with the scratch folder.
                with suppress(OSError):
                    directory.rename(self.path(digest))
        found = self.find(digest)
        if found is None:
            raise EnvironmentFault(f"the layer {digest[:12]} could not be put into {self.root}")
        return found

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Held by one thread of one process at a time; the kernel frees it when the process dies."""
        fd = os.open(self.root / ".locks" / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private directory on the layers' file system, gone afterwards, and swept later if we are killed."""
        path, fd = self._claim()
        try:
            path.mkdir(mode=0o700)
            yield path
        finally:
            _remove(path)
            path.with_suffix(".lock").unlink(missing_ok=True)
            os.close(fd)

    def _claim(self) -> tuple[Path, int]:
        while True:
            path = self.root / ".tmp" / uuid.uuid4().hex
            lock = path.with_suffix(".lock")
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            # A sweeper may have taken the lock between our two calls, and removed the file: then try again.
            if os.fstat(fd).st_nlink:
                return path, fd
            os.close(fd)

    def sweep(self) -> int:
        """Remove the scratch directories of dead writers; how many."""
        removed = 0
        for lock in (self.root / ".tmp").glob("*.lock"):
            with suppress(FileNotFoundError):
                fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(lock.with_suffix(""))
                    lock.unlink(missing_ok=True)
                    removed += 1
                except BlockingIOError:
                    pass
                finally:
                    os.close(fd)
        return removed

    def note(self, key: str) -> Any | None:
        """What was noted under ``key``; None where nothing was, or where it is damaged."""
        try:
            return json.loads((self.root / ".notes" / f"{key}.json").read_text())
        except (OSError, ValueError):
            return None

    def set_note(self, key: str, value: Any) -> None:
        """Note a JSON value, whole or not at all."""
        with self.scratch() as temp:
            (temp / "note").write_text(json.dumps(value))
            (temp / "note").rename(self.root / ".notes" / f"{key}.json")

    def sizes(self) -> dict[str, int]:
        """Bytes on disk of each finished layer, by digest."""
        return {name: self.size(name) for name in self._names()}

    def size(self, digest: str) -> int:
        """Bytes on disk of a finished layer; 0 where there is none. Counted once, for a layer never changes."""
        if not self.path(digest).is_dir():
            return 0
        known = self.note(f"size-{digest}")
        if isinstance(known, int):
            return known
        total = _size(self.path(digest))
        self.set_note(f"size-{digest}", total)
        return total

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if not path.name.startswith("."))

    def gc(self, unused_for_s: float = 7 * 86400) -> list[str]:
        """Remove layers not used for that long; their digests. Removes nothing while another user of the store lives.

        The caller must hold no prepared root file system of its own.
        """
        if not self._claim_all():
            return []
        try:
            limit = time.time() - unused_for_s
            gone = [name for name in self._names() if self._used(name) <= limit]
            with self.scratch() as temp:
                for name in gone:
                    # Renamed away first: a crash in the middle leaves a scratch directory, never half a layer.
                    self.path(name).rename(temp / name)
                    (self.root / ".used" / name).unlink(missing_ok=True)
                    (self.root / ".notes" / f"size-{name}.json").unlink(missing_ok=True)
            return gone
        finally:
            fcntl.flock(self._alive, fcntl.LOCK_SH)

    def alone(self) -> bool:
        """Whether no other user of the store lives, just now."""
        if claimed := self._claim_all():
            fcntl.flock(self._alive, fcntl.LOCK_SH)
        return claimed

    def _claim_all(self) -> bool:
        try:
            fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _used(self, digest: str) -> float:
        try:
            return (self.root / ".used" / digest).stat().st_mtime
        except OSError:
            return 0.0

    def close(self) -> None:
        """Let others collect garbage. Idempotent."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1


def _remove(path: Path) -> None:
    """Remove a tree of our own, whatever its modes and depth; what cannot be removed stays for the next sweep."""
    with suppress(OSError):
        path.chmod(0o700)
        trees.remove(path)


def _size(path: Path) -> int:
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 (hot loop over strings)
    return total
