"""The gvisor engine passes the suite every engine must pass, with Debian's runsc."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault
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


@pytest.fixture(scope="module")
def images(shed_home: Path) -> Images:
    return Images(shed_home)


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
