"""What the checks share: sandboxes that are closed afterwards, blobs in memory, and what a check needs."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import BinaryIO

from woodshed.errors import StoreFault, Unsupported
from woodshed.interfaces import Capability, Sandbox, SandboxEngine
from woodshed.model import Change, ChangeSet, EnvironmentSpec, Limits, SandboxPolicy

Check = Callable[[SandboxEngine], Awaitable[None]]
SPEC = EnvironmentSpec(env={"GREETING": "hello"})


class MemoryBlobs:
    """A BlobSink in memory."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def put(self, content: bytes | BinaryIO) -> str:
        """Keep the content; its sha256."""
        data = content if isinstance(content, bytes) else content.read()
        digest = hashlib.sha256(data).hexdigest()
        self.content[digest] = data
        return digest

    def open(self, sha256: str) -> BinaryIO:
        """The content. Raises StoreFault when absent."""
        if sha256 not in self.content:
            raise StoreFault(f"no blob {sha256}")
        return io.BytesIO(self.content[sha256])


@asynccontextmanager
async def opened(
    engine: SandboxEngine, spec: EnvironmentSpec = SPEC, limits: Limits | None = None
) -> AsyncIterator[Sandbox]:
    """A fresh sandbox, closed afterwards."""
    sandbox = await engine.create(spec, SandboxPolicy(limits=limits or spec.limits))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def shell(sandbox: Sandbox, command: str) -> str:
    """Standard output of a command that must succeed."""
    result = await sandbox.exec(command)
    assert result.exit_code == 0, result
    return result.stdout.decode()


async def captured(sandbox: Sandbox, *roots: str) -> tuple[ChangeSet, MemoryBlobs]:
    """What a sandbox changed, everything in it stopped first."""
    blobs = MemoryBlobs()
    await sandbox.kill_all()
    return await sandbox.changes(blobs, roots=roots or ("/",)), blobs


def by_path(changes: ChangeSet) -> dict[str, Change]:
    """Changes by path; each path once."""
    found = {change.path: change for change in changes.changes}
    assert len(found) == len(changes.changes), "a path appears twice"
    return found


async def sleepers(sandbox: Sandbox) -> str:
    """Command lines of the live processes inside, read without ps."""
    return await shell(sandbox, "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null; true")


async def gone(sandbox: Sandbox, command: str) -> None:
    """Nothing that runs ``command`` lives, sooner or later: a signal that was sent may not have arrived."""
    for _ in range(300):
        if command not in await sleepers(sandbox):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{command!r} is still running")


async def raises(kind: type[BaseException], doing: Awaitable[object]) -> BaseException:
    """What ``doing`` raised, which must be a ``kind``."""
    try:
        await doing
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def needs(*capabilities: Capability) -> Callable[[Check], Check]:
    """The check is of these capabilities: with an engine that lacks one, it holds when Unsupported is raised."""

    def decorate(check: Check) -> Check:
        @functools.wraps(check)
        async def checked(engine: SandboxEngine) -> None:
            missing = set(capabilities) - engine.capabilities
            if not missing:
                await check(engine)
                return
            try:
                await check(engine)
            except Unsupported:
                return
            raise AssertionError(f"{', '.join(sorted(missing))} missing, but nothing raised Unsupported")

        return checked

    return decorate
