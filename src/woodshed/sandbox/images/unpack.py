"""A layer of an image as a directory of the layer store: unpacked inside a sandbox that holds nothing else.

The sandbox runs no program of any image; its own first process reads the archive (``native/inside/layering.py``). What
it changed is moved out as it is, and the marks of deletion, which only the host can set, are set through descriptors.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from woodshed.errors import EnvironmentFault, ImageFault, SandboxDied, UsageError
from woodshed.interfaces import SandboxEngine
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.native import layering, trees
from woodshed.sandbox.native.below import OPAQUE
from woodshed.sandbox.native.box import NativeSandbox
from woodshed.sandbox.native.inside import frames

EMPTY = "scratch"
"""The image without any file: mount points alone."""
MOST_FILES = 2_000_000
_PLACE = "layer"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def unpack_layer(
    engine: SandboxEngine, feed: Callable[[frames.Write], None], into: Path, *, most: int, name: str
) -> tuple[str, ...]:
    """Unpack the plain tar that ``feed`` writes as ``into``, an empty directory; notes on what was left out.

    Raises ImageFault for the archive, EnvironmentFault for the sandbox or the host.
    """
    limits = Limits(disk_mb=(most >> 20) + 1, files=MOST_FILES)
    spec = EnvironmentSpec(image=EMPTY, workdir=f"/{_PLACE}", limits=limits)
    box = native(await engine.create(spec, SandboxPolicy(limits=limits)))
    try:
        try:
            told = await layering.unpack_layer(box.link, feed, f"/{_PLACE}", owners=box.world.privileged,
                                               max_bytes=most)
        except UsageError as error:
            raise ImageFault(f"{name}: a layer {error.message}") from None
        except SandboxDied as error:
            raise EnvironmentFault(f"{name}: unpacking a layer ended its sandbox: {error}") from error
        except OSError as error:
            raise EnvironmentFault(f"{name}: a layer could not be unpacked: {error}") from error
        take(box, _PLACE, into)
    finally:
        await box.close()
    _mark(into, told, name)
    return told.notes


def native(sandbox: object) -> NativeSandbox:
    """``sandbox``, whose changes lie in a directory. Raises EnvironmentFault for one of another engine."""
    if not isinstance(sandbox, NativeSandbox):
        raise EnvironmentFault("images are unpacked and built in native sandboxes only")
    return sandbox


def take(box: NativeSandbox, path: str, into: Path) -> None:
    """Move what the box has changed at ``path`` (relative; empty for all) to ``into``, an empty directory.

    Nothing may run in the box; it is of no use afterwards. Raises EnvironmentFault.
    """
    source = box.world.folder / "u" / path if path else box.world.folder / "u"
    try:
        mode = stat.S_IMODE(source.stat().st_mode)
        source.chmod(0o755)  # an ordinary user can move only a directory it may write
        into.rmdir()
        source.rename(into)
        into.chmod(mode)
    except OSError as error:
        raise EnvironmentFault(f"the layer could not be moved to {into.parent}: {error}") from error


def _mark(layer: Path, told: layering.Unpacked, name: str) -> None:
    """Set what the archive deletes of the layers below: overlayfs' marks. Raises ImageFault for what cannot be."""
    top = os.open(layer, _DIRECTORY)
    try:
        for path in told.whiteouts:
            parent, entry = _apart(top, path, name)
            try:
                _delete(parent, entry)
            finally:
                os.close(parent)
        for path in told.opaque:
            fd = _open(top, path or ".", name)
            try:
                with _writable(fd):
                    os.setxattr(fd, OPAQUE, b"y")
            finally:
                os.close(fd)
        os.fchmod(top, told.mode)
    except OSError as error:
        raise EnvironmentFault(f"{name}: a layer's deletions could not be set: {error}") from error
    finally:
        os.close(top)


def _delete(parent: int, entry: str) -> None:
    with _writable(parent):
        try:
            os.mknod(entry, stat.S_IFCHR, 0, dir_fd=parent)
        except FileExistsError:
            # The layer has both: what it holds stands, and a directory of it hides the one below.
            with suppress(OSError):
                fd = os.open(entry, _DIRECTORY, dir_fd=parent)
                try:
                    with _writable(fd):
                        os.setxattr(fd, OPAQUE, b"y")
                finally:
                    os.close(fd)


class _writable:  # noqa: N801 (a context, used like a function)
    """For so long, an ordinary user may write the directory whatever its mode."""

    def __init__(self, fd: int) -> None:
        self._fd, self._mode = fd, stat.S_IMODE(os.fstat(fd).st_mode)

    def __enter__(self) -> None:
        if os.geteuid() and self._mode & 0o700 != 0o700:
            os.fchmod(self._fd, self._mode | 0o700)

    def __exit__(self, *_: object) -> None:
        if os.geteuid() and self._mode & 0o700 != 0o700:
            os.fchmod(self._fd, self._mode)


def _apart(top: int, path: str, name: str) -> tuple[int, str]:
    above, _, entry = path.rpartition("/")
    if entry in ("", ".", ".."):
        raise ImageFault(f"{name}: a layer deletes {path!r}, which is nothing")
    return _open(top, above or ".", name), entry


def _open(top: int, path: str, name: str) -> int:
    """A directory of the layer, through no link. Raises ImageFault."""
    try:
        return trees.open_beneath(top, path, _DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.EXDEV):
            raise ImageFault(f"{name}: a layer deletes something in {path!r}, which is no directory of it") from None
        raise
