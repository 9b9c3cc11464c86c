"""Void: an engine, an agent and a verifier that do nothing, so that what remains of an attempt is what its queue costs.

They are plug-ins of the benchmark: known only to processes that have :func:`installed` on their path.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from woodshed.interfaces import Acting, BlobSink, Capability, SandboxEngine, SandboxStats
from woodshed.model import Assurance, ChangeSet, EnvironmentSpec, SandboxPolicy, StopReason, Task, Valid, Verdict


def installed(folder: Path, points: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The environment in which these entry points are known: what pip would leave in ``folder``, put on the path.

    ``points`` maps a group of entry points to names and what each names (``module:attribute``).
    """
    info = folder / "woodshed_bench-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: woodshed-bench\nVersion: 0\n")
    lines = [line for group, named in points.items()
             for line in (f"[{group}]", *(f"{name} = {value}" for name, value in named.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


POINTS = {
    f"woodshed.{kind}": {"void": f"{__name__}:Void{name}"}
    for kind, name in (("engines", "Engine"), ("harnesses", "Agent"), ("verifiers", "Verifier"))
}


class VoidBox:
    """A sandbox in which nothing is."""

    id = "void"
    image_digest = "none"

    def __getattr__(self, name: str) -> Any:
        """Whatever else a sandbox can do, nobody asks of this one."""
        raise AttributeError(name)

    async def kill_all(self) -> None:
        """Nothing runs."""

    async def changes(self, sink: BlobSink, *, roots: Sequence[str] = ("/",)) -> ChangeSet:
        """None."""
        return ChangeSet()

    async def stats(self) -> SandboxStats:
        """Nothing was used."""
        return SandboxStats(0.0, 0, 0, 0, 0, 0, 0, 0, None)

    async def close(self) -> None:
        """At once."""


class VoidEngine:
    """Makes sandboxes of nothing."""

    name = "void"
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, home: Path) -> None:
        self._home = home

    def check(self, spec: EnvironmentSpec, policy: SandboxPolicy) -> Sequence[str]:
        """Everything is well."""
        return ()

    async def open(self) -> None:
        """At once."""

    async def create(self, spec: EnvironmentSpec, policy: SandboxPolicy, *, restore: Any = None) -> Any:
        """A sandbox of nothing."""
        return VoidBox()

    async def close(self) -> None:
        """At once."""


class VoidAgent:
    """``void`` finishes at once, ``void:SECONDS`` after so long."""

    needs_model = False
    resumable = True

    def __init__(self, argument: str | None) -> None:
        self.seconds = float(argument or 0)

    async def act(self, acting: Acting) -> StopReason:
        """Finished."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return StopReason.FINISHED


class VoidVerifier:
    """Finds everything in order."""

    assurance = Assurance.REPORT_ONLY

    async def verify(
        self, task: Task, changes: ChangeSet, blobs: BlobSink, engine: SandboxEngine, emit: Any
    ) -> Verdict:
        """Valid, total 1."""
        return Valid(rewards={"reward": 1.0}, total=1.0, assurance=Assurance.REPORT_ONLY)


def task(folder: Path) -> Path:
    """A task that asks for nothing, in ``folder``."""
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('schema_version = "1.4"\n[task]\nname = "woodshed/nothing"\n'
                                      '[environment]\nworkdir = "/workspace"\n[woodshed]\nimage = "host"\n')
    (folder / "instruction.md").write_text("Do nothing.\n")
    (folder / "tests" / "test.sh").write_text("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")
    return folder
