"""Blobs: content-addressed files. The sha256 is the name, so equal content is stored once and can be checked."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from woodshed.errors import StoreFault
from woodshed.store.ids import token
from woodshed.store.opening import explain

CHUNK = 1 << 20
_ZEROS = bytes(CHUNK)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_YOUNG_S = 3600.0
"""A blob that is stored again when it is older gets young: what sweeps old ones (sweeping.py) then leaves it."""


class Blobs:
    """A folder of blobs, ``ab/cdef…``, readable by its owner only. Implements :class:`woodshed.interfaces.BlobSink`.

    Safe for many processes: a blob appears whole, by rename, or not at all. A process killed while writing leaves a
    file in ``tmp/`` that the next opening sweeps. Blobs are not synced to disk one by one; a machine that crashes may
    lose the last ones, which ``open(verify=True)`` and a repeated ``put`` notice.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tmp = root / "tmp"
        try:
            for folder in (root, self._tmp):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFault(f"opening the blob folder: {explain(error)}") from error
        self._sweep()

    def put(self, content: bytes | BinaryIO) -> str:
        """Store the whole content; its sha256 in hex. Raises StoreFault; nothing half-written remains."""
        try:
            if isinstance(content, bytes):
                digest = hashlib.sha256(content).hexdigest()
                return digest if self._has(digest, len(content)) else self._store(BytesIO(content))
            return self._store(content)
        except OSError as error:
            raise StoreFault(f"storing a blob: {explain(error)}") from error

    def open(self, sha256: str, *, verify: bool = False) -> BinaryIO:
        """The content, for reading; with ``verify`` only after its digest was checked.

        Raises StoreFault when it is absent, damaged, or the name is no digest.
        """
        path = self.path(sha256)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise StoreFault(f"blob {sha256} is missing from {self.root}") from None
        except OSError as error:
            raise StoreFault(f"opening blob {sha256}: {explain(error)}") from error
        if verify:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                file.close()
                raise StoreFault(f"blob {sha256} is damaged: its content has the digest {found}")
            file.seek(0)
        return file

    def path(self, sha256: str) -> Path:
        """Where a blob stands or would stand. Raises StoreFault for a name that is no lower-case sha256."""
        if not _DIGEST.fullmatch(sha256):
            raise StoreFault(f"not a sha256: {sha256[:80]!r}")
        return self.root / sha256[:2] / sha256[2:]

    def _has(self, digest: str, size: int) -> bool:
        """A file of another size is what a crash left: it is written again."""
        path = self.path(digest)
        with suppress(FileNotFoundError):
            found = path.stat()
            if found.st_size == size and abs(time.time() - found.st_mtime) > _YOUNG_S:
                with self._lock(fcntl.LOCK_SH):
                    os.utime(path)
            return found.st_size == size
        return False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Meanwhile nobody finds an old blob there and relies on it. Blocking, microseconds."""
        with self._lock(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield
        finally:
            os.close(descriptor)

    def bind(self, store: str) -> bool:
        """``store`` names blobs of this folder; whether no other ever did. Only then can it be known what is named."""
        record = self.root / "stores"
        with self.alone():
            known = record.read_text().splitlines() if record.exists() else []
            if store not in known:
                with record.open("a") as file:
                    file.write(f"{store}\n")
        return known in ([], [store])

    def _store(self, source: BinaryIO) -> str:
        temporary = self._tmp / token(16)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # tells a sweeping process that someone is writing here
            digest, size = hashlib.sha256(), 0
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                size += _write(descriptor, chunk)
            os.ftruncate(descriptor, size)  # a hole at the end is no part of the file yet
            name = digest.hexdigest()
            if self._has(name, size):
                temporary.unlink()
            else:
                self._move(descriptor, temporary, self.path(name))
            return name
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def _move(self, descriptor: int, temporary: Path, target: Path) -> None:
        target.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            temporary.replace(target)
        except FileNotFoundError:  # swept in the instant between creation and lock; the content is still ours
            os.link(f"/proc/self/fd/{descriptor}", target, follow_symlinks=True)

    def _sweep(self) -> None:
        """Remove temporary files nobody is writing: their writer was killed."""
        for leftover in self._tmp.iterdir():
            with suppress(OSError):
                descriptor = os.open(leftover, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftover.unlink()
                finally:
                    os.close(descriptor)


def _write(descriptor: int, chunk: bytes) -> int:
    """All of it: a nearly full disk may take less than asked before it says so.

    Zeros become a hole. Whoever makes a file of gigabytes without writing it would otherwise have us write them.
    """
    if chunk == _ZEROS[: len(chunk)]:
        os.lseek(descriptor, len(chunk), os.SEEK_CUR)
        return len(chunk)
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view):]
    return len(chunk)
