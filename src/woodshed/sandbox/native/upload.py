"""A host file or folder packed for the way into a box: an index and the contents in one memfd."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from woodshed.errors import UsageError

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20

Entry = tuple[str, str, int, int, str]
"""Path below the target, kind, mode, size, link target."""


def pack(source: Path) -> tuple[int, int]:
    """A memfd (the caller's to close) of the index and all contents, and the index's length in bytes.

    Links of ``source`` are packed as links, never followed. Raises UsageError for what cannot be read or is no file,
    folder or link.
    """
    contents = os.memfd_create("upload", os.MFD_CLOEXEC)
    try:
        entries, files = _survey(source)
        index = json.dumps(entries, separators=(",", ":")).encode()
        _write(contents, index)
        for path, size in files:
            _append(contents, path, size)
    except OSError as error:
        os.close(contents)
        raise UsageError(f"cannot be uploaded: {error.strerror or error}", file=source) from error
    except BaseException:
        os.close(contents)
        raise
    return contents, len(index)


def _survey(source: Path) -> tuple[list[Entry], list[tuple[Path, int]]]:
    entries: list[Entry] = []
    files: list[tuple[Path, int]] = []
    todo = [(source, "")]
    while todo:
        path, below = todo.pop()
        info = path.lstat()
        mode = stat.S_IMODE(info.st_mode) & 0o777
        if stat.S_ISDIR(info.st_mode):
            entries.append((below, "directory", mode, 0, ""))
            prefix = f"{below}/" if below else ""
            todo.extend((child, prefix + child.name) for child in sorted(path.iterdir(), reverse=True))
        elif stat.S_ISLNK(info.st_mode):
            entries.append((below, "symlink", mode, 0, str(path.readlink())))
        elif stat.S_ISREG(info.st_mode):
            entries.append((below, "file", mode, info.st_size, ""))
            files.append((path, info.st_size))
        else:
            raise UsageError("is a device, socket or pipe and cannot be uploaded", file=path)
    return entries, files


def _append(contents: int, path: Path, size: int) -> None:
    """Exactly ``size`` bytes of the file: the index has that size already."""
    fd = os.open(path, _OPEN)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError("changed while it was read", file=path)
        while size:
            data = os.read(fd, min(size, _CHUNK))
            if not data:
                raise UsageError("changed while it was read", file=path)
            _write(contents, data)
            size -= len(data)
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
