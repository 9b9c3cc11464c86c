"""Wheels, zips and tarballs as hostile input: opened, listed and extracted, never trusted.

What could reach outside the target or exhaust the machine is refused: absolute names, ``..``, links that leave the
root or stand in the way of a later member, devices and FIFOs, and more bytes or members than allowed (counted by their
headers before anything is read; no more than its header says comes out of a member).
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal, Protocol

from woodshed.errors import EnvironmentFault, UsageError

MAX_BYTES = 8 << 30
MAX_MEMBERS = 200_000
_MAX_LINK = 4096
_MAX_PART = 255
_MAX_DEPTH = 100
"""Deeper trees exhaust the stack of whatever walks them, the clean-up first."""
_CHUNK = 1 << 20
_LARGEST_READ = 16 << 20
"""tarfile reads an extended header in one piece of the size that the header states."""

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError,
            ValueError)


@dataclass(frozen=True, slots=True)
class Member:
    """One entry, its ``path`` relative and free of ``.`` and ``..``. ``target`` is a link's, as written."""

    path: str
    kind: Literal["file", "directory", "symlink", "hardlink"]
    size: int
    executable: bool = False
    target: str = ""


class Archive(Protocol):
    """An open archive. Iterate once: each member comes with its content, readable until the next one."""

    def __iter__(self) -> Iterator[tuple[Member, IO[bytes]]]:
        """The members in order. Raises UsageError at the first that is not safe."""


@contextmanager
def open_archive(path: Path, *, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS) -> Iterator[Archive]:
    """The archive at ``path`` (.whl, .zip, .tar, .tar.gz, .tar.bz2, .tar.xz), told by its content.

    Raises UsageError for what is damaged, no archive, or not safe.
    """
    limits = _Limits(path, max_bytes, max_members)
    with _opened(path) as archive:
        try:
            yield _Zip(archive, limits) if isinstance(archive, zipfile.ZipFile) else _Tar(archive, limits)
        except (tarfile.TarError, zipfile.BadZipFile) as error:
            raise UsageError(f"is no archive that can be read ({error})", file=path) from None


def _opened(path: Path) -> zipfile.ZipFile | tarfile.TarFile:
    """The archive, its first header read. Damage shows in many ways already here: any of them is the file's fault."""
    try:
        with path.open("rb") as file:
            zipped = file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
        return zipfile.ZipFile(path) if zipped else tarfile.open(path, "r:*", tarinfo=_Header)
    except FileNotFoundError:
        raise UsageError("does not exist", file=path) from None
    except _DAMAGED as error:
        raise UsageError(f"is no archive that can be read ({error})", file=path) from None


def extract(
    archive: Path, into: Path, *, strip: int = 0, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS
) -> None:
    """Put the members of ``archive`` below ``into`` (absent or empty), all or none.

    The first ``strip`` parts of their names are dropped. Files get mode 0644 or 0755; links must lead to somewhere
    below ``into``; hard links become copies. Raises UsageError naming the first unsafe member, EnvironmentFault where
    the disk fails.
    """
    if into.is_symlink() or (into.exists() and (not into.is_dir() or any(into.iterdir()))):
        raise UsageError("is not an empty folder", file=into, remedy="Choose another, or remove it.")
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=".extract-", ignore_cleanup_errors=True) as temp:
        root = Path(temp) / "root"
        root.mkdir(mode=0o755)
        with open_archive(archive, max_bytes=max_bytes, max_members=max_members) as members:
            for member, content in members:
                _put(archive, root, member, content, strip)
        with suppress(FileNotFoundError):
            into.rmdir()
        root.rename(into)


def _put(archive: Path, root: Path, member: Member, content: IO[bytes], strip: int) -> None:
    parts = PurePosixPath(member.path).parts[strip:]
    if not parts:
        return
    _refuse_links(archive, root, parts, member)
    target = root.joinpath(*parts)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if member.kind == "directory":
            target.mkdir(exist_ok=True)
            return
        if target.is_symlink() or target.is_file():
            target.unlink()  # a later member of the same name replaces the earlier, as tar does
        if member.kind == "symlink":
            _check_link(archive, parts, member)
            target.symlink_to(member.target)
        else:
            source = _hardlinked(archive, root, member, strip) if member.kind == "hardlink" else None
            _write(target, content, member.executable, source)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise UsageError(f"member {member.path!r} is a file and a folder at once", file=archive) from None
    except OSError as error:
        raise EnvironmentFault(f"{archive.name} could not be extracted: {error}") from error


def _write(target: Path, content: IO[bytes], executable: bool, source: Path | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, 0o755 if executable else 0o644), "wb") as out:
        if source is None:
            shutil.copyfileobj(content, out, _CHUNK)
            return
        with source.open("rb") as origin:
            shutil.copyfileobj(origin, out, _CHUNK)


def _refuse_links(archive: Path, root: Path, parts: tuple[str, ...], member: Member) -> None:
    """No member is written through a link that an earlier one made."""
    for depth in range(1, len(parts)):
        if root.joinpath(*parts[:depth]).is_symlink():
            raise UsageError(f"member {member.path!r} lies behind a link of the archive", file=archive)


def _check_link(archive: Path, parts: tuple[str, ...], member: Member) -> None:
    """A link may climb only at its start, and not above the root.

    Then it leads below the root whatever its other components are: those are folders, or links that passed this same
    check. A ``..`` behind a name would climb from wherever a link of that name leads.
    """
    steps = [part for part in member.target.split("/") if part not in ("", ".")]
    climbs = next((index for index, part in enumerate(steps) if part != ".."), len(steps))
    inside = not member.target.startswith("/") and "\0" not in member.target and ".." not in steps[climbs:]
    if not inside or climbs > len(parts) - 1 or not member.target:
        raise UsageError(f"link {member.path!r} may lead out of the archive ({member.target[:100]!r})", file=archive)


def _hardlinked(archive: Path, root: Path, member: Member, strip: int) -> Path:
    parts = PurePosixPath(_safe_name(archive, member.target)).parts[strip:]
    _refuse_links(archive, root, parts, member)
    source = root.joinpath(*parts)
    if not parts or source.is_symlink() or not source.is_file():
        raise UsageError(f"hard link {member.path!r} names no earlier file ({member.target!r})", file=archive)
    return source


def _safe_name(archive: Path, name: str) -> str:
    parts = PurePosixPath(name).parts
    if not name or name.startswith("/") or ".." in parts or "\0" in name:
        raise UsageError(f"member {name[:100]!r} does not stay below the archive's root", file=archive)
    if len(parts) > _MAX_DEPTH or any(len(os.fsencode(part)) > _MAX_PART for part in parts):
        raise UsageError(f"member {name[:100]!r} has a name too long or too deep", file=archive)
    return str(PurePosixPath(name))


class _Limits:
    """Counts members and bytes of one archive."""

    def __init__(self, archive: Path, max_bytes: int, max_members: int) -> None:
        self.archive, self._bytes, self._members = archive, max_bytes, max_members

    def take(self, size: int) -> None:
        """Count one more member of ``size`` bytes."""
        self._members -= 1
        self._bytes -= size
        if self._members < 0:
            raise UsageError("has more members than allowed", file=self.archive)
        if self._bytes < 0 or size < 0:
            raise UsageError("unpacks to more bytes than allowed", file=self.archive)


class _Content(io.RawIOBase):
    """A member's content; damage in it is a UsageError."""

    def __init__(self, source: IO[bytes], archive: Path) -> None:
        self._source, self._archive = source, archive

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # narrower than Buffer, as io calls it
        try:
            data = self._source.read(len(buffer))
        except _DAMAGED as error:
            raise UsageError(f"is damaged ({error})", file=self._archive) from None
        buffer[:len(data)] = data
        return len(data)


_EMPTY = io.BytesIO()


class _Zip:
    def __init__(self, archive: zipfile.ZipFile, limits: _Limits) -> None:
        self._archive, self._limits = archive, limits

    def __iter__(self) -> Iterator[tuple[Member, IO[bytes]]]:
        for info in self._archive.infolist():
            self._limits.take(info.file_size)
            path = _safe_name(self._limits.archive, info.filename.rstrip("/") or info.filename)
            mode = info.external_attr >> 16
            if info.is_dir():
                yield Member(path, "directory", 0), _EMPTY
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFLNK):
                raise UsageError(f"member {path!r} is a device or FIFO", file=self._limits.archive)
            with self._open(info) as content:
                if stat.S_ISLNK(mode):
                    target = content.read(_MAX_LINK).decode(errors="surrogateescape")
                    yield Member(path, "symlink", 0, target=target), _EMPTY
                else:
                    yield Member(path, "file", info.file_size, bool(mode & 0o100)), content

    def _open(self, info: zipfile.ZipInfo) -> IO[bytes]:
        try:
            # The others decompress a whole read at once, however much comes of it.
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise NotImplementedError("a compression that wheels do not use")
            return io.BufferedReader(_Content(self._archive.open(info), self._limits.archive), _CHUNK)
        except _DAMAGED as error:
            raise UsageError(f"member {info.filename!r} cannot be read ({error})", file=self._limits.archive) from None


class _Header(tarfile.TarInfo):
    """Refuses an extended header so large that reading it would exhaust memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        found = super().frombuf(buf, encoding, errors)
        if found.type in b"xXgLK" and found.size > _LARGEST_READ:
            raise tarfile.HeaderError("an extended header is too large")
        return found


class _Tar:
    def __init__(self, archive: tarfile.TarFile, limits: _Limits) -> None:
        self._archive, self._limits = archive, limits

    def __iter__(self) -> Iterator[tuple[Member, IO[bytes]]]:
        while (info := self._next()) is not None:
            self._limits.take(info.size)
            if info.name in (".", "./", ""):
                continue
            path = _safe_name(self._limits.archive, info.name)
            if info.isdir():
                yield Member(path, "directory", 0), _EMPTY
            elif info.issym() or info.islnk():
                kind: Literal["symlink", "hardlink"] = "symlink" if info.issym() else "hardlink"
                yield Member(path, kind, 0, bool(info.mode & 0o100), info.linkname), _EMPTY
            elif info.isreg():
                content = self._archive.extractfile(info)
                assert content is not None
                with io.BufferedReader(_Content(content, self._limits.archive), _CHUNK) as readable:
                    yield Member(path, "file", info.size, bool(info.mode & 0o100)), readable
            else:
                raise UsageError(f"member {path!r} is a device or FIFO", file=self._limits.archive)

    def _next(self) -> tarfile.TarInfo | None:
        try:
            return self._archive.next()
        except _DAMAGED as error:
            raise UsageError(f"is damaged ({error})", file=self._limits.archive) from None
