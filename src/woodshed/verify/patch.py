"""How much the changes of an attempt are, in lines: of what a verification judges, against the pristine start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from posixpath import basename, normpath

from woodshed.errors import VerifierFault
from woodshed.interfaces import BlobSink
from woodshed.model import Change, ChangeKind, ChangeSet, Task
from woodshed.model.grade import FilePatch, Patch
from woodshed.verify.filter import filtered
from woodshed.verify.lines import Steps, edited
from woodshed.verify.patterns import compiled
from woodshed.verify.protect import CACHE, START_TEST, TEST, Rules, Touch, beneath
from woodshed.verify.run import Case, policy_of, restorable
from woodshed.verify.start import Start

MAX_BYTES = 5_000_000
"""Of a file that is compared by its lines; what is larger, or no text, counts a line for each ``LINE_BYTES``."""
LINE_BYTES = 80
MAX_FILES = 5000
"""Of files that are compared; an agent may have made fifty thousand. Further ones count by their size."""
_LITTER = compiled(("*.pyc", ".coverage", ".coverage.*", "*.egg-info/", "node_modules/", ".tox/", ".nox/", ".git/"))
"""What tools leave behind beside the caches, and version control: no work, and never judged by its lines."""

Originals = Mapping[str, bytes | None]


class Unknown(Exception):
    """What a file was at the start cannot be told from the host."""


def measured(task: Task, changes: ChangeSet, blobs: BlobSink, originals: Originals | None = None,
             ) -> tuple[Patch, tuple[str, ...]]:
    """The patch, and paths by which tests were weakened: changed or removed ones of the start, new ones that steer.

    ``originals`` are contents of the start by path (None: not there) that the host cannot tell; where they are given,
    nothing is unknown. Raises :class:`Unknown` for a path that the task's folder cannot tell, StoreFault for a blob
    that is gone, and VerifierFault for a protected pattern that is none.
    """
    start = Start.of(task.environment)
    try:
        rules = Rules.of(task, start.exists)
    except ValueError as error:
        raise VerifierFault(f"{task.id}: [woodshed] protected: {error}") from None
    look = _Look(task, start, originals, blobs)
    work = filtered(changes, rules, start, blobs)
    kept = work.changes.changes
    files = [file for change in kept[:MAX_FILES] for file in look.files(change)]
    files += [FilePatch(path=change.path, added=_by_size(change.size), removed=0) for change in kept[MAX_FILES:]
              if change.kind is ChangeKind.FILE]
    weakened = [path for path, touch in work.touched
                if touch is Touch.CONTROL or (touch is Touch.TEST and look.existed(normpath(path)))]
    return Patch(files=tuple(sorted(files, key=lambda file: file.path))), tuple(dict.fromkeys(weakened))


async def patch_of(case: Case, changes: ChangeSet) -> tuple[Patch, tuple[str, ...]]:
    """:func:`measured`, with what the host cannot tell read from a fresh sandbox of the start. Engine faults pass."""
    try:
        return await asyncio.to_thread(measured, case.task, changes, case.blobs)
    except Unknown:
        originals = await _read_originals(case, changes)
    return await asyncio.to_thread(measured, case.task, changes, case.blobs, originals)


async def _read_originals(case: Case, changes: ChangeSet) -> dict[str, bytes | None]:
    """What stood at the start where something is compared now; bounded as the comparison is."""
    found: dict[str, bytes | None] = {}
    work = await restorable(case, changes)
    touched = [Change(path=path, kind=ChangeKind.DELETED) for path, _ in work.touched[:MAX_FILES]]
    sandbox = await case.engine.create(case.task.environment, policy_of(case.task))
    try:
        for change in (*work.changes.changes[:MAX_FILES], *touched):
            path = normpath(change.path)
            if change.kind in (ChangeKind.FILE, ChangeKind.DELETED, ChangeKind.SYMLINK):
                try:
                    found[path] = await sandbox.read(path, max_bytes=MAX_BYTES)
                except FileNotFoundError:
                    found[path] = None
                except OSError:  # a folder, a device, or too large: it stood there
                    found[path] = b""
    finally:
        await sandbox.close()
    return found


class _Look:
    """Files of the start and of the end, side by side."""

    def __init__(self, task: Task, start: Start, originals: Originals | None, blobs: BlobSink) -> None:
        self._start, self._originals, self._blobs = start, originals, blobs
        environment = task.environment
        self._host_knows = environment.setup is None and environment.image.startswith(("host", "dir:"))
        self._workdir = normpath(environment.workdir)
        self._steps = Steps()

    def files(self, change: Change) -> Iterator[FilePatch]:
        """What one change comes to; a folder that was merely made is nothing."""
        path = normpath(change.path)
        relative = path[len(self._workdir) + 1:] if beneath(path, self._workdir) else path[1:]
        if _LITTER.fullmatch(relative) or CACHE.fullmatch(relative):
            return
        test = bool(TEST.fullmatch(relative) or START_TEST.fullmatch(relative) or basename(path) == "conftest.py")
        if change.kind is ChangeKind.FILE:
            before, (added, removed) = self._before(path), self._compared(path, change)
            added += not added and not removed and self._made_executable(path, change)
            if added or removed or before is None:
                yield FilePatch(path=path, added=added, removed=removed, test=test)
        elif change.kind is ChangeKind.SYMLINK:
            yield FilePatch(path=path, added=1, removed=_count(self._before(path)), test=test)
        elif change.kind in (ChangeKind.DELETED, ChangeKind.OPAQUE):
            yield from self._gone(path, test, change.kind)

    def _compared(self, path: str, change: Change) -> tuple[int, int]:
        """Lines (added, removed)."""
        before = self._before(path)
        if change.sha256 is None or change.size > MAX_BYTES:
            return _by_size(change.size), _count(before)
        with self._blobs.open(change.sha256) as stream:
            after = stream.read()
        if b"\0" in after or (before is not None and b"\0" in before):
            return (0, 0) if after == before else (_count(after), _count(before))
        return edited(before or b"", after, self._steps)

    def _made_executable(self, path: str, change: Change) -> bool:
        """Whether only its executable bits differ, which counts as a line. A file of an image is not looked at."""
        found = self._start.host(path)
        return found is not None and bool((found.lstat().st_mode ^ change.mode) & 0o111)

    def _gone(self, path: str, test: bool, kind: ChangeKind) -> Iterator[FilePatch]:
        """A file or whole folder that the start had. What an emptied folder holds now has changes of its own."""
        below = list(self._below(path))
        for inner in below:
            yield FilePatch(path=inner, added=0, removed=_count(self._start.read(inner)), test=test)
        if not below and kind is ChangeKind.DELETED:
            yield FilePatch(path=path, added=0, removed=_count(self._before(path)), test=test)

    def _below(self, path: str) -> Iterator[str]:
        for child, folder in self._start.children(path):
            if folder:
                yield from self._below(child)
            else:
                yield child

    def existed(self, path: str) -> bool:
        """Whether the start had it; what cannot be known counts as yes."""
        if self._start.exists(path):
            return True
        if self._originals is not None and path in self._originals:
            return self._originals[path] is not None
        return not self._host_knows

    def _before(self, path: str) -> bytes | None:
        if self._originals is not None and path in self._originals:
            return self._originals[path]
        if (content := self._start.read(path)) is not None:
            return content
        if self._start.host(path) is not None:
            return b""  # a link, a folder, or too large
        if self._originals is None and not self._host_knows:
            raise Unknown(f"what {path} was at the start is known to its image alone")
        return None


def _count(content: bytes | None) -> int:
    """Lines of a whole content."""
    if not content:
        return 0
    return _by_size(len(content)) if b"\0" in content else len(content.splitlines())


def _by_size(size: int) -> int:
    return -(-size // LINE_BYTES)
