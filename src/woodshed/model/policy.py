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
    output_bytes: int = Field(default=1_000_000, gt=0, description="kept of each stream of one exec")


class SandboxPolicy(Record):
    """What a sandbox may do. Version 0.1 has no network and one set of limits."""

    network: bool = False
    limits: Limits = Limits()
