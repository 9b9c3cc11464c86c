"""Whether an engine works on this machine: by building a sandbox, not by looking for a program or a socket."""

from __future__ import annotations

import asyncio
import time

from woodshed.errors import WoodshedError
from woodshed.interfaces import SandboxEngine
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native.probe import Finding

_PROBE_S = 60.0


async def probe(engine: SandboxEngine) -> Finding:
    """A sandbox of ``engine`` ran a command, or why not; the engine is closed. Nothing is required: there is native."""
    name = f"{engine.name} engine"
    started = time.monotonic()
    try:
        async with asyncio.timeout(_PROBE_S):
            sandbox = await engine.create(EnvironmentSpec(), SandboxPolicy())
            try:
                result = await sandbox.exec("echo works")
            finally:
                await sandbox.close()
    except TimeoutError:
        return Finding(name, False, f"did not build a sandbox within {_PROBE_S:.0f} s", required=False)
    except WoodshedError as error:
        reason, _, remedy = str(error).partition(". ")
        return Finding(name, False, reason, remedy, required=False)
    finally:
        await engine.close()
    if result.stdout != b"works\n":
        return Finding(name, False, f"its sandbox ran a command, and that failed: {result.stderr!r}", required=False)
    has = ", ".join(sorted(engine.capabilities))
    return Finding(name, True, f"built a sandbox in {time.monotonic() - started:.1f} s; has {has}", required=False)
