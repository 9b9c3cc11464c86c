"""The docker engine passes the suite every engine must pass, over Docker's or Podman's socket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from podman import daemon
from woodshed.sandbox import conformance
from woodshed.sandbox.docker.engine import DockerEngine
from woodshed.sandbox.images import Images

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a daemon of the tests' own is root's: run them as root")


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pod") as folder, daemon(Path(folder)) as path:  # a short path: sun_path
        yield path


@pytest.fixture(scope="module")
def images(shed_home: Path) -> Images:
    return Images(shed_home)


@pytest.fixture
async def engine(shed_home: Path, images: Images, socket: Path) -> AsyncIterator[DockerEngine]:
    made = DockerEngine(shed_home, images=images, socket=socket)
    yield made
    await made.close()


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_docker_conformance(engine: DockerEngine, check: conformance.Check, shed_home: Path) -> None:
    """The check holds, and once the engine is closed nothing of it is left in the home."""
    await check(engine)
    await engine.close()
    assert list((shed_home / "sandboxes").iterdir()) == []
