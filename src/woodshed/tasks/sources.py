"""Where the source of a row's repository lies on this machine: a clone, or an archive of one commit."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.pypi import extract
from woodshed.tasks.git import Repository, is_repository, opened

REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99})?")
COMMIT = re.compile(r"[0-9a-f]{7,64}")
_ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")


@dataclass(slots=True)
class Sources:
    """``folder`` holds clones (OWNER/NAME, OWNER__NAME or NAME, also bare) and archives (the same names, -COMMIT,

    packed), or is itself the one clone there is. Used as a context manager; clones are opened once.
    """

    folder: Path
    _stack: ExitStack = field(default_factory=ExitStack)
    _open: dict[Path, Repository] = field(default_factory=dict)

    def __enter__(self) -> Sources:
        if not self.folder.is_dir():
            raise UsageError("no such folder", file=self.folder, field="--repo-dir", remedy="Name where clones lie.")
        return self

    def __exit__(self, *args: object) -> None:
        self._stack.close()

    def clone(self, repo: str) -> Repository | None:
        """The clone of ``repo``; None where there is none. Raises UsageError for one that cannot be read."""
        for place in self._places(repo):
            if is_repository(place):
                if place not in self._open:
                    self._open[place] = self._stack.enter_context(opened(place))
                return self._open[place]
        return None

    def archive(self, repo: str, commit: str) -> Path | None:
        """The archive of ``repo`` at ``commit``; None where there is none."""
        for name in _names(repo):
            for ending in _ARCHIVES:
                place = self.folder / f"{name}-{commit}{ending}"
                if place.is_file():
                    return place
        return None

    def _places(self, repo: str) -> Iterator[Path]:
        for name in _names(repo):
            yield self.folder / name
            yield self.folder / f"{name}.git"
        yield self.folder

    @contextmanager
    def tree(self, repo: str, commit: str) -> Iterator[tuple[Path, str]]:
        """(a temporary folder with the files of ``commit``, its full id). No history, no link that leaves it.

        Raises UsageError where neither a clone nor an archive has it.
        """
        if not REPO.fullmatch(repo) or ".." in repo:
            raise UsageError(f"{repo[:80]!r} is no repository's name", field="repo", remedy="Write owner/name.")
        with tempfile.TemporaryDirectory(prefix="woodshed-source-") as temporary:
            root = Path(temporary, "tree")
            clone = self.clone(repo)
            if clone is not None:
                commit = clone.commit(commit)
                root.mkdir()
                clone.export(commit, root)
            elif COMMIT.fullmatch(commit) and (archive := self.archive(repo, commit)) is not None:
                _unpack(archive, root)
            else:
                where, packed = _names(repo)[0], _names(repo)[-1]
                raise UsageError(f"neither a clone of {repo} nor an archive of its commit {commit[:40]}",
                                 file=self.folder, field="--repo-dir",
                                 remedy=f"Clone it to {where}, or put {packed}-COMMIT.tar.gz there.")
            without_stray_links(root)
            yield root, commit


def _names(repo: str) -> list[str]:
    """owner/name, owner__name, name."""
    return list(dict.fromkeys((repo, repo.replace("/", "__"), repo.rpartition("/")[2])))


def _unpack(archive: Path, root: Path) -> None:
    extract(archive, root)
    for history in root.rglob(".git"):
        raise UsageError(f"holds version control data ({history.relative_to(root)})", file=archive,
                         remedy="Pack the files alone (git archive).")
    inner = list(root.iterdir())
    if len(inner) == 1 and inner[0].is_dir() and not inner[0].is_symlink():  # the top folder of a hosting site
        moved = root.with_name("inner")
        inner[0].rename(moved)
        root.rmdir()
        moved.rename(root)


def without_stray_links(root: Path) -> list[str]:
    """Links that lead out of ``root``, also by way of others, are removed until none is left; their paths."""
    real, dropped = root.resolve(), list[str]()
    while stray := [path for path in _links(root) if path.readlink().is_absolute() or not _inside(path, real)]:
        for path in stray:
            path.unlink()
            dropped.append(str(path.relative_to(root)))
    return dropped


def _links(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (path for name in (*folders, *files) if (path := Path(folder, name)).is_symlink())


def _inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a loop of links
        return False


def twin(tree: Path, into: Path) -> Path:
    """``into`` has the files of ``tree``, by hard links: to be changed by what replaces files whole, as git does."""
    shutil.copytree(tree, into, symlinks=True, copy_function=os.link)
    return into


def differing(before: Path, after: Path) -> tuple[list[str], list[str]]:
    """(paths that are new or other in ``after``, a :func:`twin` of ``before``, and paths that are gone from it)."""
    old, new = _identities(before), _identities(after)
    return sorted(path for path in new if old.get(path) != new[path]), sorted(old.keys() - new.keys())


def _identities(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path.relative_to(root))] = path.readlink()
            elif name in files:
                info = path.stat()
                found[str(path.relative_to(root))] = (info.st_ino, info.st_mode)
    return found
