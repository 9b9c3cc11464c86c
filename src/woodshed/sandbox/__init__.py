"""Live isolated places: the native engine, its images, and the suite any engine must pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

from woodshed.interfaces import SandboxEngine

_BUILD_S = 3600.0


def native_engine(home: Path) -> SandboxEngine:
    """The native engine on the host's own images; source distributions are built in its own sandboxes."""
    from woodshed.sandbox.images import Images
    from woodshed.sandbox.images.build import BuildJob, BuildResult, run_build
    from woodshed.sandbox.native.engine import NativeEngine

    loop = asyncio.get_running_loop()

    def build(job: BuildJob) -> BuildResult:
        """Called from a worker thread: the sandbox itself lives on the event loop."""
        return asyncio.run_coroutine_threadsafe(run_build(engine, job), loop).result(_BUILD_S)

    engine = NativeEngine(home, images=Images(home, build))
    return engine
