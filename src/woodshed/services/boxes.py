"""A sandbox by hand: run a command, open a shell, read a policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from woodshed import plugins, settings
from woodshed.errors import Cause, UsageError, boundary
from woodshed.interfaces import ExecResult, Governed, Sandbox, Stream
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.services.declared import read_toml


def load_policy(file: Path) -> SandboxPolicy:
    """The policy that a TOML file declares. Raises UsageError naming file, field and remedy."""
    return SandboxPolicy.parse(read_toml(file, "docs/policy.md"), file=file)


def engine_of(policy: SandboxPolicy | None, asked: str | None) -> str:
    """The engine to make sandboxes with: the policy's, or what was asked for, or the setting's.

    Raises UsageError where a policy demands another than was asked for: who wrote it wanted that one's walls.
    """
    demanded = policy.engine if policy is not None else None
    if demanded and asked and demanded != asked:
        raise UsageError(f"the policy demands the engine '{demanded}', and '{asked}' was asked for", field="engine",
                         remedy="Leave one of them out.")
    return demanded or asked or settings.setting("engine")


@asynccontextmanager
async def opened(
    spec: EnvironmentSpec,
    *,
    engine: str,
    policy: SandboxPolicy | None = None,
    tell: Callable[[str], None] | None = None,
) -> AsyncIterator[Sandbox]:
    """A live sandbox of ``spec``, gone afterwards. Without a ``policy``, one of the spec's limits alone.

    ``tell`` gets what the policy does not hold though it may look so, and what it kept from the network. Raises
    EnvironmentFault, UsageError.
    """
    made = plugins.engine(engine, settings.home())
    try:
        with boundary(Cause.ENVIRONMENT, "opening the sandbox"):
            sandbox = await made.create(spec, policy or SandboxPolicy(limits=spec.limits))
        try:
            if tell is not None:
                for note in getattr(sandbox, "notes", ()):
                    tell(note)
                if isinstance(sandbox, Governed):
                    sandbox.on_decision(partial(_kept_from, tell))
            yield sandbox
        finally:
            await sandbox.close()
    finally:
        await made.close()


def _kept_from(tell: Callable[[str], None], decision: Mapping[str, Any]) -> None:
    if decision["verdict"] in ("refused", "failed"):
        port = f":{decision['port']}" if decision.get("port") else ""
        tell(f"network: {decision['what']} {decision['host']}{port} {decision['verdict']}: {decision['reason']}")


async def run_once(
    spec: EnvironmentSpec,
    command: Sequence[str],
    *,
    engine: str,
    timeout_s: float | None = None,
    stream: Stream | None = None,
    policy: SandboxPolicy | None = None,
    tell: Callable[[str], None] | None = None,
) -> ExecResult:
    """One command in a fresh sandbox."""
    async with opened(spec, engine=engine, policy=policy, tell=tell) as sandbox:
        return await sandbox.exec(list(command), timeout_s=timeout_s, stream=stream)
