"""What a sandbox answers: how a command ended, what stands at a path, what was used. Live values, never persisted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How one command ended. Output is bytes as written; ``truncated`` means the middle was dropped at the limit.

    ``exit_code`` is the shell's convention: negative signal numbers become 128+n. ``timed_out`` means we killed the
    whole tree; ``oom_killed`` that the kernel did. ``cpu_s`` is user+system seconds of the tree, None if unknown.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    timed_out: bool = False
    oom_killed: bool = False
    seconds: float = 0.0
    cpu_s: float | None = None
    limits_hit: tuple[str, ...] = ()
    """Fields of :class:`woodshed.model.Limits` that were reached while it ran, as far as the engine can tell."""
    spool: Spool | None = None


@dataclass(frozen=True, slots=True)
class Spool:
    """Files of the host with more of a truncated output than was kept: its first ``Limits.spool_bytes``.

    They are the sandbox's and go with it. None for a stream that was kept whole.
    """

    stdout: Path | None = None
    stderr: Path | None = None
    complete: bool = True
    """False where less than that is there: the disk had no room for it."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One directory entry, not followed. ``kind``: file, directory, symlink or other. ``mtime_s`` since the epoch."""

    name: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int
    uid: int = 0
    mtime_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FileEvent:
    """Something happened to ``path``. ``overflow`` means that events were lost: look at everything again."""

    path: str
    kind: Literal["created", "changed", "deleted", "overflow"]


@dataclass(frozen=True, slots=True)
class Pressure:
    """Shares of the last ten seconds, 0 to 1, in which work waited for a resource of the host (PSI ``some avg10``)."""

    cpu: float
    memory: float
    io: float


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """What a sandbox has used. None where this machine cannot tell. ``pressure`` is the host's."""

    cpu_s: float | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    disk_bytes: int
    files: int
    processes: int
    pressure: Pressure | None
