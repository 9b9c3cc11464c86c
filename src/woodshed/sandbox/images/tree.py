"""A tree of files as data: planned, named by the sha256 of its content, and written out."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from woodshed.errors import UsageError
from woodshed.sandbox.images.view import View

EPOCH_S = 1_577_836_800
"""Every planned file has this mtime (2020-01-01): equal content gives equal layers. Zip refuses times before 1980."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a plan. ``content`` is a file's bytes or its host path; of a link, its target.

    ``owner``, a user and a group, is that of a directory which covers one of an image; else root's.
    """

    kind: Literal["directory", "file", "link"]
    mode: int = 0o755
    content: bytes | Path | str = b""
    owner: tuple[int, int] = (0, 0)


Plan = dict[str, Entry]
"""Entries by path relative to the root (``etc/passwd``), without ``.`` and ``..``."""


def place(plan: Plan, path: str, entry: Entry) -> None:
    """Put ``entry`` at ``path``, its parents as plain directories where they are not planned.

    Raises UsageError where a parent is planned as something else than a directory.
    """
    parents = [str(parent) for parent in PurePosixPath(path).parents][-2::-1]
    for parent in parents:
        if plan.setdefault(parent, Entry("directory")).kind != "directory":
            raise UsageError(f"/{path} cannot be placed below /{parent}, which is no directory")
    plan[path] = entry


def digest(plan: Plan, root: Path | None = None) -> str:
    """The sha256 in hex of the whole plan; with ``root`` (an empty directory) the plan is also written there.

    What is hashed is what is read, so the digest of a written tree is true even if a source changed meanwhile.
    Raises UsageError for a source that is not a readable regular file, OSError for trouble in ``root``.
    """
    total = hashlib.sha256()
    for path in sorted(plan):
        entry = plan[path]
        target = root / path if root else None
        if entry.kind == "file":
            body = _file(entry, target)
        elif entry.kind == "link":
            body = _link(entry, target)
        else:
            body = "" if entry.owner == (0, 0) else ":".join(map(str, entry.owner))
            if target:
                target.mkdir(mode=0o755, exist_ok=True)
        total.update(b"%s\0%o\0%s\0%s\n" % (entry.kind.encode(), entry.mode, os.fsencode(path), os.fsencode(body)))
    if root:
        _settle(plan, root)
    return total.hexdigest()


def _file(entry: Entry, target: Path | None) -> str:
    seen = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    out = os.open(target, flags, 0o600) if target else None
    try:
        for chunk in _chunks(entry.content):
            seen.update(chunk)
            while out is not None and chunk:
                chunk = chunk[os.write(out, chunk):]
        if out is not None:
            os.fchmod(out, entry.mode)
    finally:
        if out is not None:
            os.close(out)
    return seen.hexdigest()


def _chunks(content: bytes | Path | str) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    try:
        # O_NONBLOCK: a FIFO swapped in after planning must not hang us.
        source = os.open(content, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", file=content) from None
    with os.fdopen(source, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise UsageError("is not a regular file", file=content)
        while chunk := file.read(_CHUNK):
            yield chunk


def _link(entry: Entry, target: Path | None) -> str:
    to = str(entry.content)
    if target:
        target.symlink_to(to)
    return to


def _settle(plan: Plan, root: Path) -> None:
    """Modes and times of directories last: writing below them needs one and changes the other."""
    for path in sorted(plan, reverse=True):
        target = root / path
        if plan[path].kind == "directory":
            if plan[path].owner != (0, 0) and os.geteuid() == 0:
                os.chown(target, *plan[path].owner)
            target.chmod(plan[path].mode)
        os.utime(target, (EPOCH_S, EPOCH_S), follow_symlinks=False)
    root.chmod(0o755)
    os.utime(root, (EPOCH_S, EPOCH_S))


def landing(path: str, roots: tuple[Path, ...]) -> str:
    """Where absolute ``path`` leads in an overlay of ``roots`` (topmost first), its links followed inside it.

    The last component need not exist. Raises UsageError for a loop of links.
    """
    return View(roots).land(path)
