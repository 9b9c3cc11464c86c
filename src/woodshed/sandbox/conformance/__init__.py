"""What every sandbox engine must do: plain async checks over any SandboxEngine, each making its own sandboxes.

A check returns when what its first docstring line says holds, and raises AssertionError otherwise. The image needs a
POSIX shell with the usual small programs. Run all with :func:`run`, or parametrise a test over :data:`CHECKS`. Where an
engine lacks a capability that a check needs (:func:`kit.needs`), the check holds when the engine raises Unsupported.
"""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.interfaces import SandboxEngine
from woodshed.sandbox.conformance import (
    changes,
    commands,
    egress,
    files,
    life,
    limits,
    policies,
    ports,
    sessions,
    snapshots,
    transfer,
)
from woodshed.sandbox.conformance.kit import Check, MemoryBlobs

__all__ = ["CHECKS", "Check", "MemoryBlobs", "run"]

CHECKS: tuple[Check, ...] = (*commands.CHECKS, *files.CHECKS, *changes.CHECKS, *life.CHECKS, *snapshots.CHECKS,
                             *policies.CHECKS, *limits.CHECKS, *transfer.CHECKS, *sessions.CHECKS,
                             *egress.CHECKS, *ports.CHECKS)


async def run(engine: SandboxEngine, checks: Sequence[Check] = CHECKS) -> dict[str, str | None]:
    """The outcome of each check by name: None where it holds, else why not. Does not close the engine."""
    outcomes: dict[str, str | None] = {}
    for check in checks:
        name = str(getattr(check, "__name__", check))
        try:
            await check(engine)
            outcomes[name] = None
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
    return outcomes
