"""The docker engine passes the suite every engine must pass, over Docker's or Podman's socket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import ocikit as oci
from podman import daemon
from signalled import assert_it_serves
from woodshed.errors import EnvironmentFault
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox import conformance
from woodshed.sandbox.docker.api import Api
from woodshed.sandbox.docker.engine import DockerEngine
from woodshed.sandbox.images import Images

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a daemon of the tests' own is root's: run them as root"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pod") as folder, daemon(Path(folder)) as path:  # a short path: sun_path
        yield path


@pytest.fixture
async def engine(shed_home: Path, images: Images, socket: Path) -> AsyncIterator[DockerEngine]:
    made = DockerEngine(shed_home, images=images, socket=socket)
    yield made
    await made.close()


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_docker_conformance(
    engine: DockerEngine, check: conformance.Check, shed_home: Path, socket: Path
) -> None:
    """The check holds, and once the engine is closed nothing of it is left, in the home or with the daemon."""
    await check(engine)
    await engine.close()
    assert await _containers(socket) == []
    assert list((shed_home / "sandboxes").iterdir()) == []


_PEER = """
import asyncio, sys
from pathlib import Path
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.docker.engine import DockerEngine

async def main():
    engine = DockerEngine(Path(sys.argv[1]), socket=Path(sys.argv[2]))
    sandbox = await engine.create(EnvironmentSpec(), SandboxPolicy())
    await sandbox.start("exec sleep 640")
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def _containers(socket: Path) -> list[dict[str, str]]:
    api = Api(socket)
    try:
        found = await api.call("GET", "/containers/json", query={"all": "true"})
        return [one for one in found or () if "woodshed.home" in (one.get("Labels") or {})]
    finally:
        await api.close()


async def test_a_killed_engine_leaves_nothing_for_long(shed_home: Path, images: Images, socket: Path) -> None:
    """When its process is killed its containers end by themselves, and the next engine of that home removes them."""
    peer = subprocess.Popen([sys.executable, "-c", _PEER, shed_home, socket],  # noqa: ASYNC220 (milliseconds, of a test)
                            stdout=subprocess.PIPE)
    assert peer.stdout is not None
    with peer.stdout:
        assert await asyncio.to_thread(peer.stdout.readline) == b"up\n"
    assert [one["State"] for one in await _containers(socket)] == ["running"]
    peer.kill()
    peer.wait()
    async with asyncio.timeout(60):
        while [one["State"] for one in await _containers(socket)] == ["running"]:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0.2)
    engine = DockerEngine(shed_home, images=images, socket=socket)
    await engine.open()
    assert await _containers(socket) == []
    await engine.close()


_REACH = """
import glob, os
hits = []
for path in [*glob.glob('/proc/1/fd/*'), '/proc/1/mem', '/proc/1/environ', '/proc/1/cwd/x']:
    for flags in (os.O_WRONLY, os.O_RDONLY):
        try: os.close(os.open(path, flags | os.O_NONBLOCK)); hits.append(path)
        except OSError: pass
for path in glob.glob('/proc/1/fd/*'):
    try: hits.append(os.readlink(path))
    except OSError: pass
for fd in range(3, 100):
    try: os.fstat(fd); hits.append(fd)
    except OSError: pass
print(hits)
"""


async def test_the_road_cannot_be_reached_from_inside(engine: DockerEngine) -> None:
    """No command, root's included, opens or inherits what PID 1 speaks through; nothing it had when started is seen."""
    sandbox = await engine.create(EnvironmentSpec(), SandboxPolicy())
    try:
        await sandbox.write("reach.py", _REACH.encode())
        reached = await sandbox.exec("python3 reach.py; test -w /.woodshed/bin && echo writable")
        assert reached.stdout == b"[]\n", reached
        status = (await sandbox.exec("cat /proc/self/status")).stdout.decode()
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
        assert "CapBnd:\t00000000000004fb" in status
        assert (await sandbox.exec("cat /proc/net/dev")).stdout.count(b":") == 1, "loopback alone"
    finally:
        await sandbox.close()


async def test_a_daemon_that_is_not_there_is_named(tmp_path: Path, images: Images) -> None:
    """The fault says which socket does not answer; a runtime that is unsafe here is refused by name."""
    engine = DockerEngine(tmp_path, images=images, socket=tmp_path / "none")
    with pytest.raises(EnvironmentFault, match="none"):
        await engine.open()
    await engine.close()
    engine = DockerEngine(tmp_path, images=images, socket=tmp_path / "none", runtime="runsc")
    with pytest.raises(EnvironmentFault, match="gvisor engine"):
        await engine.open()
    await engine.close()


async def test_docker_commands_cannot_end_their_sandbox(engine: DockerEngine) -> None:
    """Whatever signals user 0 inside sends to the first process, by number, group or descriptor, it goes on serving."""
    await assert_it_serves(engine)


async def test_docker_takes_images_as_they_are(shed_home: Path, tmp_path: Path, socket: Path) -> None:
    """An image that is not here yet is unpacked for this engine, too; its USER, WORKDIR and variables hold."""
    if not oci.has_busybox():
        pytest.skip(oci.NO_BUSYBOX)
    image = oci.layout(tmp_path / "l", oci.busybox_layer(), inner={
        "User": "app:staff", "WorkingDir": "/srv", "Env": ["PATH=/bin", "KEPT=image"]})
    own = DockerEngine(shed_home, socket=socket)
    try:
        sandbox = await own.create(EnvironmentSpec(image=image, workdir=""), SandboxPolicy())
        done = await sandbox.exec("id -u; id -g; pwd; echo $HOME $KEPT")
        assert done.stdout == b"1000\n50\n/srv\n/home/app image\n", done
        assert (await sandbox.exec("id -u", user=0)).stdout == b"0\n"
        await sandbox.close()
    finally:
        await own.close()
