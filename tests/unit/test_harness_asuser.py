"""Tools of an agent that is not root read and write with its rights."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.errors import Unsupported
from woodshed.harness.asuser import as_user
from woodshed.interfaces import Sandbox
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native.engine import NativeEngine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="an ordinary user's sandboxes may have one user; run the tests as root")


@pytest.fixture
async def sandbox(shed_home: Path) -> AsyncIterator[Sandbox]:
    """One in which nobody acts, with a file of root's own."""
    engine = NativeEngine(shed_home)
    try:
        box = await engine.create(EnvironmentSpec(user="nobody"), SandboxPolicy())
    except Unsupported as error:
        await engine.close()
        pytest.skip(f"no other users here: {error}")
    await box.exec("mkdir -p /workspace/own /workspace/closed && chown nobody /workspace/own && "
                   "echo hidden > /workspace/closed/secret && chmod 700 /workspace/closed", user=0)
    yield box
    await engine.close()


async def test_files_are_the_users(sandbox: Sandbox) -> None:
    """What it writes is its own, what it may not read it does not, and the sandbox's own calls would (the control)."""
    acting = as_user(sandbox, "nobody")
    await acting.write("/workspace/own/deep/a", b"a\0\xff", mode=0o640)
    info = await acting.stat("/workspace/own/deep/a")
    assert (info.uid != 0, info.mode & 0o777) == (True, 0o640)
    assert await acting.read("/workspace/own/deep/a") == b"a\0\xff"
    await acting.write("/workspace/own/deep/a", b"b")
    assert (await acting.stat("/workspace/own/deep/a")).mode & 0o777 == 0o640
    assert [entry.name for entry in await acting.list("/workspace/own/deep")] == ["a"]
    for refused in (acting.read("/workspace/closed/secret"), acting.stat("/workspace/closed/secret"),
                    acting.list("/workspace/closed"), acting.write("/workspace/closed/x", b"x"),
                    acting.write("/etc/x", b"x")):
        with pytest.raises(PermissionError):
            await refused
    assert await sandbox.read("/workspace/closed/secret") == b"hidden\n"
    assert (await acting.exec(["id", "-un"])).stdout.strip() == b"nobody"


async def test_errors_are_those_of_any_sandbox(sandbox: Sandbox) -> None:
    """What is not there, is a folder or is too large is told as by the sandbox itself."""
    acting = as_user(sandbox, "65534")
    with pytest.raises(FileNotFoundError):
        await acting.read("/workspace/none")
    with pytest.raises(IsADirectoryError):
        await acting.read("/workspace/own")
    await acting.write("/workspace/own/big", b"x" * 11)
    with pytest.raises(OSError, match="large"):
        await acting.read("/workspace/own/big", max_bytes=10)
    assert as_user(sandbox, "") is sandbox
    assert as_user(sandbox, "root") is sandbox
