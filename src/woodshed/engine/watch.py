"""Watch: which files of a folder are new or changed, and still. By looking again and again, so that it works on network
disks, too, and after any pause; what the system would tell of changes there is not to be relied upon.

Names and contents are anyone's. Symbolic links are never followed, neither files nor folders; what is no regular file
is not opened; a file that changes while it is read has not been read.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from woodshed.errors import UsageError
from woodshed.model.schedule import Files, Trace

MOST_FILES = 10_000
"""Matching files that a watched folder may hold: each is looked at every time."""
MOST_SEEN, MOST_DEPTH = 100_000, 32
"""Entries that are looked at, matching or not, and folders in one another: more is nobody's intake."""
MOST_BYTES = 4 << 30
"""A larger file never fires: reading it would hold up every other schedule."""
MOST_NAMED = 1000
"""Files of one firing. More of them are the next one's."""
_PATIENCE = 10
"""A batch waits for the last of its files at most so many times ``settle_s``."""
_READ, _READING_S = 1 << 20, 2.0  # a look reads no further file after so long; the next one goes on
_NARROW = "Watch a narrower pattern, or clear the folder out."
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Stamp(NamedTuple):
    """What changes when a file does."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


@dataclass(slots=True)
class _Seen:
    stamp: Stamp
    since: float  # when it was first seen like this
    trace: Trace | None = None


@dataclass(slots=True)
class Watch:
    """What is known of a folder. Lost with the process; files that fired are remembered elsewhere, by content.

    ``steady`` tells seconds that pass; ``going`` is asked now and then, and a look that it denies reads nothing more.
    """

    files: Files
    steady: Callable[[], float] = time.monotonic
    going: Callable[[], bool] = lambda: True
    seen: dict[str, _Seen] = field(default_factory=dict)
    settled: dict[str, _Seen] = field(default_factory=dict)  # read, and not yet taken
    waiting_since: float | None = None

    def look(self) -> list[Trace]:
        """Files that came or changed and have been still for ``settle_s``, at most MOST_NAMED.

        While others still change they are held back for a while, so that a flood is few batches. Raises UsageError
        where the folder is gone or holds too much.
        """
        at = self.steady()
        now = dict(walk(self.files))
        for gone in self.seen.keys() - now.keys():
            self.seen.pop(gone)
            self.settled.pop(gone, None)
        moving = False
        for path, stamp in now.items():
            known = self.seen.get(path)
            if known is None or known.stamp != stamp:
                self.seen[path] = known = _Seen(stamp, at)
                self.settled.pop(path, None)
            moving = moving or at - known.since < self.files.settle_s  # one that cannot be read holds up nothing
            if known.trace is not None or at - known.since < self.files.settle_s or stamp.size > MOST_BYTES:
                continue
            if self.steady() - at > _READING_S or not self.going():
                moving = True
                continue
            known.trace = read(self.files, path, stamp, self.going)
            if known.trace is not None:
                self.settled[path] = known
        return self._batch(at, moving)

    def _batch(self, at: float, moving: bool) -> list[Trace]:
        if not self.settled:
            self.waiting_since = None
            return []
        self.waiting_since = at if self.waiting_since is None else self.waiting_since
        if moving and at - self.waiting_since < _PATIENCE * self.files.settle_s:
            return []
        return [one.trace for _, one in sorted(self.settled.items())[:MOST_NAMED] if one.trace is not None]

    def too_large(self) -> list[str]:
        """Files that never fire."""
        return sorted(path for path, known in self.seen.items() if known.stamp.size > MOST_BYTES)

    def took(self, traces: Sequence[Trace]) -> None:
        """These have been seen to."""
        for trace in traces:
            self.settled.pop(trace.path, None)
            self.waiting_since = None


def existing(files: Files) -> list[Trace]:
    """What the folder holds now, still or not. Raises UsageError."""
    found = (read(files, path, stamp) for path, stamp in walk(files) if stamp.size <= MOST_BYTES)
    return [trace for trace in found if trace is not None]


def walk(files: Files) -> Iterator[tuple[str, Stamp]]:
    """Every matching regular file below the folder, by its relative path. Raises UsageError."""
    pattern = files.pattern.split("/")
    deep = "**" in pattern
    count = seen = 0
    for place, folders, names, opened in _folders(files):
        at = [] if place == "." else place.split("/")
        seen += len(folders) + len(names)
        if seen > MOST_SEEN:
            raise UsageError(f"more than {MOST_SEEN} files and folders", file=files.folder, remedy=_NARROW)
        if len(at) >= MOST_DEPTH:
            folders.clear()
        elif not deep:
            folders[:] = [name for name in folders if _may_lead(pattern, [*at, name])]
        for name in names:
            if not _matches(pattern, [*at, name]):
                continue
            try:
                status = os.stat(name, dir_fd=opened, follow_symlinks=False)
            except OSError:
                continue  # gone, or not ours to see
            if stat.S_ISREG(status.st_mode):
                count += 1
                if count > MOST_FILES:
                    raise UsageError(f"more than {MOST_FILES} files match", file=files.folder, remedy=_NARROW)
                yield "/".join([*at, name]), _stamp(status)


def _folders(files: Files) -> Iterator[tuple[str, list[str], list[str], int]]:
    def refused(error: OSError) -> None:
        if error.filename in (".", files.folder):
            raise error

    try:
        top = os.open(files.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for place, folders, names, opened in os.fwalk(".", dir_fd=top, onerror=refused, follow_symlinks=False):
                yield os.path.normpath(place), folders, names, opened
        finally:
            os.close(top)
    except OSError as error:
        raise UsageError(f"cannot be watched: {error.strerror}", file=files.folder,
                         remedy="Mend the folder, or remove the schedule.") from None


def read(files: Files, path: str, seen: Stamp, going: Callable[[], bool] = lambda: True) -> Trace | None:
    """What the file holds; None where it is no longer what was seen, cannot be read, or is not to be read any more.

    Its folders are opened one by one below the watched one: a link in the place of any of them leads nowhere.
    """
    *folders, name = path.split("/")
    opened = -1
    try:
        opened = os.open(files.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
            os.close(opened)
            opened = inner
        with os.fdopen(os.open(name, _OPEN, dir_fd=opened), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or _stamp(status) != seen:
                return None
            held = hashlib.sha256()
            while part := file.read(_READ):
                if not going():
                    return None
                held.update(part)
            if _stamp(os.fstat(file.fileno())) != seen:
                return None
    except OSError:
        return None
    finally:
        if opened >= 0:
            os.close(opened)
    return Trace(path=path, sha256=held.hexdigest(), size_bytes=seen.size)


def parse(glob: str, settle_s: float) -> Files:
    """The folder and the pattern that ``glob`` means; a folder alone means all files in it. Raises UsageError."""
    remedy = "Say a folder, 'folder/*.json', or 'folder/**/*.json'."
    path = Path(glob).expanduser()
    if path.is_dir():
        path = path / "*"
    parts = path.parts
    first = next((n for n, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts) - 1)
    folder = Path(*parts[:first]) if first else Path()
    pattern = parts[first:]
    if not pattern or ".." in pattern or not folder.is_dir():
        raise UsageError(f"'{folder}' is no folder to watch", field="files", remedy=remedy)
    return Files(folder=str(folder.resolve()), pattern="/".join(pattern), settle_s=settle_s)


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a path is meant; names that begin with a dot only by patterns that do (half-copied files have them)."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        inner = bool(parts) and not parts[0].startswith(".") and _matches(pattern, parts[1:])
        return inner or _matches(pattern[1:], parts)
    return bool(parts) and _fits(pattern[0], parts[0]) and _matches(pattern[1:], parts[1:])


def _may_lead(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether matching files may lie in this folder, of a pattern without ``**``."""
    return len(parts) < len(pattern) and all(map(_fits, pattern, parts))


def _fits(pattern: str, name: str) -> bool:
    return (pattern.startswith(".") or not name.startswith(".")) and fnmatch.fnmatchcase(name, pattern)
