"""The pristine start of a task, read on the host: what its uploads (and an unpacked image) put where."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath

from woodshed.model import EnvironmentSpec
from woodshed.verify.protect import beneath

MAX_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class Start:
    """Files that stand in a sandbox before anyone acts. ``places`` are (host path, absolute target), later ones win.

    What ``setup`` makes is not seen here. No link is followed: a link in an upload is a link in the sandbox.
    """

    places: tuple[tuple[Path, str], ...]

    @classmethod
    def of(cls, spec: EnvironmentSpec) -> Start:
        """The start that ``spec`` declares."""
        image = [(Path(spec.image.removeprefix("dir:")), "/")] if spec.image.startswith("dir:") else []
        uploads = [(Path(upload.source), normpath(upload.target)) for upload in spec.uploads]
        return cls((*image, *uploads))

    def host(self, path: str) -> Path | None:
        """The host file or folder that stands at ``path`` (absolute, in the sandbox), or None."""
        for source, target in reversed(self.places):
            if beneath(path, target):
                rest = path[len(target.rstrip("/")) + 1 :]
                if (found := _inside(source, rest)) is not None:
                    return found
        return None

    def exists(self, path: str) -> bool:
        """True where something stands at ``path``, or above an upload's target."""
        return self.host(path) is not None or any(beneath(target, path) for _, target in self.places)

    def read(self, path: str) -> bytes | None:
        """Content of the regular file at ``path``; None where there is none (or it is over 10 MB)."""
        found = self.host(path)
        if found is None or not stat.S_ISREG((info := found.lstat()).st_mode) or info.st_size > MAX_BYTES:
            return None
        return found.read_bytes()

    def children(self, path: str) -> Iterator[tuple[str, bool]]:
        """Entries of the folder at ``path``: (absolute path, is a folder), each once."""
        seen: dict[str, bool] = {}
        stem = path.rstrip("/")
        for source, target in self.places:
            if beneath(path, target):
                folder = _inside(source, path[len(target.rstrip("/")) + 1 :])
                if folder is not None and stat.S_ISDIR(folder.lstat().st_mode):
                    for entry in os.scandir(folder):
                        seen[f"{stem}/{entry.name}"] = entry.is_dir(follow_symlinks=False)
            elif beneath(target, path):
                name, _, deeper = target[len(stem) + 1 :].partition("/")
                seen[f"{stem}/{name}"] = bool(deeper) or source.is_dir()
        yield from sorted(seen.items())


def _inside(source: Path, rest: str) -> Path | None:
    """``source``/``rest`` when it exists and no folder on the way is a link."""
    current = source
    for part in [part for part in rest.split("/") if part]:
        try:
            if not stat.S_ISDIR(current.lstat().st_mode):
                return None
        except OSError:
            return None
        current = current / part
    try:
        current.lstat()
    except (OSError, ValueError):
        return None
    return current
