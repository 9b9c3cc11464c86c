"""A host file or folder on its way into a box: as frames, in a memory file when it is small, else through a pipe."""

from __future__ import annotations

import os
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.sandbox.native.inside import frames


def pack(source: Path) -> int:
    """A memory file of all of ``source``, to be read from its start; the caller's to close. Raises as :func:`feed`."""
    contents = os.memfd_create("upload", os.MFD_CLOEXEC)
    try:
        feed(source, lambda data: _write(contents, data))
        os.lseek(contents, 0, os.SEEK_SET)
    except BaseException:
        os.close(contents)
        raise
    return contents


def feed(source: Path, write: frames.Write) -> None:
    """Write the frames of ``source``. Links are sent as links, never followed.

    Raises UsageError for what cannot be read or is no file, folder or link, and what ``write`` raises.
    """
    failing = False

    def guarded(data: bytes) -> None:
        nonlocal failing
        failing = True
        write(data)
        failing = False

    def refuse(path: str, why: str) -> None:
        raise UsageError(f"is {why} and cannot be uploaded", file=source / path if path else source)

    entries = frames.walk(os.fspath(source), refuse)
    try:
        frames.send(entries, guarded, whole=True)
    except OSError as error:
        if failing:
            raise
        where = f" ({error.filename})" if error.filename and error.filename != os.fspath(source) else ""
        raise UsageError(f"cannot be uploaded: {error.strerror or error}{where}", file=source) from error
    finally:
        entries.close()  # its descriptors go now, not when somebody collects what the exception holds


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
