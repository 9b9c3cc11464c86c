"""The merged view of overlay lower directories, one path at a time: what a box would see had it changed nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

OPAQUE = "user.overlay.opaque"
"""Set to ``y`` on a directory that hides what lower layers have there (overlayfs with userxattr)."""

Parts = tuple[str, ...]


def is_whiteout(info: os.stat_result) -> bool:
    """Whether an entry of a layer is overlayfs' mark of a deletion: a character device 0:0."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


class Below:
    """Looks paths up in ``lowers``, topmost first, as overlayfs does: whiteouts and opaque directories hide."""

    def __init__(self, lowers: Sequence[Path]) -> None:
        self._lowers = [str(path) for path in lowers]
        self._known: dict[Parts, tuple[os.stat_result | None, list[str]]] = {(): (None, self._lowers)}

    def find(self, parts: Parts) -> os.stat_result | None:
        """What stands at the path; None where nothing does. Links are not followed."""
        return self._look(parts)[0]

    def _look(self, parts: Parts) -> tuple[os.stat_result | None, list[str]]:
        """The entry, and the directories (one a layer) whose entries merge at it when it is a directory."""
        if (known := self._known.get(parts)) is not None:
            return known
        entry: os.stat_result | None = None
        merged: list[str] = []
        for directory in self._look(parts[:-1])[1]:
            path = f"{directory}/{parts[-1]}"
            try:
                info = os.lstat(path)
            except OSError:
                continue
            if is_whiteout(info) or (entry is not None and not stat.S_ISDIR(info.st_mode)):
                break
            entry = entry or info
            if not stat.S_ISDIR(info.st_mode):
                break
            merged.append(path)
            if is_opaque(path):
                break
        self._known[parts] = entry, merged
        return entry, merged


def is_opaque(path: str | int) -> bool:
    """Whether the directory at ``path`` (or open as it) hides those of lower layers."""
    try:
        return os.getxattr(path, OPAQUE) == b"y"
    except OSError:
        return False
