"""What arrives from a box and is written on the host: a tree that stands at its target whole, or not at all.

The stream is hostile, so all is bounded and checked (``inside/frames.py``), every step goes from a descriptor and
through no link (``inside/beneath.py``), and it is put together in a directory that nobody else may enter, beside the
target.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path

from woodshed.sandbox.native import trees
from woodshed.sandbox.native.inside import frames
from woodshed.sandbox.native.inside.beneath import Beneath

_TOP = "tree"


def land(stream: frames.Frames, target: Path, max_bytes: int) -> None:
    """Write the tree of ``stream`` at ``target``, which must not exist. Blocking.

    Modes are permission bits alone and everything is the caller's own. Raises FileExistsError, OSError (EFBIG where the
    apparent sizes exceed ``max_bytes``, EIO for a stream that is cut off or no stream of ours); ``target`` is not there
    then, nor anything else.
    """
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    beside = target.parent / f".{target.name[:100]}.{uuid.uuid4().hex}"
    beside.mkdir(mode=0o700)
    try:
        _fill(beside, stream, max_bytes)
        _reveal(beside / _TOP, target)
    except frames.Malformed as error:
        raise OSError(errno.EIO, f"what the sandbox sent {error}", str(target)) from None
    finally:
        with suppress(OSError):
            trees.remove(beside)


def _fill(folder: Path, stream: frames.Frames, max_bytes: int) -> None:
    tree = Beneath(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), _TOP, replace=False)
    try:
        left, entries = max_bytes, frames.ENTRIES
        while (frame := stream.next()) is not None:
            kind, mode, path, size, link = frame
            if (entries := entries - 1) < 0:
                raise OSError(errno.EFBIG, f"more than {frames.ENTRIES} entries")
            if kind == "d":
                tree.directory(path, mode)
            elif kind == "l":
                tree.link(path, link)
            elif size > left:
                raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
            else:
                left -= size
                tree.file(path, mode, size, stream.pieces(size))
        tree.finish()
    except FileExistsError:
        raise frames.Malformed("holds a path twice") from None
    finally:
        tree.close()


def _reveal(made: Path, target: Path) -> None:
    """Move ``made`` to ``target`` in one step, unless something stands there: the name is claimed first.

    Renaming then replaces the claim: an empty directory, or an empty file, of ours (rename(2)).
    """
    if not os.path.lexists(made):
        raise OSError(errno.EINVAL, "no file, directory or link")
    is_directory = made.is_dir() and not made.is_symlink()
    mode = made.lstat().st_mode
    if is_directory:
        target.mkdir(mode=0o700)
        made.chmod(0o700)  # to move a directory is to write its "..", which takes permission
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        made.rename(target)
    except BaseException:
        with suppress(OSError):
            target.rmdir() if is_directory else target.unlink()
        raise
    if is_directory:
        target.chmod(mode & 0o777)
