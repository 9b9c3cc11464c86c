"""Where a captured link leads to in a verifier's sandbox. Pure; paths are normalised and of the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import join, normpath

from woodshed.model import Change, ChangeKind

HIDDEN = ("/tests", "/solution", "/logs/verifier", "/proc")
"""What stands in the verifier's sandbox alone, or leads on to it (/proc/self/root)."""
_MOST = 40  # links on one way, as the kernel has it


def peeks(change: Change, own: Mapping[str, Change]) -> bool:
    """True for a link to what only the verifier's sandbox holds, or to a folder above that.

    Read through such a link, a hidden test's expected file, or the reference, would judge itself. ``own`` are all
    changes by path: a link may lead through another.
    """
    if change.kind is not ChangeKind.SYMLINK or change.target is None:
        return False
    found = resolved(normpath(change.path), own)
    return found is not None and any(_related(found, place) for place in HIDDEN)


def resolved(path: str, own: Mapping[str, Change]) -> str | None:
    """``path`` with the links among ``own`` followed; None where they go round in circles."""
    done, pending, followed = "", path.strip("/").split("/"), 0
    while pending:
        part = pending.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        here = f"{done}/{part}"
        link = own.get(here)
        if link is None or link.kind is not ChangeKind.SYMLINK or link.target is None:
            done = here
            continue
        followed += 1
        if followed > _MOST:
            return None
        target = link.target if link.target.startswith("/") else join(done or "/", link.target)
        done, pending = "", [*target.strip("/").split("/"), *pending]
    return done or "/"


def _related(path: str, place: str) -> bool:
    """True for ``place``, all below it, and every folder above it."""
    return path == place or path == "/" or path.startswith(place + "/") or place.startswith(path + "/")
