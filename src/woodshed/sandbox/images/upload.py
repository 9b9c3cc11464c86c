"""Uploads as a plan: host files and folders, copied without following links, devices, history or special modes."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from woodshed.errors import UsageError
from woodshed.model import Upload
from woodshed.sandbox.images.rootfs import Bind
from woodshed.sandbox.images.tree import Entry, Plan, landing, place

HISTORY = ".git"
"""Dropped wherever it stands in an upload (a folder, or a worktree's file): no history is reachable in a sandbox."""

_COVERED = ("/dev", "/proc", "/run", "/sys", "/tmp")  # noqa: S108 (places in a sandbox)


def plan_uploads(uploads: Sequence[Upload], lowers: tuple[Path, ...], binds: tuple[Bind, ...]) -> Plan:
    """What must lie over ``lowers``: the uploads in their order; a later file replaces an earlier one.

    Raises UsageError for a source that is missing, unreadable or no file, folder or link; for a target that is
    relative, has ``..``, is covered by a mount, or would replace a link of the image by a folder.
    """
    covered = (*_COVERED, *(bind.target for bind in binds))
    plan: Plan = {}
    for index, upload in enumerate(uploads):
        field = f"uploads[{index}].target"
        target = landing(checked(upload.target, field), lowers)
        if any(PurePosixPath(target).is_relative_to(place_) for place_ in covered):
            raise UsageError(f"{upload.target} lies where a sandbox mounts something of its own", field=field,
                             remedy="Choose a target below /workspace, /opt or /home.")
        if PurePosixPath(upload.source).name == HISTORY:
            raise UsageError("git history is never uploaded", file=upload.source, field=f"uploads[{index}].source",
                             remedy="Upload the files themselves.")
        _add(plan, upload.source, target.lstrip("/"))
    _keep_links(plan, lowers, covered)
    return plan


def checked(path: str, field: str) -> str:
    """``path``, when it is absolute and without ``..`` or NUL; repeated slashes and dots are removed."""
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise UsageError(f"{path!r} is not an absolute path without '..'", field=field,
                         remedy="Write it from the sandbox's root, as in /workspace/data.")
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _add(plan: Plan, source: Path, path: str) -> None:
    try:
        mode = source.lstat().st_mode
    except OSError as error:
        raise UsageError(f"cannot be uploaded: {error.strerror}", file=source) from None
    if stat.S_ISDIR(mode):
        if path and plan.get(path, Entry("directory")).kind != "directory":
            raise UsageError(f"a folder cannot replace the file /{path} uploaded before it", file=source)
        if path:
            place(plan, path, Entry("directory"))
        for name in _names(source):
            if name != HISTORY:
                _add(plan, source / name, f"{path}/{name}".lstrip("/"))
        return
    if not path or plan.get(path, Entry("file")).kind == "directory":
        raise UsageError(f"a file cannot replace the folder /{path}", file=source)
    if stat.S_ISREG(mode):
        # Only the execute bit is kept: a setuid, or a private mode, of the host means nothing inside.
        place(plan, path, Entry("file", 0o755 if mode & stat.S_IXUSR else 0o644, source))
    elif stat.S_ISLNK(mode):
        place(plan, path, Entry("link", 0o777, str(source.readlink())))
    else:
        raise UsageError("only files, folders and links can be uploaded; this is a device, FIFO or socket",
                         file=source, remedy="Remove it.")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (names are all we need)
    except OSError as error:
        raise UsageError(f"cannot be uploaded: {error.strerror}", file=folder) from None


def _keep_links(plan: Plan, lowers: tuple[Path, ...], covered: tuple[str, ...]) -> None:
    """Refuse what would hide the image: a folder in the place of one of its links, anything at a mount point."""
    for path, entry in plan.items():
        if f"/{path}" in covered:
            raise UsageError(f"an upload covers /{path}, where a sandbox mounts something of its own")
        if entry.kind == "directory" and landing(f"/{path}", lowers) != f"/{path}":
            raise UsageError(f"an upload replaces /{path}, a link of the image, by a folder",
                             remedy=f"Upload to {landing(f'/{path}', lowers)} instead.")
