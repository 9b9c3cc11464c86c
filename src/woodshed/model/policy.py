"""SandboxPolicy: what binds a sandbox. Records only; ``sandbox/`` compiles them."""

from __future__ import annotations

from pydantic import Field

from woodshed.model.record import Record


class Limits(Record):
    """Upper bounds of one sandbox. None means no bound of ours."""

    memory_mb: int | None = Field(default=None, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    pids: int = Field(default=1024, gt=0)
    disk_mb: int = Field(default=2048, gt=0, description="of one file, and of all that a capture keeps")
    files: int = Field(default=50_000, gt=0, description="entries that a capture keeps")
    open_files: int = Field(default=16_384, gt=0, description="open descriptors of one process")
    wall_s: float | None = Field(default=None, gt=0, description="life of the sandbox; then it ends")
    output_bytes: int = Field(default=1_000_000, gt=0, description="kept of each stream of one exec")
    spool_bytes: int = Field(default=0, ge=0, description="of each longer stream, kept on the host's disk")


class SandboxPolicy(Record):
    """What a sandbox may do. Version 0.1 has no network and one set of limits."""

    network: bool = False
    limits: Limits = Limits()
