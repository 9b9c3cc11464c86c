"""A task's start and its reference's end, as contents by path; and the change sets of end states between them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath

from woodshed.interfaces import BlobSink, SandboxEngine
from woodshed.model import Change, ChangeKind, ChangeSet, SandboxPolicy, Task

FILE_BYTES = 1_000_000
"""Of one content that is looked at; a larger one is data, and no author reads a mutant of it."""
TREE_BYTES = 200_000_000
_VERSIONS = frozenset({".git", ".hg", ".svn", ".bzr", ".jj"})


@dataclass(frozen=True, slots=True)
class Tree:
    """The files below the working folder at the start, and the names of those that can be executed.

    ``folders`` are host folders that hold them, history and all.
    """

    files: Mapping[str, bytes]
    folders: tuple[Path, ...]
    executable: frozenset[str] = frozenset()


@asynccontextmanager
async def start_tree(task: Task, engine: SandboxEngine) -> AsyncIterator[Tree]:
    """The start of ``task``: read where its uploads lie, or fetched from a sandbox where an image brings files.

    Raises what the engine raises.
    """
    workdir = normpath(task.environment.workdir)
    uploads = [upload for upload in task.environment.uploads if normpath(upload.target) == workdir]
    if task.environment.image == "host":
        folders = tuple(upload.source for upload in uploads)
        yield files_of(folders)
        return
    with tempfile.TemporaryDirectory(prefix="woodshed-start-") as scratch:
        place = Path(scratch) / "tree"
        sandbox = await engine.create(task.environment, SandboxPolicy(limits=task.environment.limits))
        try:
            await sandbox.download(workdir, place, max_bytes=TREE_BYTES)
        finally:
            await sandbox.close()
        yield files_of((place,))


def files_of(folders: tuple[Path, ...]) -> Tree:
    """What these folders of the host hold, the later over the earlier."""
    files: dict[str, bytes] = {}
    executable = set()
    for name, path in _read(folders):
        files[name] = path.read_bytes()
        if path.stat().st_mode & 0o100:
            executable.add(name)
    return Tree(files, folders, frozenset(executable))


def _read(folders: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """Regular files but version control's, no link followed, bounded in all."""
    left = TREE_BYTES
    for folder in folders:
        for place, below, names in os.walk(folder):
            below[:] = sorted(name for name in below if name not in _VERSIONS and not Path(place, name).is_symlink())
            for name in sorted(names):
                path = Path(place, name)
                if path.is_symlink() or not path.is_file() or (size := path.stat().st_size) > min(FILE_BYTES, left):
                    continue
                left -= size
                yield path.relative_to(folder).as_posix(), path


def solved_files(
    changes: ChangeSet, start: Mapping[str, bytes], blobs: BlobSink, workdir: str
) -> dict[str, bytes | None]:
    """What ``changes`` make of the files below ``workdir``, by relative path; None deletes. Large ones are left out."""
    stem = normpath(workdir).rstrip("/") + "/"
    solved: dict[str, bytes | None] = {}
    for change in changes.changes:
        if not change.path.startswith(stem):
            continue
        name = change.path.removeprefix(stem)
        if change.kind is not ChangeKind.DIRECTORY:
            gone = [path for path in start if path == name or path.startswith(name + "/")]
            solved |= dict.fromkeys(gone)
        if change.kind is ChangeKind.FILE and change.sha256 is not None and change.size <= FILE_BYTES:
            with blobs.open(change.sha256) as content:
                solved[name] = content.read()
        elif change.kind is ChangeKind.FILE:
            solved.pop(name, None)
    return solved


def after(start: Tree, solved: Mapping[str, bytes | None], late: Tree) -> Tree:
    """``start`` with ``solved`` laid over it, and ``late`` over both."""
    files = {name: content for name, content in {**start.files, **solved, **late.files}.items() if content is not None}
    return Tree(files, start.folders, (start.executable | late.executable) & frozenset(files))


@dataclass(frozen=True, slots=True)
class Ends:
    """What end states are made of: the start, and the reference's changes as they may be restored.

    Of one step among several, ``start`` is how the steps before left the files, and ``before`` the changes (by path) to
    the task's own start that did it; ``reference`` goes from the task's own start, too.
    """

    start: Tree
    reference: ChangeSet
    solved: Mapping[str, bytes | None]
    workdir: str
    blobs: BlobSink
    before: Mapping[str, Change] = field(default_factory=dict)
    own: frozenset[str] | None = None

    def changes(self, files: Mapping[str, bytes | None], *, upon_reference: bool) -> ChangeSet:
        """The change set that makes ``files`` of the start (paths not named stay as they are; None deletes).

        With ``upon_reference`` all else that the reference did (links, folders, modes, other places) is in it too.
        """
        stem = normpath(self.workdir).rstrip("/") + "/"
        base = {change.path: change for change in self.reference.changes} if upon_reference else dict(self.before)
        modes = {stem + name: 0o755 for name in self.start.executable}
        modes |= {change.path: change.mode for change in self.reference.changes if change.kind is ChangeKind.FILE}
        start = self.start.files
        for name in self.solved:
            if upon_reference and files.get(name, start.get(name)) != self.solved[name]:
                self._undo(base, stem + name)
        for name, content in files.items():
            path = stem + name
            if upon_reference and name in self.solved and self.solved[name] == content:
                continue
            if content is not None:
                base[path] = Change(path=path, kind=ChangeKind.FILE, mode=modes.get(path, 0o644), size=len(content),
                                    sha256=self.blobs.put(content))
            elif name in (start if self.own is None else self.own):
                base[path] = Change(path=path, kind=ChangeKind.DELETED)
            else:
                base.pop(path, None)
        for name in self.solved:
            if upon_reference and name not in files and name in start:
                self._set_back(base, stem, name, modes)
        return self.reference.model_copy(update={"changes": tuple(base[path] for path in sorted(base))})

    def _undo(self, base: dict[str, Change], path: str) -> None:
        """What the reference did to ``path`` is out of ``base``; what was done before it is in."""
        base.pop(path, None)
        if path in self.before:
            base[path] = self.before[path]

    def _set_back(self, base: dict[str, Change], stem: str, name: str, modes: Mapping[str, int]) -> None:
        """Where the reference removed or replaced a folder above ``name``, the file is to stand there again."""
        above = [stem + name[:at] for at, letter in enumerate(name) if letter == "/"]
        hidden = [path for path in above if path in base and base[path].kind is not ChangeKind.DIRECTORY]
        for path in hidden:
            base[path] = Change(path=path, kind=ChangeKind.OPAQUE, mode=0o755)
        if hidden:
            content = self.start.files[name]
            base[stem + name] = Change(path=stem + name, kind=ChangeKind.FILE, mode=modes.get(stem + name, 0o644),
                                       size=len(content), sha256=self.blobs.put(content))

    def left_out(self) -> Iterator[tuple[Change, ChangeSet]]:
        """Each change of the reference that is no file's content, and the end state without it: links, folders, modes.

        A folder that other changes need, and what lies outside the working folder, are not left out.
        """
        stem = normpath(self.workdir).rstrip("/") + "/"
        changes = self.reference.changes
        for change in changes:
            name = change.path.removeprefix(stem)
            if not change.path.startswith(stem) or self.solved.get(name) != self.start.files.get(name):
                continue
            needed = any(other.path.startswith(change.path + "/") for other in changes)
            if not needed and change.kind is not ChangeKind.OPAQUE and self.before.get(change.path) != change:
                base = {other.path: other for other in changes}
                self._undo(base, change.path)
                yield change, self.reference.model_copy(update={"changes": tuple(base[path] for path in sorted(base))})
