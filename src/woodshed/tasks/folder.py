"""A task folder is walked once, safely: no special files, no links that leave it, bounded, and digested on the way.

The digest is sha256 over every entry in order of its path: kind, path, the executable bit (all that version control
keeps of a mode) and the content. Left out are ``calibration.json`` at the top and every ``__pycache__``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from woodshed.errors import UsageError

MAX_BYTES = 2 * 1024**3
MAX_FILES = 100_000
_CHUNK = 1 << 20
_HISTORY = frozenset({".git", ".hg", ".svn", ".bzr", ".jj"})


class HistoryLeft(UsageError):
    """A workspace that holds version control's data: who solves the task could look the solution up."""


_NONE_OF_IT = frozenset({b"calibration.json", b".ruff_cache", b".mypy_cache", b".pytest_cache"})
"""At the top of a folder: the record about the task, and what tools leave that were run in it."""


def digest(folder: Path) -> str:
    """The sha256 (hex) of ``folder``'s files. Raises UsageError for what a task folder must not hold."""
    total = hashlib.sha256()
    size = count = 0
    for entry in _walk(folder, b""):
        name, path, kind, bytes_here, executable = entry
        size, count = size + bytes_here, count + 1
        if size > MAX_BYTES or count > MAX_FILES:
            raise UsageError(f"the task folder is larger than {MAX_BYTES >> 30} GB or {MAX_FILES} files", file=folder,
                             remedy="Fetch large data in the image, or leave out build products.")
        content = _content(folder, path, kind)
        for part in (kind.encode(), name, b"x" if executable else b"-", content):
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def _walk(folder: Path, prefix: bytes) -> Iterator[tuple[bytes, str, str, int, bool]]:
    """(relative path, path, kind, size, executable) of everything below, sorted; links are not followed."""
    pending = [(prefix, str(folder))]
    while pending:
        prefix, path = pending.pop()
        below = []
        for entry in sorted(os.scandir(path), key=lambda e: os.fsencode(e.name)):
            name = prefix + os.fsencode(entry.name)
            if entry.name == "__pycache__" or name in _NONE_OF_IT:
                continue
            info = entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                yield name, entry.path, "link", 0, False
            elif entry.is_dir(follow_symlinks=False):
                below.append((name + b"/", entry.path))
                yield name, entry.path, "directory", 0, False
            elif entry.is_file(follow_symlinks=False):
                yield name, entry.path, "file", info.st_size, bool(info.st_mode & 0o100)
            else:
                raise UsageError("a task folder holds files, folders and links only, and this is none of them",
                                 file=entry.path, remedy="Remove it.")
        pending.extend(reversed(below))


def _content(folder: Path, path: str, kind: str) -> bytes:
    """Digest of a file's bytes, a link's target, or nothing. Raises UsageError for a link that leaves the folder."""
    if kind == "directory":
        return b""
    if kind == "link":
        _stays(folder, path, "the task folder")
        return os.fsencode(os.readlink(path))  # noqa: PTH115 - Path would normalise it, and every byte counts
    inner = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(_CHUNK):
            inner.update(chunk)
    return inner.digest()


def _stays(root: Path, path: str, what: str) -> None:
    target = Path(path).readlink()
    if target.is_absolute() or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise UsageError(f"a symlink that leaves {what} (to {str(target)!r})", file=path,
                         remedy="Copy the file in its place.")


def check_part(root: Path, what: str) -> None:
    """``root`` (a part that is copied into a sandbox) has no link that leaves it. Raises UsageError."""
    for _, path, kind, _, _ in _walk(root, b"/"):
        if kind == "link":
            _stays(root, path, what)


def check_history(workspace: Path) -> None:
    """No version control data below ``workspace``: it may hold the solution. Raises HistoryLeft."""
    for name, path, kind, _, _ in _walk(workspace, b"/"):
        last = os.fsdecode(name.rpartition(b"/")[2])
        bare = kind == "directory" and last == "objects" and all(
            (Path(path).parent / sibling).exists() for sibling in ("HEAD", "refs")
        )
        if last.lower() in _HISTORY or bare:
            raise HistoryLeft("version control data in the workspace: its history may hold the solution", file=path,
                             remedy="Remove it; export the files alone (git archive).")
