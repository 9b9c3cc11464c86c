"""Overlay layers as one tree, for engines whose runtime wants one: what is hidden is gone, what stands is on top."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from woodshed.sandbox.native.below import OPAQUE, is_whiteout


def entries(lowers: Sequence[Path]) -> Iterator[tuple[str, Path, os.stat_result]]:
    """Path (relative), where it lies, and what it is; parents first. ``lowers`` are topmost first."""
    todo: list[tuple[str, list[Path]]] = [("", [Path(lower) for lower in lowers])]
    while todo:
        above, places = todo.pop()
        seen: dict[str, tuple[Path, os.stat_result, list[Path]]] = {}
        hidden: set[str] = set()
        for place in places:
            with os.scandir(place) as found:
                for entry in sorted(found, key=lambda one: one.name):
                    _merge(entry, seen, hidden)
        for name, (path, info, merged) in sorted(seen.items()):
            below = f"{above}/{name}".lstrip("/")
            yield below, path, info
            if merged:
                todo.append((below, merged))


def _merge(entry: os.DirEntry[str], seen: dict[str, tuple[Path, os.stat_result, list[Path]]], hidden: set[str]) -> None:
    name = entry.name
    info = entry.stat(follow_symlinks=False)
    if name not in seen and name not in hidden:
        if is_whiteout(info):
            hidden.add(name)
            return
        seen[name] = Path(entry.path), info, [Path(entry.path)] if stat.S_ISDIR(info.st_mode) else []
    elif name not in hidden and stat.S_ISDIR(info.st_mode) and seen[name][2]:
        seen[name][2].append(Path(entry.path))
    else:
        hidden.add(name)
        return
    if not stat.S_ISDIR(info.st_mode) or _opaque(entry.path):
        hidden.add(name)  # nothing of it shows from further below


def _opaque(path: str) -> bool:
    with suppress(OSError):
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    return False


def write(lowers: Sequence[Path], sink: BinaryIO) -> None:
    """A tar archive of the merged tree, owners and hard links kept; nothing special is in it. Blocking."""
    names: dict[tuple[int, int], str] = {}
    top = tarfile.TarInfo("./")
    top.type, top.mode = tarfile.DIRTYPE, stat.S_IMODE(lowers[0].stat().st_mode) if lowers else 0o755
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(top)
        for path, place, info in entries(lowers):
            member = tarfile.TarInfo(path)
            member.mode, member.uid, member.gid = stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid
            member.mtime = int(info.st_mtime)
            if stat.S_ISDIR(info.st_mode):
                member.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(info.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, str(place.readlink())
            elif not stat.S_ISREG(info.st_mode):
                continue
            elif info.st_nlink > 1 and (first := names.setdefault((info.st_dev, info.st_ino), path)) != path:
                member.type, member.linkname = tarfile.LNKTYPE, first
            else:
                member.size = info.st_size
                with place.open("rb") as file:
                    archive.addfile(member, file)
                continue
            archive.addfile(member)
