"""The folder that a Dockerfile copies from: what a source names there, its digest, and its way into a sandbox.

A Dockerfile may come from an enemy, and so may the folder: nothing outside it is ever read, whatever its links say.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from woodshed.dockerfile import Ignored, pattern
from woodshed.errors import ImageFault, UsageError
from woodshed.sandbox.images.inflate import CHUNK, inflate

Write = Callable[[bytes], None]
_MAGICS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")


@dataclass(frozen=True, slots=True)
class Item:
    """One file, folder or link on its way: its name at the destination, and where it lies or what it holds."""

    name: str
    path: Path | None = None
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Ownership:
    """What copied files become: of whom, and with which mode (None: as they are)."""

    uid: int = 0
    gid: int = 0
    mode: int | None = None


class Context:
    """The folder ``root`` without what ``ignored`` leaves out."""

    def __init__(self, root: Path, ignored: Ignored) -> None:
        self.root, self._ignored = Path(os.path.realpath(root)), ignored

    def sources(self, text: str) -> list[str]:
        """The paths, relative to the context, that one source of COPY names. Raises UsageError where there is none."""
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise UsageError(f"{text!r} leads out of the context")
        clean = "/".join(parts)
        if any(mark in clean for mark in "*?["):
            found = list(self._matching(clean))
        else:
            found = [clean] if not clean or (clean not in self._ignored and self._lies(clean)) else []
            if not found and clean and self._holds_kept(clean):
                found = [clean]
        if not found:
            raise UsageError(f"{text!r} is not in the context (or .dockerignore leaves it out)")
        return found

    def _matching(self, text: str) -> Iterator[str]:
        try:
            rules = [pattern(part) for part in text.split("/")]
        except ValueError as error:
            raise UsageError(str(error)) from None
        found = [""]
        for rule in rules:
            found = [f"{above}/{name}".lstrip("/") for above in found for name in self._names(above)
                     if rule.fullmatch(name)]
        yield from (path for path in found if path not in self._ignored or self._holds_kept(path))

    def _holds_kept(self, path: str) -> bool:
        return self._ignored.keeps_again and (self.root / path).is_dir() and bool(list(self.items(path)))

    def _lies(self, path: str) -> bool:
        return os.path.lexists(self.root / path)

    def _names(self, path: str) -> list[str]:
        real = self.real(path)
        try:
            return sorted(os.listdir(real)) if real.is_dir() else []  # noqa: PTH208 (names are all we need)
        except OSError:
            return []

    def real(self, path: str) -> Path:
        """Where ``path`` lies, links followed. Raises UsageError for what leads out of the context."""
        real = Path(os.path.realpath(self.root / path))
        if not real.is_relative_to(self.root):
            raise UsageError(f"{path!r} is a link out of the context")
        return real

    def items(self, source: str) -> Iterator[Item]:
        """What copying ``source`` copies: of a folder what is in it, of a link what it leads to."""
        real = self.real(source)
        if not real.is_dir():
            yield Item(Path(source).name, real)
            return
        inner = str(real.relative_to(self.root)) if real != self.root else ""
        yield from self._below(real, inner, "")

    def _below(self, folder: Path, inner: str, name: str) -> Iterator[Item]:
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 (names are all we need)
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}", file=folder) from None
        for one in names:
            path = f"{inner}/{one}".lstrip("/")
            out = path in self._ignored
            below = (folder / one).is_dir() and not (folder / one).is_symlink()
            if out and not (below and self._ignored.keeps_again):
                continue
            inside = list(self._below(folder / one, path, f"{name}/{one}".lstrip("/"))) if below else []
            if not out or inside:
                yield Item(f"{name}/{one}".lstrip("/"), folder / one)
                yield from inside


def digest(items: Iterable[Item]) -> str:
    """Names, kinds, modes and contents of ``items``; times do not count."""
    total = hashlib.sha256()
    for item in items:
        _, kind, mode, target, opened = _look(item)
        inner = hashlib.sha256()
        if opened is not None:
            with opened:
                while data := opened.read(CHUNK):
                    inner.update(data)
        total.update(b"%s\0%c\0%o\0%s\0%s\n" % (os.fsencode(item.name), kind, mode, os.fsencode(target),
                                               inner.digest()))
    return total.hexdigest()


def _look(item: Item) -> tuple[os.stat_result | None, bytes, int, str, BinaryIO | None]:
    """What an item is: its status, kind (``f``, ``d``, ``l``), mode, a link's target, a file opened."""
    if item.path is None:
        return None, b"f", 0o644, "", io.BytesIO(item.content)
    try:
        info = item.path.lstat()
        if stat.S_ISDIR(info.st_mode):
            return info, b"d", stat.S_IMODE(info.st_mode), "", None
        if stat.S_ISLNK(info.st_mode):
            return info, b"l", 0o777, str(item.path.readlink()), None
        # A FIFO must not hang us, nor a link swapped in lead us away.
        fd = os.open(item.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", file=item.path) from None
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise UsageError("only files, folders and links can be copied", file=item.path, remedy="Leave it out.")
    return info, b"f", stat.S_IMODE(info.st_mode), "", os.fdopen(fd, "rb")


def feed(items: Iterable[Item], owner: Ownership, wanted: str, write: Write) -> None:
    """Write ``items`` as a tar stream; ``wanted`` is the digest they had. Raises ImageFault where they changed."""
    total = hashlib.sha256()
    with tarfile.open(fileobj=cast(Any, _Sink(write)), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for item in items:
            info, kind, mode, target, opened = _look(item)
            entry = tarfile.TarInfo(item.name)
            entry.type = {b"f": tarfile.REGTYPE, b"d": tarfile.DIRTYPE, b"l": tarfile.SYMTYPE}[kind]
            entry.uid, entry.gid, entry.linkname = owner.uid, owner.gid, target
            entry.mode = mode if owner.mode is None or kind == b"l" else owner.mode
            entry.mtime = int(info.st_mtime) if info is not None else 0
            inner = hashlib.sha256()
            if opened is None:
                archive.addfile(entry)
            else:
                with opened:
                    entry.size = info.st_size if info is not None else len(item.content)
                    archive.addfile(entry, cast(Any, _Hashed(opened, inner)))
            total.update(b"%s\0%c\0%o\0%s\0%s\n" % (os.fsencode(item.name), kind, mode, os.fsencode(target),
                                                   inner.digest()))
    if total.hexdigest() != wanted:
        raise ImageFault("a file changed while it was copied; build again")


class _Sink:
    def __init__(self, write: Write) -> None:
        self.write = write


class _Hashed:
    def __init__(self, file: BinaryIO, seen: Any) -> None:
        self._file, self._seen = file, seen

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._seen.update(data)
        return data


def is_archive(path: Path) -> bool:
    """Whether ADD unpacks a file: a tar, plain or compressed with gzip, bzip2, xz or zstd."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = b""
            for data in inflate(iter(lambda: file.read(4096), b""), str(path), more=True):
                head += data
                if len(head) >= 512:
                    break
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except (ImageFault, OSError, tarfile.TarError):
        return False
    return True


def extract(path: Path, most: int, write: Write) -> None:
    """Write the archive at ``path`` as a plain tar stream. Raises ImageFault for one of more than ``most`` bytes."""
    total = 0
    with path.open("rb") as file:
        for data in inflate(iter(lambda: file.read(CHUNK), b""), str(path), more=True):
            total += len(data)
            if total > most:
                raise ImageFault(f"{path} unpacks to more than {most >> 20} MB (setting image_mb)")
            write(data)
