"""The gvisor engine passes the suite every engine must pass, with Debian's runsc."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import ocikit as oci
from signalled import assert_it_serves
from woodshed.errors import EnvironmentFault
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox import conformance
from woodshed.sandbox.gvisor.engine import GvisorEngine, demand_recent
from woodshed.sandbox.images import Images

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the gvisor engine needs root: run the tests as root"),
    pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is missing: apt install runsc (Debian 13)"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module", autouse=True)
def _recent() -> None:
    try:
        demand_recent()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[GvisorEngine]:
    made = GvisorEngine(shed_home, images=images)
    yield made
    await made.close()


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_gvisor_conformance(engine: GvisorEngine, check: conformance.Check, shed_home: Path) -> None:
    """The check holds, and once the engine is closed nothing of it is left in the home."""
    await check(engine)
    await engine.close()
    assert list((shed_home / "sandboxes").iterdir()) == []


async def test_gvisor_commands_cannot_end_their_sandbox(engine: GvisorEngine) -> None:
    """Whatever signals user 0 inside sends to the first process, by number, group or descriptor, it goes on serving."""
    await assert_it_serves(engine)


async def test_gvisor_takes_images_as_they_are(shed_home: Path, tmp_path: Path) -> None:
    """An image that is not here yet is unpacked for this engine, too; its USER, WORKDIR and variables hold."""
    if not oci.has_busybox():
        pytest.skip(oci.NO_BUSYBOX)
    image = oci.layout(tmp_path / "l", oci.busybox_layer(), inner={
        "User": "app:staff", "WorkingDir": "/srv", "Env": ["PATH=/bin", "KEPT=image"]})
    own = GvisorEngine(shed_home)
    try:
        sandbox = await own.create(EnvironmentSpec(image=image, workdir=""), SandboxPolicy())
        done = await sandbox.exec("id -u; id -g; pwd; echo $HOME $KEPT")
        assert done.stdout == b"1000\n50\n/srv\n/home/app image\n", done
        assert (await sandbox.exec("id -u", user=0)).stdout == b"0\n"
        await sandbox.close()
    finally:
        await own.close()
