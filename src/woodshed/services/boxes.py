"""A sandbox by hand: run a command, open a shell, sweep leftovers, examine the machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from woodshed import plugins, settings
from woodshed.errors import Cause, EnvironmentFault, UsageError, boundary
from woodshed.interfaces import ExecResult, Sandbox, SandboxEngine, Stream
from woodshed.model import EnvironmentSpec, SandboxPolicy


@asynccontextmanager
async def opened(spec: EnvironmentSpec, *, engine: str) -> AsyncIterator[Sandbox]:
    """A live sandbox of ``spec``, gone afterwards. Raises EnvironmentFault, UsageError."""
    made = plugins.engine(engine, settings.home())
    try:
        sandbox = await _create(made, spec)
        try:
            yield sandbox
        finally:
            await sandbox.close()
    finally:
        await made.close()


async def _create(engine: SandboxEngine, spec: EnvironmentSpec) -> Sandbox:
    """By hand there is no attempt to attribute a fault to: what the user wrote wrongly is told as that."""
    try:
        with boundary(Cause.ENVIRONMENT, "opening the sandbox"):
            return await engine.create(spec, SandboxPolicy(limits=spec.limits))
    except EnvironmentFault as fault:
        if isinstance(fault.__cause__, UsageError):
            raise fault.__cause__ from None
        raise


async def run_once(
    spec: EnvironmentSpec,
    command: Sequence[str],
    *,
    engine: str,
    timeout_s: float | None = None,
    stream: Stream | None = None,
) -> ExecResult:
    """One command in a fresh sandbox."""
    async with opened(spec, engine=engine) as sandbox:
        return await sandbox.exec(list(command), timeout_s=timeout_s, stream=stream)
