"""Changes: the file-level difference between a sandbox and its start. Contents live in blobs, by sha256."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from woodshed.model.record import Record


class ChangeKind(StrEnum):
    """What now stands at a path. ``OPAQUE`` is a directory that hides everything the start had below it."""

    FILE = "file"
    DIRECTORY = "directory"
    OPAQUE = "opaque"
    SYMLINK = "symlink"
    DELETED = "deleted"


class Change(Record):
    """One path. Absolute, normalised, in the sandbox; bytes that are not UTF-8 appear as surrogate escapes.

    ``mode`` is permission bits only: setuid, setgid and sticky are stripped at capture.
    """

    path: str
    kind: ChangeKind
    mode: int = Field(default=0o644, ge=0, le=0o777)
    size: int = 0
    sha256: str | None = Field(default=None, description="content of a file, in the blob store")
    target: str | None = Field(default=None, description="of a symlink, uninterpreted")


class ChangeSet(Record):
    """All changes, parents before children. ``refused`` names what was seen and never captured, with the reason

    (``/workspace/dev: device``, ``/workspace/p: fifo``, ``/workspace/x: setuid``, ``over disk_mb`` …).
    ``over_limit`` is the name of the declared limit that cut the capture, if one did. ``flagged`` names captured files
    that a tool of the host could run by itself where the changes are put to use (a git hook, an editor's task).
    """

    version: int = 1
    changes: tuple[Change, ...] = ()
    refused: tuple[str, ...] = ()
    over_limit: str | None = None
    flagged: tuple[str, ...] = ()
