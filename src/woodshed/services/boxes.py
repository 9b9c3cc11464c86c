"""A sandbox by hand: run a command, open a shell, sweep leftovers, examine the machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from woodshed import plugins, settings
from woodshed.errors import Cause, boundary
from woodshed.interfaces import ExecResult, Sandbox, Stream
from woodshed.model import EnvironmentSpec, SandboxPolicy


@asynccontextmanager
async def opened(spec: EnvironmentSpec, *, engine: str) -> AsyncIterator[Sandbox]:
    """A live sandbox of ``spec``, gone afterwards. Raises EnvironmentFault, UsageError."""
    made = plugins.engine(engine, settings.home())
    try:
        with boundary(Cause.ENVIRONMENT, "opening the sandbox"):
            sandbox = await made.create(spec, SandboxPolicy(limits=spec.limits))
        try:
            yield sandbox
        finally:
            await sandbox.close()
    finally:
        await made.close()


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
