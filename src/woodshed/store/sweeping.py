"""Blobs that nothing names any more are removed, safely beside whoever is writing.

One goes when it is a day old by the file system's own clock (no clock of a process counts), and no record names it.
What a run writes is young; and who stores again what lies there already makes it young again, under a lock that is held
while a blob is looked at for the last time and removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from woodshed.store.blobs import Blobs
from woodshed.store.ids import token
from woodshed.store.references import listed

OLD_S = 86_400.0
_LIST_BYTES = 64 << 20
"""A blob that is larger lists no blobs: a checkpoint of 50,000 files is a sixth of that."""


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Blobs removed, and their bytes."""

    blobs: int = 0
    blob_bytes: int = 0


def sweep(blobs: Blobs, named: Callable[[set[str]], set[str]], *, old_s: float = OLD_S) -> Unnamed:
    """Remove what is old and not ``named``, which tells those of a set that are. Raises OSError, StoreFault."""
    before = _now(blobs) - old_s
    there = dict(_present(blobs))
    old = {digest: info for digest, info in there.items() if info.st_mtime < before}
    if not old:
        return Unnamed()
    wanted = _with_listed(blobs, named(set(there)), set(there))
    count = size = 0
    for digest in old.keys() - wanted:
        with suppress(FileNotFoundError), blobs.alone():
            path = blobs.path(digest)
            info = path.stat()
            if info.st_mtime < before:  # nobody stored it again meanwhile
                path.unlink()
                count, size = count + 1, size + info.st_size
    return Unnamed(count, size)


def _with_listed(blobs: Blobs, named: set[str], there: set[str]) -> set[str]:
    """Those named, and those that they list, and so on."""
    wanted, todo = set(named), list(named)
    while todo:
        path = blobs.path(todo.pop())
        with suppress(FileNotFoundError):
            if path.stat().st_size <= _LIST_BYTES:
                with path.open("rb") as file:
                    start = file.read(1)
                    content = start + file.read() if start in b"{[ \n" else b""
                new = listed(content, there) - wanted
                wanted |= new
                todo += new
    return wanted


def _now(blobs: Blobs) -> float:
    """By the clock that dates its files: a server's, where the folder is on one."""
    probe = blobs.root / "tmp" / token(16)
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)


def _present(blobs: Blobs) -> Iterator[tuple[str, os.stat_result]]:
    for folder in blobs.root.iterdir():
        if len(folder.name) != 2 or not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    digest = folder.name + entry.name
                    if stat.S_ISREG(info.st_mode) and len(digest) == 64:
                        yield digest, info
