"""The root of a box is mounted by the calls a kernel has, and a refusal says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from outer import Patch, weakened
from woodshed.errors import EnvironmentFault
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.native.engine import NativeEngine

OLDER = {
    "no new mount calls": Patch('"fsopen": 430, "fsconfig": 431, "fsmount": 432, "openat2"',
                                '"fsopen": 4300, "fsconfig": 431, "fsmount": 432, "openat2"'),
    "no lowerdir+": Patch('("lowerdir+", path)', '("lowerdir-", path)'),
}


async def used(home: Path) -> str:
    """What a sandbox shows of its root, after a snapshot gave it a new one; a fork of it looks the same."""
    engine = NativeEngine(home)
    try:
        box = await engine.create(EnvironmentSpec(), SandboxPolicy())
        await box.write("kept", b"x")
        snapshot = await box.snapshot()
        (fork,) = await engine.fork(snapshot)
        looks = [(await one.exec("cat kept; grep ' / ' /proc/mounts; touch more && ls")).stdout.decode()
                 for one in (box, fork)]
        assert looks[0] == looks[1]
        return looks[0]
    finally:
        await engine.close()


@pytest.mark.parametrize("kernel", OLDER)
async def test_an_older_kernel_gives_the_same_root(shed_home: Path, tmp_path: Path, kernel: str) -> None:
    """Without the mount calls of Linux 5.2, or lowerdir+ of 6.8, the root, its snapshots and forks are the same."""
    with weakened((OLDER[kernel],), tmp_path):
        old = await used(shed_home)
    new = await used(shed_home)
    assert "kept\nmore" in new
    assert [word for word in old.replace(",", " ").split() if "lowerdir" not in word] == [
        word for word in new.replace(",", " ").split() if "lowerdir" not in word]


async def test_a_refused_overlay_says_why(shed_home: Path, tmp_path: Path) -> None:
    """What the file system says of its options is in the error."""
    broken = Patch('("workdir", f"{last}/w")', '("workdir", "0")')
    with weakened((broken,), tmp_path):
        engine = NativeEngine(shed_home)
        try:
            with pytest.raises(EnvironmentFault, match="overlay"):
                await engine.create(EnvironmentSpec(), SandboxPolicy())
        finally:
            await engine.close()
